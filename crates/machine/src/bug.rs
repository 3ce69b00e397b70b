//! Mistakes that the driver can be told to make, and mistakes of the steps that it drives.

use stay::Mistake;

/// A mistake. Each has a test that shows that the machine detects it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Bug {
    /// A mistake in one of the steps.
    Step(Mistake),
    /// The kick is sent to a CPU other than the one where the target is in guest mode.
    WrongCpuKicked,
    /// The targets of one bank are taken from the next bank.
    WrongBank,
    /// For a flush of the whole space, targets in guest mode are neither kicked nor waited for.
    NoKick,
    /// After a change of nested tables, a flush of the guest's translations is requested.
    FlushOfGuests,
    /// Kicks are lost, but still waited for.
    LostKick,
    /// The flush comes before the entries are removed.
    FlushBeforeUnmap,
    /// Tables that were cut off are freed before the flush, for a forged receipt.
    TableFreedEarly,
    /// Memory of a deleted slot is freed before the flush.
    MemoryFreedEarly,
    /// An MMIO result found while an update is in progress is marked with the generation that the
    /// update leads to.
    MmioDuringUpdate,
    /// Generations have 3 bits.
    ShortGeneration,
    /// Leaves are invalidated, but not walk caches.
    WalkCacheKept,
    /// On Arm64, combined translations are not invalidated with those of stage 2 (P19).
    CombinedKept,
    /// A fetch of the dirty log does not flush.
    FetchWithoutFlush,
    /// What a processor has listed is marked after its next stay, not at the end of this one.
    ListedLater,
    /// Write access is removed without a flush.
    ProtectWithoutFlush,
    /// On Arm64, the record of another vCPU of the machine that ran on a CPU is lost (A3).
    VcpuMet,
    /// On Arm64, the record of where a vCPU ran is lost (A21).
    MigrationForgotten,
    /// On Arm64, all CPUs report to the allocator of VMIDs as one, so it does not know what the
    /// others run (A4).
    VmidStolen,
    /// On Arm64, a new generation's drop is done before the new VMID is loaded instead of after
    /// (A4).
    GenerationFlushedEarly,
    /// On Arm64, a machine's VMID is recorded once, and used for all later invalidations (A4).
    VmidRemembered,
    /// A guest gets the tags of the destroyed one in whose place it is: its vCPUs' ASID slots, or
    /// its VMID slot. Nothing was flushed for the destroyed one, as would suffice with new tags.
    TagHandedOn,
    /// On Intel64, a vCPU that arrives runs under the VPID that it had before.
    FormerVpid,
    /// One CPU does not drop its entries when a generation of tags begins.
    RolloverMissesCpu,
    /// On Arm64, there is no ISB after a write to VTTBR_EL2.
    VttbrNotSynchronized,
    /// On Arm64, a flush names another machine's VMID.
    WrongTagFlushed,
    /// A destroyed guest's memory is taken back before its vCPUs have stopped and without receipts.
    MemoryHandedOnEarly,
    /// On Arm64, a destroyed guest's tables are taken back while CPUs still have them loaded.
    TablesHandedOnEarly,
    /// On Arm64, a vCPU that is added in the place of another one is taken for it.
    VcpuTakenForFormer,
    /// On Arm64, a CPU records the vCPU that ran last by its index, and so takes one machine's for
    /// another's.
    ResidentByIndex,
    /// On Arm64, invalidations are completed only for the own processor (O11).
    CompletedLocally,
    /// A flush leaves the devices out.
    DevicesNotTold,
    /// Memory is mapped for devices by a list of slots that was read before the lock was taken.
    MirrorOfFormerSlots,
    /// On Intel64, the tables of a guest with devices have marks.
    MarksForDevices,
    /// The devices drop what they have before the entries are removed.
    DevicesToldEarly,
    /// In a round of a migration, pages are copied before the flush of their log's fetch.
    CopiedBeforeFlush,
    /// In a round of a migration, pages are copied before their dirty bits are taken.
    CopiedBeforeFetch,
    /// The last round of a migration is done before the vCPUs stop.
    LastRoundRunning,
    /// When a migration is cut, the logs are taken back before the jobs that stop them.
    LogDroppedEarly,
    /// When a migration is cut, the log of the last slot is left on.
    LogLeftOn,
    /// When a migration is cut, the flush comes before the large pages are put together. On Arm64
    /// there is also the mistake of a step, `NoBreak`.
    LargeBeforeFlush,
    /// A guest that goes on elsewhere gets the tags of the former one, and not the flushes that its
    /// vCPUs owe. On AMD64 alone: on Arm64 flushes are broadcast, so none is owed, and the mistake
    /// is [`TagHandedOn`](Self::TagHandedOn); on Intel64 CPUs drop what they hold by a root before
    /// it is freed, and the mistake is [`TablesHandedOnEarly`](Self::TablesHandedOnEarly).
    OwedLeftBehind,
}
