//! Mistakes that an image of the hypervisor built for tests can make on purpose, each for a test that has to notice.

/// A mistake in how flush hypercalls are served.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Defect {
    /// Targets in guest mode are interrupted, and not waited for.
    EarlyReturn,
    /// Elements of a list after the fifteenth are not flushed.
    ListPast15,
    /// The contents of a VP set's banks are taken for those of their neighbours.
    BankRank,
    /// Elements for 2 MiB and 1 GiB pages are taken for addresses that are not canonical.
    ExtendedRange,
    /// Of a range that begins below the end of canonical addresses and ends beyond, nothing is flushed.
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
}

impl Defect {
    /// All.
    pub const ALL: [Self; 12] = [
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
    ];

    /// Its value in the configuration.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
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
