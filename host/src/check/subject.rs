//! Machines that run tlbcheck.

use crate::guest::peer::Flushes;
use crate::machine::spec::{Clock, Spec};
use crate::prelude::*;
use crate::results::Subject;
use crate::run::refuse_foreign_defect;
use crate::vm::{Guest, Hypervisor, StockGuest};
use clap::ValueEnum;
use hostlink::config::Switches;

const MEMORY: u64 = 256 * MIB;

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum On {
    /// The emulated machine itself
    Bare,
    /// Quell
    Quell,
    /// Linux KVM in the same machine: Debian's kernel, and this system's QEMU, in an initial RAM
    /// disk
    Kvm,
}

impl On {
    pub(crate) const fn subject(self) -> Subject {
        match self {
            Self::Bare => Subject::Bare,
            Self::Quell => Subject::Quell,
            Self::Kvm => Subject::Kvm,
        }
    }

    pub(crate) const fn name(self) -> &'static str {
        self.subject().name()
    }
}

/// Instructions that tlbcheck omits, on Arm.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Omission {
    /// Every TLBI
    Tlbi,
    /// The TLBIs that drop everything
    Vmalle1,
    /// Broadcasting: each TLBI affects only the own TLB
    Broadcast,
    /// The barriers after TLBIs, which an emulator may not need
    Dsb,
}

impl Omission {
    pub(crate) const fn word(self) -> &'static str {
        match self {
            Self::Tlbi => "drop=tlbi",
            Self::Vmalle1 => "drop=vmalle1",
            Self::Broadcast => "drop=broadcast",
            Self::Dsb => "drop=dsb",
        }
    }
}

/// A machine on which tlbcheck runs with this command line and this many CPUs; on Quell, vCPUs. Its
/// files are written to `directory`.
pub(crate) fn spec(
    platform: Platform,
    on: On,
    cmdline: &str,
    (cpus, vcpus): (u32, u32),
    switches: Switches,
    directory: &Path,
) -> Result<Spec> {
    let (arch, has_defect) = (platform.arch(), switches.defect.is_some());
    ensure!(!has_defect || on == On::Quell, "only Quell has defects that can be switched on");
    refuse_foreign_defect(switches, arch)?;
    let guest = Guest { switches, ..Guest::bare(workspace::TLBCHECK, platform, cmdline, vcpus, MEMORY)? };
    match on {
        On::Bare => guest.on_bare_machine(cpus, directory),
        On::Quell => {
            let hypervisor = if has_defect { Hypervisor::for_tests(arch)? } else { Hypervisor::build(arch)? };
            guest.on_quell(&hypervisor, cpus, Clock::Wall, directory)
        }
        On::Kvm => {
            let guest = Guest { vcpus: cpus, ..guest };
            let inner = guest.under_kvm(Flushes::HyperV, false);
            StockGuest::prepare(arch)?.with_kvm(&inner, cpus, Clock::Wall, directory)
        }
    }
}
