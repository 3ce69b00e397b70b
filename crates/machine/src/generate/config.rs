//! Random machines.

use super::Taste;
use crate::hw::format::Arch;
use crate::program::{Arm, Config, Dma, GpaPage, Track, VMS_MAX};
use crate::rng::Rng;

impl Config {
    pub(super) fn random(arch: Arch, rng: &mut Rng) -> Self {
        let vms = rng.pick(&[1, 1, 2]);
        Self {
            arch,
            cpus: rng.pick(&[2, 2, 3]),
            vms,
            vcpus: if vms == 1 { rng.pick(&[3, 4]) } else { 2 },
            reuses_at_once: false,
            reuses_targets: false,
            tags: rng.pick(&[2, 3, 5, 15]),
            flush_by_asid: !rng.one_in(3),
            track: match arch {
                Arch::Intel64 => rng.pick(&[Track::DirtyBits, Track::Lists, Track::WriteProtection]),
                _ => rng.pick(&[Track::DirtyBits, Track::WriteProtection]),
            },
            step: rng.pick(&[1, 7, 64, 64, 512, 512]),
            large_only: rng.one_in(3),
            first_vp: rng.pick(&[0, 62, 63]),
            page_limit: rng.pick(&[16, 64, 1024]),
            globals: false,
            vpids: true,
            roots: 1,
            pcid: arch.is_x86() && rng.one_in(4),
            arm: Arm::PLAIN,
            dma: Dma::NONE,
        }
    }
}

impl Dma {
    /// Most machines have no devices: they take time.
    pub(super) fn random(taste: &Taste, rng: &mut Rng) -> Self {
        if !rng.one_in(taste.devices_one_in) {
            return Self::NONE;
        }
        let mut devices = [0; VMS_MAX];
        devices[..taste.config.vms].fill_with(|| rng.pick(&[0, 1, 1, 2]));
        devices[0] = devices[0].max(1);
        let at = GpaPage { area: taste.area, page: taste.gpa_page };
        Self { devices, ats: rng.word() as u8, ring: rng.pick(&[4, 8, 32]), at }
    }
}

impl Arm {
    /// Few features, and no visitors.
    const PLAIN: Self = Self {
        range: false,
        ttl: false,
        forces_broadcast: true,
        pages_max: 512,
        ranges_max: 0,
        visitor_one_in: usize::MAX,
    };

    pub(super) fn random(rng: &mut Rng) -> Self {
        Self {
            range: !rng.one_in(4),
            ttl: !rng.one_in(3),
            forces_broadcast: rng.one_in(2),
            // A processor of this machine remembers 48 invalidations, and forgets earlier ones.
            pages_max: rng.pick(&[4, 16]),
            ranges_max: rng.pick(&[4, 16]),
            visitor_one_in: rng.pick(&[3, 12, 200]),
        }
    }
}
