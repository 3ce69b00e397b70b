//! Random programs.
//!
//! Each has its own preferences: some kinds of operation are frequent, some are missing, and most
//! operations use the same few pages. Programs that do a little of everything seldom do enough of
//! anything.

mod config;
mod themes;

pub use themes::Topic;
use themes::{GuestKind, HostKind};

use crate::hw::format::Arch;
use crate::layout::{AREAS, LAST_TABLES, PAGES, SPACES, VA_PAGES, WINDOWS};
use crate::program::{Arm, Backing, Config, Dma, FlushOp, GpaPage, GuestOp, HostOp, Program};
use crate::rng::Rng;

/// One program in this many is about devices; and one of those that are about anything or about
/// lives has them.
const DEVICES_ONE_IN: usize = 6;
/// One of the others in this many is about guests that are migrated.
const MIGRATIONS_ONE_IN: usize = 16;
/// About as many steps as a migration has.
const STEPS: usize = 5 * AREAS;

/// The operations that machines with large pages only omit.
const fn makes_small_pages(kind: HostKind) -> bool {
    matches!(kind, HostKind::StartLog | HostKind::Split | HostKind::Migrate)
}

/// A choice among kinds, some more frequent than others.
#[derive(Clone, Debug)]
struct Weights<K> {
    kinds: Vec<(K, u32)>,
    sum: u32,
}

impl<K: Copy> Weights<K> {
    /// Of a topic's kinds, some are more frequent than by default, and some are missing.
    fn tasteful<const N: usize>(kinds: &[(K, [u32; N])], topic: Topic, rng: &mut Rng) -> Self {
        let of_topic = kinds.iter().map(|(kind, weights)| (*kind, weights[topic as usize]));
        let used = of_topic.filter(|&(_, weight)| weight != 0);
        Self::new(used.map(|(kind, weight)| (kind, weight * rng.pick(&[0, 1, 1, 2, 6]))).collect())
    }

    fn new(kinds: Vec<(K, u32)>) -> Self {
        let sum = kinds.iter().map(|(_, weight)| weight).sum();
        Self { kinds, sum }
    }

    fn pick(&self, rng: &mut Rng) -> Option<K> {
        if self.sum == 0 {
            return None;
        }
        let mut left = rng.below(self.sum as usize) as u32;
        self.kinds.iter().find_map(|&(kind, weight)| {
            let is_it = left < weight;
            left = left.wrapping_sub(weight);
            is_it.then_some(kind)
        })
    }
}

/// The preferences of a program.
struct Taste {
    config: Config,
    guest: Weights<GuestKind>,
    host: Weights<HostKind>,
    /// The pages that most operations use.
    area: usize,
    va: usize,
    gpa_page: usize,
    /// A change of a guest's tables is followed by a flush.
    flushes_changes: bool,
    /// Guests come and go often.
    is_about_lives: bool,
    /// Most flushes are of everything in one address space.
    flushes_spaces: bool,
    /// How many programs have devices: one in this many.
    devices_one_in: usize,
}

impl Program {
    /// A random program of about `length` operations, on a random machine of `arch`, about one
    /// topic or any.
    pub fn random(arch: Arch, seed: u64, length: usize, topic: Option<Topic>) -> Self {
        let mut rng = Rng::new(seed ^ 0x5eed_0f00);
        let mut dma = Rng::new(seed ^ 0xd3_a10b);
        let is_about_devices = dma.one_in(DEVICES_ONE_IN) && topic.is_none();
        let is_about_migrations = Rng::new(seed ^ 0x3167_a7e5).one_in(MIGRATIONS_ONE_IN) && topic.is_none();
        let topic = match topic {
            _ if is_about_devices => Some(Topic::Devices),
            _ if is_about_migrations => Some(Topic::Migrations),
            topic => topic,
        };
        let mut taste = Taste::new(arch, topic, &mut rng);
        taste.config.arm = Arm::random(&mut Rng::new(seed ^ 0xa5_3664));
        let mut reuse = Rng::new(seed ^ 0xf4_a3e5);
        (taste.config.reuses_at_once, taste.config.reuses_targets) = (reuse.one_in(2), reuse.one_in(2));
        if arch == Arch::Intel64 {
            // INVVPID of one VPID.
            taste.config.flush_by_asid = true;
            taste.config.vpids = !reuse.one_in(5);
            taste.config.roots = reuse.pick(&[1, 2, 8]);
            taste.config.globals = !taste.config.pcid && reuse.one_in(4);
        }
        taste.config.dma = Dma::random(&taste, &mut dma);
        let config = taste.config;
        let vcpus = config.vms * config.vcpus;
        // The host must not still be at its first operation when the guests are finished.
        let guest_share = rng.pick(&[1, 2])
            * match config.step {
                // A guest's life takes longer than other operations of the host.
                _ if taste.is_about_lives => 16,
                1 => 40,
                2..64 => 16,
                64..512 => 6,
                _ => 3,
            };
        let host_length = (length / (guest_share + 1) / config.vms).max(1);
        let guest_length = length.saturating_sub(host_length * config.vms) / vcpus;
        let guests = (0..vcpus).map(|_| taste.guest_ops(&mut rng, guest_length)).collect();
        let hosts = (0..config.vms).map(|_| taste.host_ops(&mut rng, host_length)).collect();
        Self { config, seed, guests, hosts }
    }
}

