//! Mistakes that the steps can be told to make.

/// Declares the mistakes, and their list.
macro_rules! mistakes {
    ($($(#[doc = $doc:literal])+ $name:ident,)+) => {
        /// A mistake in one of the steps. Each has a test in `quell-machine` that finds it, or one
        /// here.
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        pub enum Mistake {
            $($(#[doc = $doc])+ $name,)+
        }

        impl Mistake {
            /// All of them.
            pub const ALL: &[Self] = &[$(Self::$name),+];
        }
    };
}

mistakes! {
    /// An entry that was called off settles what the vCPU owes.
    CalledOffEntrySettles,
    /// So does one that the processor refuses.
    RefusedEntrySettles,
    /// What the processor is to do about tags is not written for an entry.
    TagNotWritten,
    /// The guest is entered although a request pends.
    EnteredInSpite,
    /// A flush is taken, and nothing done about it.
    FlushNotCarriedOut,
    /// A flush of the tag is taken, and not owed.
    DebtForgotten,
    /// A vCPU that starts over, after INIT or a reset, goes on with what it held.
    StartsOverWithAll,
    /// Of a range that is invalidated page by page, the last page is left out.
    PageLeftOut,
    /// Of several ranges, the first alone is invalidated.
    RangeLeftOut,
    /// A guest's pages are invalidated one by one although large ones may lie in pieces (A17).
    PiecesKept,
    /// A guest's pages are invalidated one by one although it uses PCIDs.
    PcidsKept,
    /// Of a long list, what was planned for later is reported as done.
    RestOfListForgotten,
    /// The address space of a call is taken with the bits that are no address.
    SpaceNotMasked,
    /// A flush of one address space leaves out a vCPU that has halted in another one, although it
    /// asks for global translations too.
    GlobalsSpared,
    /// What a guest asks for is asked of the first bank of vCPUs alone.
    FirstBankOnly,
    /// Targets in guest mode are neither kicked nor waited for.
    NotKicked,
    /// Targets in guest mode are kicked and not waited for.
    NotWaited,
    /// A vCPU that uses PCIDs halts as if its TLB held one address space.
    HaltInOneSpace,
    /// Software uses translations outside of a section.
    NoSection,
    /// A flush that pends when a section is to begin is left for later, and the section begun.
    SectionInSpite,
    /// What is found to be MMIO is remembered for the generation of afterwards.
    GenerationReadLate,
    /// A remembered walk is taken to be as it was without another look at its entries.
    WalkNotReadAgain,
    /// A remembered walk is used under other control registers.
    RegimeIgnored,
    /// A vCPU comes to a processor, and nothing is dropped.
    ArrivalWithoutDrop,
    /// What is to be dropped is dropped only if the VMID changes as well.
    DropWithVmidOnly,
    /// The processor is not told of a new VMID.
    VmidNotLoaded,
    /// A generation of VMIDs has begun, and what the processor holds of the former one is not
    /// dropped.
    GenerationKept,
    /// The level hint of an invalidation is that of the tables that were cut off.
    WrongLevelHint,
    /// Of the ranges that a change names, the last is not invalidated.
    StaleRangeLeftOut,
    /// An entry is replaced without a break (P3).
    NoBreak,
}

/// Who may be told to make mistakes. Nobody but a test is: this is constant elsewhere, and costs
/// nothing.
pub trait Mistakes {
    /// Whether this one is to be made.
    #[inline(always)]
    fn makes(&self, mistake: Mistake) -> bool {
        let _ = mistake;
        false
    }
}
