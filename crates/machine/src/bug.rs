//! Mistakes that the driver can be told to make, and those of the steps that it drives.

use stay::Mistake;

/// A mistake. Each has a test that shows that the machine finds it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Bug {
    /// One of the steps goes wrong.
    Step(Mistake),
    /// The CPU beside the one that a target is in guest mode on is kicked.
    WrongCpuKicked,
    /// Targets of one bank are taken for those of the next.
    WrongBank,
    /// For a flush of the whole space, targets in guest mode are neither kicked nor waited for.
    NoKick,
    /// Kicks get lost; they are waited for.
    LostKick,
    /// The flush comes before the entries are removed.
    FlushBeforeUnmap,
    /// Tables that were cut off are freed before the flush, for a forged receipt.
    TableFreedEarly,
    /// Memory of a deleted slot is freed before the flush.
    MemoryFreedEarly,
    /// What is found to be MMIO while an update is in progress is marked for the generation that
    /// the update leads to.
    MmioDuringUpdate,
    /// Generations have 3 bits.
    ShortGeneration,
    /// Leaves are invalidated, and walk caches are not.
    WalkCacheKept,
    /// Tags are used again without a flush.
    TagReused,
    /// On Arm64, combined translations are not invalidated with those of stage 2 (P19).
    CombinedKept,
    /// A fetch of the dirty log does not flush.
    FetchWithoutFlush,
    /// Write access is taken away without a flush.
    ProtectWithoutFlush,
    /// On Arm64, nobody remembers that another vCPU of the machine was on a CPU (A3).
    VcpuMet,
    /// On Arm64, nobody remembers where a vCPU was (A21).
    MigrationForgotten,
    /// On Arm64, all CPUs report to the allocator of VMIDs as one: what the others run is not known
    /// to it (A4).
    VmidStolen,
    /// On Arm64, it drops it before the new VMID is loaded instead of after (A4).
    GenerationFlushedEarly,
    /// On Arm64, a machine's VMID is taken down once, and invalidated for ever after (A4).
    VmidRemembered,
    /// On Arm64, invalidations are completed for the own processor alone (O11).
    CompletedLocally,
}