impl Taste {
    fn new(arch: Arch, topic: Option<Topic>, rng: &mut Rng) -> Self {
        let mut config = Config::random(arch, rng);
        let mut area = if rng.one_in(5) { rng.below(AREAS) } else { 1 + rng.below(3) };
        let random = Topic::random(arch, rng);
        let topic = topic.unwrap_or(random);
        match topic {
            // There is a slot from the start.
            Topic::Logging => area = 1 + rng.below(2),
            // There is none.
            Topic::Generations => area = AREAS - 2,
            Topic::Guests => {
                // Single pages are flushed one by one only where no large page is cached in pieces.
                config.large_only = !rng.one_in(4);
                config.pcid = arch.is_x86() && rng.one_in(2);
            }
            Topic::Halts => config.pcid = arch.is_x86() && rng.one_in(2),
            Topic::Lives => {
                // With changes in few steps, guests come and go more often.
                config.step = config.step.max(64);
                config.vms = rng.pick(&[1, 2, 2, 3, 3]);
                config.vcpus = 2;
                config.tags = rng.pick(&[2, 3, 5]);
            }
            Topic::Devices => {
                config.vms = rng.pick(&[1, 1, 2]);
                config.vcpus = 2;
            }
            Topic::Moves => {
                config.vms = 1;
                config.vcpus = rng.pick(&[1, 2]);
                // Changes keep up with the guest.
                config.step = config.step.max(512);
            }
            Topic::Migrations => {
                config.step = config.step.max(64);
                config.vms = rng.pick(&[1, 1, 2]);
                config.vcpus = 2;
                config.large_only = false;
            }
            Topic::Anything | Topic::Slots | Topic::Tables => {}
        }
        let mut host = Weights::tasteful(HostKind::FREQUENCIES, topic, rng);
        if config.large_only {
            host.kinds.retain(|(kind, _)| !makes_small_pages(*kind));
            host = Weights::new(host.kinds);
        }
        Self {
            config,
            guest: Weights::tasteful(GuestKind::FREQUENCIES, topic, rng),
            host,
            area,
            va: rng.below(VA_PAGES),
            gpa_page: rng.below(PAGES.len()),
            flushes_changes: !rng.one_in(3),
            is_about_lives: matches!(topic, Topic::Lives | Topic::Migrations),
            flushes_spaces: topic == Topic::Halts,
            devices_one_in: match topic {
                Topic::Devices => 1,
                Topic::Anything | Topic::Lives => DEVICES_ONE_IN,
                _ => usize::MAX,
            },
        }
    }

    fn area(&self, rng: &mut Rng) -> usize {
        if rng.one_in(5) { rng.below(AREAS) } else { self.area }
    }

    fn gpa_page(&self, rng: &mut Rng) -> GpaPage {
        let page = if rng.one_in(2) { rng.below(PAGES.len()) } else { self.gpa_page };
        GpaPage { area: self.area(rng), page }
    }

    fn va_page(&self, rng: &mut Rng) -> usize {
        match rng.below(4) {
            0 => rng.below(VA_PAGES),
            // Another page of the same window.
            1 => self.va / PAGES.len() * PAGES.len() + rng.below(PAGES.len()),
            _ => self.va,
        }
    }

