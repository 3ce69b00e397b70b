//! Defects that an image of the hypervisor built for tests can inject, each for a test that has to
//! detect it.

use crate::architecture::Architectures;

macro_rules! defects {
    ($($(#[$doc:meta])* $variant:ident $name:literal $architectures:ident,)*) => {
        /// An injected defect: in serving flush hypercalls or in how vCPUs carry out a flush
        /// (x86-64), in TLB maintenance for stage 2 (Arm), in what IOMMUs are told, in how CPUs are
        /// started, or in how a guest gets its memory. Those with a name of `stay::Mistake` are
        /// such.
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        pub enum Defect {
            $($(#[$doc])* $variant,)*
        }

        impl Defect {
            /// All defects.
            pub const ALL: &[Self] = &[$(Self::$variant),*];

            /// The hypervisors that can make it.
            #[must_use]
            pub const fn architectures(self) -> Architectures {
                match self {
                    $(Self::$variant => Architectures::$architectures,)*
                }
            }

            /// Its value in the configuration.
            #[must_use]
            pub const fn name(self) -> &'static str {
                match self {
                    $(Self::$variant => $name,)*
                }
            }
        }
    };
}

defects! {
    /// Targets in guest mode are neither interrupted nor waited for.
    NoKick "no-kick" X86,
    /// Targets in guest mode are not waited for, and are interrupted only when the next ones are
    /// due.
    EarlyReturn "early-return" X86,
    /// Elements of a list after the fifteenth are not flushed.
    ListPast15 "list-past-15" X86,
    /// The contents of a VP set's banks are read from their neighbours.
    BankRank "bank-rank" X86,
    /// Elements for 2 MiB and 1 GiB pages are treated as non-canonical addresses.
    ExtendedRange "extended-range" X86,
    /// Of a range that begins below the end of canonical addresses and ends beyond it, nothing is
    /// flushed.
    NonCanonical "non-canonical" X86,
    /// The flag that names all processors is ignored.
    AllProcessors "all-processors" X86,
    /// Only the first page of each element is flushed, if it is canonical.
    AdditionalPages "additional-pages" X86,
    /// Input in XMM registers is read as zeroes.
    XmmInput "xmm-input" X86,
    /// A processor mask names the neighbour of each processor.
    VpIndex "vp-index" X86,
    /// Refused calls are reported as successful.
    Status "status" X86,
    /// Ring 3 may call.
    Ring3 "ring3" X86,
    /// No call is reported to have done any of its elements.
    RepsDone "reps-done" X86,
    /// Stage-2 entries stay in TLBs: IPAS2E1IS, RIPAS2E1IS and VMALLS12E1IS are omitted (Arm).
    Stage2NoTlbi "stage2-no-tlbi" ARM,
    /// Combined entries of both stages stay: VMALLE1IS is omitted (Arm).
    Stage2NoCombined "stage2-no-combined" ARM,
    /// Inner shareable operations are completed by DSB NSH, which waits only for the own processor
    /// (Arm).
    Stage2DsbNsh "stage2-dsb-nsh" ARM,
    /// Stores to tables are not ordered before the TLBI: DSB ISHST is omitted (Arm).
    Stage2NoIshst "stage2-no-ishst" ARM,
    /// Nothing is dropped where a vCPU arrives on a CPU (Arm).
    NoArrivalFlush "no-arrival-flush" ARM,
    /// The second CPU reports that it is ready after it has been given up; on x86-64 the third is
    /// started after the second has been given up.
    LateCpu "late-cpu" ALL,
    /// A flush of a vCPU's whole tag is taken, but nothing is dropped (x86-64).
    DebtForgotten "debt-forgotten" X86,
    /// A guest's memory is not zeroed before its files are put into it.
    MemoryHandedOn "memory-handed-on" ALL,
    /// IOMMUs are not told of memory that is removed.
    DmaNotTold "dma-not-told" DMA,
    /// IOMMUs are told to drop the translations of another guest's devices.
    DmaWrongDomain "dma-wrong-domain" DMA,
    /// Shadows of a guest's nested tables are not emptied when they must not be used any more.
    ShadowKept "shadow-kept" SVM,
    /// TLB_CONTROL of a guest that runs a guest of its own is ignored.
    InnerControlIgnored "inner-control-ignored" SVM,
    /// A hypercall that flushes nested tables of the guest's flushes nothing.
    InnerCallIgnored "inner-call-ignored" SVM,
    /// A flush by a guest's guest that is left to the hypervisor flushes nothing.
    DirectFlushIgnored "direct-flush-ignored" SVM,
    /// An entry that was called off settles the vCPU's pending flush.
    CalledOffEntrySettles "called-off-entry-settles" SVM,
    /// Tag and flush for an entry are not written.
    TagNotWritten "tag-not-written" X86,
    /// Only the tag for an entry is written: the flush is not.
    ControlNotWritten "control-not-written" X86,
    /// A vCPU that needs another tag keeps the former.
    TagKept "tag-kept" X86,
    /// All vCPUs have the same tag.
    TagShared "tag-shared" X86,
    /// Tags begin anew, and the former entries are not dropped.
    RolloverKept "rollover-kept" X86,
    /// Tags begin anew, and only the entries of the first tag are dropped.
    RolloverByTag "rollover-by-tag" X86,
    /// The guest is entered although a request is pending.
    EnteredInSpite "entered-in-spite" X86,
    /// A flush is taken, but not carried out.
    FlushNotCarriedOut "flush-not-carried-out" X86,
    /// A vCPU that starts over keeps its old translations.
    StartsOverWithAll "starts-over-with-all" X86,
    /// Of a list, no page is invalidated.
    PageNotInvalidated "page-not-invalidated" X86,
    /// A list is cut short in the middle.
    ListCutShort "list-cut-short" X86,
    /// Pages are invalidated under the next tag.
    WrongTagInvalidated "wrong-tag-invalidated" X86,
    /// Of a range, only the first page is invalidated.
    PageLeftOut "page-left-out" X86,
    /// Of several ranges, only the first is invalidated.
    RangeLeftOut "range-left-out" X86,
    /// Pages are invalidated one by one although large ones may be cached in pieces.
    PiecesKept "pieces-kept" X86,
    /// The part of a long list that was planned for later is reported as done.
    RestOfListForgotten "rest-of-list-forgotten" X86,
    /// The address space of a call is used with its flags.
    SpaceNotMasked "space-not-masked" X86,
    /// A flush that includes global translations skips a vCPU that has halted in another space.
    GlobalsSpared "globals-spared" X86,
    /// A request is sent only to the first bank of vCPUs.
    FirstBankOnly "first-bank-only" X86,
    /// A guest changes CR4 so that its translations are void, and keeps them.
    ControlsForgotten "controls-forgotten" X86,
    /// A flush of nested translations is taken as one of the guest's alone.
    NestedTakenAsGuests "nested-taken-as-guests" VMX,
    /// A nested flush is done where it is taken, and not owed where the vCPU is entered next.
    NestedSettledEarly "nested-settled-early" VMX,
    /// A flush of nested translations is carried out by an INVVPID.
    InvvpidForInvept "invvpid-for-invept" VMX,
    /// A flush of the guest's translations is carried out as one of nested ones.
    GuestsTakenAsNested "guests-taken-as-nested" VMX,
    /// What others of its guest have left where a vCPU arrives, by nested tables, is kept.
    ArrivalWithoutInvept "arrival-without-invept" VMX,
    /// A root that the CPU knows is taken for one of which nothing is stale.
    StampNotCompared "stamp-not-compared" VMX,
    /// An INVEPT names the root that the CPU had before.
    FormerRootDropped "former-root-dropped" VMX,
    /// An INVEPT names another root.
    OtherRootDropped "other-root-dropped" VMX,
    /// A root is forgotten for another one, and what is kept by it stays.
    RootPushedOut "root-pushed-out" VMX,
    /// A CPU lets go of a root that is freed, and keeps what it holds by it.
    RootKept "root-kept" VMX,
    /// Without VPIDs, entry and exit are taken to drop what is kept of nested tables, too.
    EntryTrusted "entry-trusted" VMX,
    /// An INVVPID spares global translations.
    InvvpidSparesGlobals "invvpid-spares-globals" VMX,
    /// A guest is entered under VPID 0.
    VpidZero "vpid-zero" VMX,
}

impl Defect {
    /// The defect with this name.
    #[must_use]
    pub fn named(name: &str) -> Option<Self> {
        Self::ALL.iter().copied().find(|defect| defect.name() == name)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_of_one_defect_each() {
        for &defect in Defect::ALL {
            assert_eq!(Defect::named(defect.name()), Some(defect));
        }
        assert_eq!(Defect::named("none"), None);
    }
}
