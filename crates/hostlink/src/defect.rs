//! Defects that an image of the hypervisor built for tests can inject, each for a test that has to
//! detect it.

use crate::architecture::Architectures;

/// An injected defect: in serving flush hypercalls or in how vCPUs carry out a flush (AMD64), in
/// TLB maintenance for stage 2 (Arm), in how CPUs are started, or in how a guest gets its memory.
/// Not every architecture supports every defect.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Defect {
    /// Targets in guest mode are neither interrupted nor waited for.
    NoKick,
    /// Targets in guest mode are not waited for, and are interrupted only when the next ones are
    /// due.
    EarlyReturn,
    /// Elements of a list after the fifteenth are not flushed.
    ListPast15,
    /// The contents of a VP set's banks are read from their neighbours.
    BankRank,
    /// Elements for 2 MiB and 1 GiB pages are treated as non-canonical addresses.
    ExtendedRange,
    /// Of a range that begins below the end of canonical addresses and ends beyond it, nothing is
    /// flushed.
    NonCanonical,
    /// The flag that names all processors is ignored.
    AllProcessors,
    /// Only the first page of each element is flushed, if it is canonical.
    AdditionalPages,
    /// Input in XMM registers is read as zeroes.
    XmmInput,
    /// A processor mask names the neighbour of each processor.
    VpIndex,
    /// Refused calls are reported as successful.
    Status,
    /// Ring 3 may call.
    Ring3,
    /// No call is reported to have done any of its elements.
    RepsDone,
    /// Stage-2 entries stay in TLBs: IPAS2E1IS, RIPAS2E1IS and VMALLS12E1IS are omitted (Arm).
    Stage2NoTlbi,
    /// Combined entries of both stages stay: VMALLE1IS is omitted (Arm).
    Stage2NoCombined,
    /// Inner shareable operations are completed by DSB NSH, which waits only for the own processor
    /// (Arm).
    Stage2DsbNsh,
    /// Stores to tables are not ordered before the TLBI: DSB ISHST is omitted (Arm).
    Stage2NoIshst,
    /// Nothing is dropped where a vCPU arrives on a CPU (Arm).
    NoArrivalFlush,
    /// The second CPU reports that it is ready after it has been given up; on AMD64 the third is
    /// started after the second has been given up.
    LateCpu,
    /// A flush of a vCPU's whole tag is taken, but nothing is dropped (AMD64).
    DebtForgotten,
    /// A guest's memory is not zeroed before its files are put into it.
    MemoryHandedOn,
    /// IOMMUs are not told of memory that is removed.
    DmaNotTold,
    /// IOMMUs are told to drop the translations of another guest's devices.
    DmaWrongDomain,
}

impl Defect {
    /// All defects.
    pub const ALL: [Self; 23] = [
        Self::NoKick,
        Self::EarlyReturn,
        Self::ListPast15,
        Self::BankRank,
        Self::ExtendedRange,
        Self::NonCanonical,
        Self::AllProcessors,
        Self::AdditionalPages,
        Self::XmmInput,
        Self::VpIndex,
        Self::Status,
        Self::Ring3,
        Self::RepsDone,
        Self::Stage2NoTlbi,
        Self::Stage2NoCombined,
        Self::Stage2DsbNsh,
        Self::Stage2NoIshst,
        Self::NoArrivalFlush,
        Self::LateCpu,
        Self::DebtForgotten,
        Self::MemoryHandedOn,
        Self::DmaNotTold,
        Self::DmaWrongDomain,
    ];

    /// The hypervisors that can make it.
    #[must_use]
    pub const fn architectures(self) -> Architectures {
        match self {
            Self::LateCpu | Self::MemoryHandedOn | Self::DmaNotTold | Self::DmaWrongDomain => {
                Architectures::ALL
            }
            Self::Stage2NoTlbi
            | Self::Stage2NoCombined
            | Self::Stage2DsbNsh
            | Self::Stage2NoIshst
            | Self::NoArrivalFlush => Architectures::ARM,
            _ => Architectures::X86,
        }
    }

    /// Its value in the configuration.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::NoKick => "no-kick",
            Self::EarlyReturn => "early-return",
            Self::ListPast15 => "list-past-15",
            Self::BankRank => "bank-rank",
            Self::ExtendedRange => "extended-range",
            Self::NonCanonical => "non-canonical",
            Self::AllProcessors => "all-processors",
            Self::AdditionalPages => "additional-pages",
            Self::XmmInput => "xmm-input",
            Self::VpIndex => "vp-index",
            Self::Status => "status",
            Self::Ring3 => "ring3",
            Self::RepsDone => "reps-done",
            Self::Stage2NoTlbi => "stage2-no-tlbi",
            Self::Stage2NoCombined => "stage2-no-combined",
            Self::Stage2DsbNsh => "stage2-dsb-nsh",
            Self::Stage2NoIshst => "stage2-no-ishst",
            Self::NoArrivalFlush => "no-arrival-flush",
            Self::LateCpu => "late-cpu",
            Self::DebtForgotten => "debt-forgotten",
            Self::MemoryHandedOn => "memory-handed-on",
            Self::DmaNotTold => "dma-not-told",
            Self::DmaWrongDomain => "dma-wrong-domain",
        }
    }

    /// The defect with this name.
    #[must_use]
    pub fn named(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|defect| defect.name() == name)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_of_one_defect_each() {
        for defect in Defect::ALL {
            assert_eq!(Defect::named(defect.name()), Some(defect));
        }
        assert_eq!(Defect::named("none"), None);
    }
}