    fn window(&self, rng: &mut Rng) -> usize {
        if rng.one_in(3) { rng.below(WINDOWS) } else { self.va / PAGES.len() }
    }

    fn space(rng: &mut Rng) -> usize {
        if rng.one_in(5) { rng.below(SPACES) } else { 0 }
    }

    /// Operations of one vCPU. A change of the guest's tables is often followed by the flush that
    /// it needs.
    fn guest_ops(&self, rng: &mut Rng, count: usize) -> Vec<GuestOp> {
        let mut ops = Vec::with_capacity(count);
        while ops.len() < count {
            let op = self.guest_op(rng);
            if op == GuestOp::Halt && self.config.pcid && self.flushes_spaces {
                // After idling in the other address space, it reuses translations of the first one.
                let page = GuestOp::Load(self.va_page(rng));
                ops.extend([page, GuestOp::Switch(1), op, GuestOp::Switch(0), page]);
                continue;
            }
            ops.push(op);
            let page = match op {
                GuestOp::Map { page, .. } | GuestOp::Unmap { page, .. } => page,
                GuestOp::MapLarge { window, .. } | GuestOp::Link { window, .. } => {
                    window * PAGES.len() + self.va % PAGES.len()
                }
                GuestOp::LinkMiddle { .. } => self.va,
                _ => continue,
            };
            if self.flushes_changes && ops.len() < count && !rng.one_in(3) {
                if self.flushes_locally() && rng.one_in(2) {
                    ops.push(GuestOp::FlushOwn(page));
                    continue;
                }
                let pages = if self.flushes_spaces { None } else { Some(1 << page) };
                ops.push(GuestOp::Flush(FlushOp { pages, ..self.flush_op(rng) }));
            }
        }
        ops
    }

    /// Whether a guest's local flushes stay local (A3, A21).
    fn flushes_locally(&self) -> bool {
        self.config.arch == Arch::Arm64 && !self.config.arm.forces_broadcast
    }

    fn guest_op(&self, rng: &mut Rng) -> GuestOp {
        let space = Self::space(rng);
        match self.guest.pick(rng).unwrap_or(GuestKind::Load) {
            GuestKind::Load => GuestOp::Load(self.va_page(rng)),
            GuestKind::Store => GuestOp::Store(self.va_page(rng)),
            GuestKind::Direct => GuestOp::Direct(self.gpa_page(rng), rng.one_in(2)),
            GuestKind::Map => GuestOp::Map {
                space,
                page: self.va_page(rng),
                to: self.gpa_page(rng),
                write: !rng.one_in(4),
                used: rng.one_in(2),
            },
            GuestKind::MapLarge => GuestOp::MapLarge {
                space,
                window: self.window(rng),
                area: self.area(rng),
                write: !rng.one_in(4),
            },
            GuestKind::Unmap => GuestOp::Unmap { space, page: self.va_page(rng) },
            GuestKind::Link => {
                GuestOp::Link { space, window: self.window(rng), table: rng.below(LAST_TABLES) }
            }
            GuestKind::LinkMiddle => GuestOp::LinkMiddle { space, number: rng.below(2) },
            GuestKind::FlushOwn => GuestOp::FlushOwn(self.va_page(rng)),
            GuestKind::Reload => GuestOp::Reload,
            GuestKind::Switch if self.config.globals => GuestOp::Reload,
            GuestKind::Switch => GuestOp::Switch(rng.below(SPACES)),
            GuestKind::Flush => GuestOp::Flush(self.flush_op(rng)),
            GuestKind::Halt => GuestOp::Halt,
            GuestKind::Yield => GuestOp::Yield,
            // Occasionally for longer than the wait limit.
            GuestKind::Spin if rng.one_in(60) => GuestOp::Spin(6000),
            GuestKind::Spin => GuestOp::Spin(rng.below(24) as u16),
            GuestKind::Preempt => GuestOp::Preempt,
            GuestKind::StartOver => GuestOp::StartOver,
            GuestKind::Replace => GuestOp::Replace,
        }
    }

