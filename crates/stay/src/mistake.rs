//! Mistakes that can be injected into the steps.

/// Declares the mistakes, and their list.
macro_rules! mistakes {
    ($($(#[doc = $doc:literal])+ $name:ident,)+) => {
        /// A mistake in one of the steps. Each has a test in `quell-machine` that detects it, or
        /// one here. Where a processor's operation can be wrong instead of the step,
        /// `quell-machine` makes it there, and nothing is to be seen of it in the step.
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        pub enum Mistake {
            $($(#[doc = $doc])+ $name,)+
        }

        impl Mistake {
            /// All mistakes.
            pub const ALL: &[Self] = &[$(Self::$name),+];
        }
    };
}

mistakes! {
    /// An entry that was called off settles the vCPU's pending flush.
    CalledOffEntrySettles,
    /// An entry that the processor refuses settles it as well.
    RefusedEntrySettles,
    /// The tag and flush for an entry are not written.
    TagNotWritten,
    /// Only the tag is written: what the entry has to drop is not.
    ControlNotWritten,
    /// A vCPU that needs another tag, because it arrives or because tags ran out, keeps the former.
    TagKept,
    /// All vCPUs have the same tag.
    TagShared,
    /// A generation of tags begins, and the entries of the former one are not dropped.
    RolloverKept,
    /// A generation of tags begins, and only the entries of the first tag are dropped.
    RolloverByTag,
    /// The guest is entered although a request is pending.
    EnteredInSpite,
    /// A flush is taken, but not carried out.
    FlushNotCarriedOut,
    /// A flush of the tag is taken, but not recorded as pending.
    DebtForgotten,
    /// A list is taken where the vCPU has no tag yet, and nothing is owed where it has one.
    TagElsewhereForgotten,
    /// A flush of nested translations, too, is taken as one of the guest's alone.
    NestedTakenAsGuests,
    /// A nested flush is done where it is taken, and not owed where the vCPU is entered next.
    NestedSettledEarly,
    /// A flush of nested translations is carried out by an INVVPID.
    InvvpidForInvept,
    /// A flush of the guest's translations is carried out as one of nested ones, which are current.
    GuestsTakenAsNested,
    /// Where a vCPU arrives, what others of its guest have left there by nested tables is kept.
    ArrivalWithoutInvept,
    /// A root that the CPU knows is taken for one of which nothing is stale.
    StampNotCompared,
    /// An INVEPT names the root that the CPU had before, as its VMCS is not loaded yet.
    FormerRootDropped,
    /// An INVEPT names another root.
    OtherRootDropped,
    /// A root is forgotten for another one, and what is kept by it stays.
    RootPushedOut,
    /// A CPU lets go of a root, and keeps what it holds by it: a new guest gets it.
    RootKept,
    /// Without VPIDs, entry and exit are taken to drop what is kept of nested tables alone, too.
    EntryTrusted,
    /// An INVVPID spares global translations where they have to go.
    InvvpidSparesGlobals,
    /// A guest is entered under VPID 0, the host's.
    VpidZero,
    /// A vCPU that starts over, after INIT or a reset, keeps its old translations.
    StartsOverWithAll,
    /// Of a list, no page is invalidated.
    PageNotInvalidated,
    /// A list is cut short in the middle.
    ListCutShort,
    /// Pages are invalidated under the next tag.
    WrongTagInvalidated,
    /// When a range is invalidated page by page, only its first page is.
    PageLeftOut,
    /// Of several ranges, only the first is invalidated.
    RangeLeftOut,
    /// A guest's pages are invalidated one by one although large ones may be cached in pieces
    /// (A17).
    PiecesKept,
    /// A guest's pages are invalidated one by one although it uses PCIDs.
    PcidsKept,
    /// The part of a long list that was planned for later is reported as done.
    RestOfListForgotten,
    /// The address space of a call is used without masking the bits that are not part of the
    /// address.
    SpaceNotMasked,
    /// A flush of one address space skips a vCPU that has halted in another one, although the flush
    /// includes global translations.
    GlobalsSpared,
    /// A guest's request is sent only to the first bank of vCPUs.
    FirstBankOnly,
    /// Targets in guest mode are neither kicked nor waited for.
    NotKicked,
    /// Targets in guest mode are kicked but not waited for.
    NotWaited,
    /// A vCPU that uses PCIDs halts as if its TLB held only one address space.
    HaltInOneSpace,
    /// Software uses translations outside of a section.
    NoSection,
    /// A section begins although a flush is pending, which is left for later.
    SectionInSpite,
    /// An MMIO result is remembered with the generation read after the lookup.
    GenerationReadLate,
    /// A remembered walk is assumed unchanged without reading its entries again.
    WalkNotReadAgain,
    /// A remembered walk is used under other control registers.
    RegimeIgnored,
    /// A vCPU arrives at a processor, and nothing is dropped.
    ArrivalWithoutDrop,
    /// Pending drops are done only if the VMID changes as well.
    DropWithVmidOnly,
    /// A new VMID is not loaded into the processor.
    VmidNotLoaded,
    /// A generation of VMIDs has begun, and the processor's entries of the former one are not
    /// dropped.
    GenerationKept,
    /// The level hint of an invalidation is that of the tables that were cut off.
    WrongLevelHint,
    /// Of the ranges that a change names, the last is not invalidated.
    StaleRangeLeftOut,
    /// An entry is replaced without a break (P3).
    NoBreak,
    /// An IOMMU is given its commands, and not waited for.
    IommuNotWaited,
    /// The IOMMU's command names another domain.
    WrongDomain,
    /// It ends a page too early.
    DmaPageLeftOut,
    /// It names the block of the right size that begins at a multiple of it, in which the range may
    /// not end.
    BlockMisaligned,
    /// It leaves upper-level entries, although a table was cut off.
    DmaTablesKept,
    /// A device that keeps translations itself (ATS) is not told.
    DeviceTlbForgotten,
    /// It is told while the IOMMU may still answer it with what is stale.
    DeviceTlbEarly,
    /// What an IOMMU keeps of a machine's translations is not dropped when its devices are taken
    /// away.
    DomainKept,
    /// It is dropped while the IOMMU may go by the former entries of the devices.
    DomainDroppedEarly,
    /// Former entries of the device table stay in use.
    DeviceEntryKept,
    /// The command for an entry of the device table names another domain than the former one had.
    EntryOfOtherDomain,
    /// What no slot has any more stays mapped for devices.
    MirrorKept,
    /// What another CPU has unmapped for devices is not waited for.
    MirrorNotWaited,
}

/// Implemented by types that may be told to make mistakes. Only tests do so: elsewhere it is
/// constant, and costs nothing.
pub trait Mistakes {
    /// Whether to make this mistake.
    #[inline(always)]
    fn makes(&self, mistake: Mistake) -> bool {
        let _ = mistake;
        false
    }
}
