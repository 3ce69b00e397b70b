//! The entries that a vCPU would find on the CPU where it arrives, under its machine's VMID.
//!
//! All vCPUs of a machine share one VMID. A guest maintains its own translations by instructions
//! that may act on one processor only, and regards each vCPU as a processor. So a vCPU must not use
//! two kinds of entries:
//!
//! * entries of *another vCPU* of the machine that has run here since (A3): the two may use one
//!   ASID for different address spaces, or the same address for different things;
//! * the vCPU's *own* entries from an earlier stay, if it has run elsewhere since and its local
//!   invalidations reached only that CPU (A21). With HCR_EL2.FB they are broadcast, and there is
//!   nothing to do. The same applies to instruction caches.

use crate::CpuId;

/// The vCPU of a machine that ran on a CPU last: one record per machine and CPU, used only by that
/// CPU.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Resident(Option<u32>);

/// The CPU where a vCPU ran last: one record per vCPU, used by the CPU that runs it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Home(Option<CpuId>);

/// How far a guest's local maintenance instructions reach.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum LocalMaintenance {
    /// All CPUs: HCR_EL2.FB is set.
    Broadcast,
    /// The CPU that executes them.
    Local,
}

/// The entries to drop when a vCPU arrives; for [`enter_vm`](crate::tlbi::enter_vm).
#[must_use = "carry it out, even if the guest is not entered after all: the records say that it was"]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Arrival {
    /// All entries of all machines: a generation of VMIDs has begun.
    pub all_vms: bool,
    /// Stage-1 and combined entries of this machine.
    pub stage1: bool,
    /// This CPU's instruction cache.
    pub instructions: bool,
}

impl Arrival {
    /// Nothing.
    pub const NOTHING: Self = Self { all_vms: false, stage1: false, instructions: false };

    /// The same, and all entries of all machines if `must_flush`, which is
    /// [`Assignment::must_flush`](super::Assignment::must_flush).
    pub const fn with_all_vms(self, must_flush: bool) -> Self {
        Self { all_vms: self.all_vms || must_flush, ..self }
    }
}

impl Resident {
    /// No vCPU.
    pub const fn new() -> Self {
        Self(None)
    }

    /// Records that the vCPU numbered `vcpu` arrives at `cpu`, whose record this is.
    pub fn arrive(&mut self, vcpu: u32, home: &mut Home, cpu: CpuId, reach: LocalMaintenance) -> Arrival {
        let resident = self.0.replace(vcpu);
        let from = home.0.replace(cpu);
        let has_moved = from.is_some_and(|from| from != cpu) && reach == LocalMaintenance::Local;
        let stage1 = match resident {
            // No vCPU has been here: there are no entries.
            None => false,
            Some(last) => last != vcpu || has_moved,
        };
        Arrival { all_vms: false, stage1, instructions: has_moved }
    }
}

impl Home {
    /// No CPU yet.
    pub const fn new() -> Self {
        Self(None)
    }
}