    fn flush_op(&self, rng: &mut Rng) -> FlushOp {
        let of_space = self.flushes_spaces && !rng.one_in(3);
        let pages = match rng.below(6) {
            _ if of_space => None,
            0 | 1 => Some(1 << self.va_page(rng)),
            // Adjacent pages, at the end.
            2 | 3 => Some(7 << (self.va_page(rng) / PAGES.len() * PAGES.len())),
            4 => Some(rng.word() as u16 & rng.word() as u16 & ((1 << VA_PAGES) - 1)),
            _ => None,
        };
        FlushOp {
            targets: if rng.one_in(2) { None } else { Some(rng.below(1 << self.config.vcpus) as u64) },
            sparse: rng.one_in(3),
            space: if !of_space && rng.one_in(2) { None } else { Some(Self::space(rng)) },
            non_global_only: of_space || rng.one_in(2),
            pages,
            large: rng.one_in(3),
            xmm: rng.one_in(3),
            long: rng.one_in(6),
        }
    }

    /// Slot n begins in area n. Slot 0 has the guest's tables, and is rarely removed.
    fn slot(&self, rng: &mut Rng) -> u16 {
        match rng.below(13) {
            0 => 0,
            1..4 => 1 + rng.below(AREAS - 1) as u16,
            _ => self.area.max(1) as u16,
        }
    }

    fn backing(&self, rng: &mut Rng) -> Backing {
        if self.config.large_only {
            return Backing::Large;
        }
        rng.pick(&[Backing::Large, Backing::Large, Backing::Shifted, Backing::Small])
    }

    /// Operations of a host. A log is started before it is fetched.
    fn host_ops(&self, rng: &mut Rng, count: usize) -> Vec<HostOp> {
        let mut logged = None;
        let mut next = || {
            let op = self.host_op(rng);
            match (op, logged) {
                (HostOp::StartLog(slot), _) => logged = Some(slot),
                (HostOp::Fetch(slot) | HostOp::StopLog(slot), None) => {
                    logged = Some(slot);
                    return HostOp::StartLog(slot);
                }
                (HostOp::Fetch(_), Some(slot)) if !rng.one_in(8) => return HostOp::Fetch(slot),
                (HostOp::StopLog(_), Some(slot)) => {
                    logged = None;
                    return HostOp::StopLog(slot);
                }
                _ => {}
            }
            op
        };
        (0..count).map(|_| next()).collect()
    }

    fn host_op(&self, rng: &mut Rng) -> HostOp {
        let slot = self.slot(rng);
        match self.host.pick(rng).unwrap_or(HostKind::Wake) {
            HostKind::Add => HostOp::Add {
                slot,
                area: if rng.one_in(5) { rng.below(AREAS) } else { slot.into() },
                backing: self.backing(rng),
                read_only: rng.one_in(4),
            },
            // Without its tables a guest does nothing of interest.
            HostKind::Remove | HostKind::Move if slot == 0 => HostOp::Replace(0, Backing::Large),
            HostKind::Replace if slot == 0 => HostOp::Replace(0, Backing::Large),
            HostKind::Remove => HostOp::Remove(slot),
            HostKind::Move => HostOp::Move(slot, rng.below(AREAS)),
            HostKind::SetReadOnly => HostOp::SetReadOnly(slot, rng.one_in(2)),
            HostKind::Replace => HostOp::Replace(slot, self.backing(rng)),
            HostKind::StartLog => HostOp::StartLog(slot),
            HostKind::Fetch => HostOp::Fetch(slot),
            HostKind::StopLog => HostOp::StopLog(slot),
            HostKind::Split => HostOp::Split(slot),
            HostKind::Collapse => HostOp::Collapse(slot),
            HostKind::Zap => HostOp::Zap(self.area(rng)),
            HostKind::Write => HostOp::Write(self.gpa_page(rng)),
            HostKind::Toggle => HostOp::Toggle(AREAS as u16 - 1, 1 + rng.below(4) as u8),
            HostKind::Wake => HostOp::Wake(rng.below(self.config.vcpus)),
            HostKind::Recreate => HostOp::Recreate,
            HostKind::Migrate => HostOp::Migrate {
                rounds: rng.below(3) as u8,
                cut: rng.one_in(2).then(|| rng.below(STEPS) as u8),
            },
        }
    }
}
