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

//!
//! Who is "the same vCPU" is decided by an identity that is given out once, never by an index:
//! indices coincide between machines, and are used again when a vCPU or a guest is replaced. The
//! record of a CPU belongs to the machine, so other machines' vCPUs in between cost nothing, and a
//! new machine begins without records.

use core::sync::atomic::AtomicU64 as Counter;

use crate::CpuId;
use crate::sync::{AtomicU64, Ordering, const_fn, zeroed};

/// No vCPU has this identity.
const NOBODY: u64 = 0;

/// An identity that no vCPU has had, of no machine. 64 bits do not wrap.
fn next_identity() -> u64 {
    static LAST: Counter = Counter::new(NOBODY);
    LAST.fetch_add(1, Ordering::Relaxed) + 1
}

/// The vCPU of a machine that ran last on each CPU: one for each machine, which is created and
/// dropped with its [`VmidSlot`](super::VmidSlot).
#[derive(Debug)]
pub struct Residents<const CPUS: usize> {
    /// By CPU, an identity. `Relaxed`: only the CPU itself accesses its own.
    last: [AtomicU64; CPUS],
}

/// A vCPU's identity, and the CPU where it ran last: one record for each vCPU, used by the CPU that
/// runs it.
///
/// It is as old as the vCPU. A reset of the vCPU keeps it, because the TLBs keep their entries; a
/// vCPU that takes another one's place has a [new](Self::new) one, and must not be given a copy.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Home {
    identity: u64,
    cpu: Option<CpuId>,
}

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

impl<const CPUS: usize> Residents<CPUS> {
    const_fn! {
        /// No vCPU has run on any CPU.
        pub fn new() -> Self {
            Self { last: zeroed!(CPUS) }
        }
    }

    /// Records that a vCPU of this machine arrives at `cpu`, the caller's own.
    ///
    /// # Panics
    /// If there are not so many CPUs.
    pub fn arrive(&self, home: &mut Home, cpu: CpuId, reach: LocalMaintenance) -> Arrival {
        let last = &self.last[cpu.0 as usize];
        let resident = last.load(Ordering::Relaxed);
        last.store(home.identity, Ordering::Relaxed);
        let from = home.cpu.replace(cpu);
        let has_moved = from.is_some_and(|from| from != cpu) && reach == LocalMaintenance::Local;
        let stage1 = match resident {
            // No vCPU of the machine has been here: there are no entries.
            NOBODY => false,
            resident => resident != home.identity || has_moved,
        };
        Arrival { all_vms: false, stage1, instructions: has_moved }
    }
}

impl<const CPUS: usize> Default for Residents<CPUS> {
    fn default() -> Self {
        Self::new()
    }
}

impl Home {
    /// A new vCPU, which has been on no CPU.
    pub fn new() -> Self {
        Self { identity: next_identity(), cpu: None }
    }
}

impl Default for Home {
    fn default() -> Self {
        Self::new()
    }
}
