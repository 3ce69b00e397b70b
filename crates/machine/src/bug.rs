//! Mistakes that the driver can be told to make.

/// A mistake. Each has a test that shows that the machine finds it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Bug {
    /// Targets in guest mode are neither kicked nor waited for.
    NoKick,
    /// Kicks get lost; they are waited for.
    LostKick,
    /// The flush comes before the entries are removed.
    FlushBeforeUnmap,
    /// Tables that were cut off are freed before the flush, for a forged receipt.
    TableFreedEarly,
    /// Memory of a deleted slot is freed before the flush.
    MemoryFreedEarly,
    /// What is found to be MMIO while an update is in progress is kept for the generation that the update leads to.
    MmioDuringUpdate,
    /// Generations have 3 bits.
    ShortGeneration,
    /// Leaves are invalidated, and walk caches are not.
    WalkCacheKept,
    /// A guest's pages are invalidated one by one although large ones may lie in pieces (A17).
    PiecesKept,
    /// Tags are used again without a flush.
    TagReused,
    /// The level hint is that of the tables that were cut off.
    WrongLevelHint,
    /// On Arm64, combined translations are not invalidated with those of stage 2 (P19).
    CombinedKept,
    /// On Arm64, entries are replaced without a break (P3).
    NoBreak,
    /// A fetch of the dirty log does not flush.
    FetchWithoutFlush,
    /// Write access is taken away without a flush.
    ProtectWithoutFlush,
    /// A nested fault is handled outside of a translation section.
    NoSection,
    /// On Arm64, another vCPU of the machine is entered without a local flush (A3).
    VcpuMet,
    /// On Arm64, a vCPU comes back to a CPU without a local flush, though its local invalidations went elsewhere (A21).
    MigrationForgotten,
    /// On Arm64, all CPUs report to the allocator of VMIDs as one: what the others run is not known to it (A4).
    VmidStolen,
    /// On Arm64, a CPU does not drop what it holds when a generation of VMIDs has begun (A4).
    GenerationKept,
    /// On Arm64, it drops it before the new VMID is loaded instead of after (A4).
    GenerationFlushedEarly,
    /// On Arm64, a machine's VMID is taken down once, and invalidated for ever after (A4).
    VmidRemembered,
    /// On Arm64, invalidations are completed for the own processor alone (O11).
    CompletedLocally,
}
