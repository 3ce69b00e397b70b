//! What a vCPU would meet on the CPU that it comes to, under its machine's VMID.
//!
//! All vCPUs of a machine have one VMID. A guest keeps its own translations in order by
//! instructions that may act on one processor alone, and thinks of each vCPU as a processor. So two
//! things must not be met:
//!
//! * entries of *another vCPU* of the machine that ran here since (A3): the two may use one ASID
//!   for different address spaces, or the same address for different things;
//! * the vCPU's *own* entries of an earlier stay, if it has been elsewhere since and its local
//!   invalidations reached that CPU alone (A21). With HCR_EL2.FB they are broadcast, and there is
//!   nothing to do. The same goes for instruction caches.

use crate::CpuId;

/// Which vCPU of a machine ran on a CPU last: one for each machine and CPU, used by that CPU alone.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Resident(Option<u32>);

/// Where a vCPU ran last: one for each vCPU, used by the CPU that runs it.
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

/// What to drop when a vCPU comes; for [`enter_vm`](crate::tlbi::enter_vm).
#[must_use = "carry it out, even if the guest is not entered after all: the records say that it was"]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Arrival {
    /// Everything of every machine: a generation of VMIDs has begun.
    pub all_vms: bool,
    /// Stage-1 and combined entries of this machine.
    pub stage1: bool,
    /// This CPU's instruction cache.
    pub instructions: bool,
}

impl Arrival {
    /// Nothing.
    pub const NOTHING: Self = Self { all_vms: false, stage1: false, instructions: false };

    /// The same, and everything of every machine if `must_flush`, as
    /// [`Assignment::must_flush`](super::Assignment::must_flush) says.
    pub const fn with_all_vms(self, must_flush: bool) -> Self {
        Self { all_vms: self.all_vms || must_flush, ..self }
    }
}

impl Resident {
    /// Nobody.
    pub const fn new() -> Self {
        Self(None)
    }

    /// The vCPU of number `vcpu` comes to `cpu`, whose record this is.
    pub fn arrive(&mut self, vcpu: u32, home: &mut Home, cpu: CpuId, reach: LocalMaintenance) -> Arrival {
        let resident = self.0.replace(vcpu);
        let from = home.0.replace(cpu);
        let has_moved = from.is_some_and(|from| from != cpu) && reach == LocalMaintenance::Local;
        let stage1 = match resident {
            // Nobody has been here: there are no entries.
            None => false,
            Some(last) => last != vcpu || has_moved,
        };
        Arrival { all_vms: false, stage1, instructions: has_moved }
    }
}

impl Home {
    /// Nowhere yet.
    pub const fn new() -> Self {
        Self(None)
    }
}
