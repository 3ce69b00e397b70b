//! Mistakes that an image of the hypervisor built for tests can make on purpose, each for a test
//! that has to notice.

/// A mistake on purpose: in how flush hypercalls are served or what vCPUs do about a flush (AMD64),
/// in what is done to TLBs for stage 2 (Arm), or in how CPUs are started. Not each architecture can
/// make each.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Defect {
    /// Targets in guest mode are neither interrupted nor waited for.
    NoKick,
    /// Targets in guest mode are not waited for, and interrupted only when the next ones are to be.
    EarlyReturn,
    /// Elements of a list after the fifteenth are not flushed.
    ListPast15,
    /// The contents of a VP set's banks are taken for those of their neighbours.
    BankRank,
    /// Elements for 2 MiB and 1 GiB pages are taken for addresses that are not canonical.
    ExtendedRange,
    /// Of a range that begins below the end of canonical addresses and ends beyond, nothing is
    /// flushed.
    NonCanonical,
    /// The flag that names all processors is not looked at.
    AllProcessors,
    /// Of each element only the first page is flushed, if it is canonical.
    AdditionalPages,
    /// Input in XMM registers is taken for zeroes.
    XmmInput,
    /// A processor mask names each one's neighbour.
    VpIndex,
    /// Calls that are refused are said to have succeeded.
    Status,
    /// Ring 3 may call.
    Ring3,
    /// No call is said to have done any of its elements.
    RepsDone,
    /// Stage-2 entries stay in TLBs: IPAS2E1IS, RIPAS2E1IS and VMALLS12E1IS are left out (Arm).
    Stage2NoTlbi,
    /// Entries of both stages in one stay: VMALLE1IS is left out (Arm).
    Stage2NoCombined,
    /// What is inner shareable is completed by DSB NSH, which waits for the own processor alone
    /// (Arm).
    Stage2DsbNsh,
    /// Stores to tables are not ordered before the TLBI: DSB ISHST is left out (Arm).
    Stage2NoIshst,
    /// Nothing is dropped where a vCPU arrives on a CPU (Arm).
    NoArrivalFlush,
    /// The second CPU says that it is ready when it has been given up; on AMD64 the third is
    /// started when it has been.
    LateCpu,
    /// A flush of all that a vCPU's tag stands for is taken, and nothing dropped (AMD64).
    DebtForgotten,
}

impl Defect {
    /// All.
    pub const ALL: [Self; 20] = [
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
    ];

    /// Whether it is one that the hypervisor for AMD64 can make.
    #[must_use]
    pub const fn is_of_amd64(self) -> bool {
        !self.is_of_arm() || matches!(self, Self::LateCpu)
    }

    /// Whether it is one that the hypervisor for Arm can make.
    #[must_use]
    pub const fn is_of_arm(self) -> bool {
        matches!(
            self,
            Self::LateCpu
                | Self::Stage2NoTlbi
                | Self::Stage2NoCombined
                | Self::Stage2DsbNsh
                | Self::Stage2NoIshst
                | Self::NoArrivalFlush
        )
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
        }
    }

    /// The one of this name.
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
