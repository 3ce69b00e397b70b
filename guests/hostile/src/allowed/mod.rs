//! The tables of everything that a guest should find, with the reasons. Accesses to anything else
//! must fault, or read as unused.

pub mod cpuid;
pub mod msrs;
pub mod ports;
pub mod sysregs;

/// A range of leaves, MSRs or ports.
#[derive(Clone, Copy, Debug)]
pub struct Row<N, T> {
    /// The first number.
    pub first: N,
    /// The last number.
    pub last: N,
    /// Its name in the manual.
    pub name: &'static str,
    /// What the guest finds there.
    pub what: T,
    /// Why it may be there.
    pub why: &'static str,
}

impl<N: PartialOrd, T> Row<N, T> {
    const fn new(first: N, last: N, name: &'static str, what: T, why: &'static str) -> Self {
        Self { first, last, name, what, why }
    }

    /// Whether it has any of these numbers.
    fn has(&self, first: N, last: N) -> bool {
        first <= self.last && last >= self.first
    }
}

/// The kind of a register.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// The vCPU's own: switched with the vCPU, or derived from its state. Tests change these bits
    /// briefly. Bits that a processor does not implement stay unchanged.
    Own(u64),
    /// Always the same, for each vCPU; writes are undefined or have no effect.
    Constant,
    /// It changes on its own, or by being read, and is not written to.
    Moves,
    /// Writes have effects; this value is written.
    Written(u64),
    /// The program depends on it: only its present value is written.
    Kept,
    /// It is an instruction.
    Instruction,
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeMap;

    #[test]
    fn every_row_has_a_name_and_a_reason() {
        let sysregs = sysregs::ROWS.iter().map(|row| (row.name, row.why));
        let msrs = msrs::ROWS.iter().map(|row| (row.name, row.why));
        let ports = ports::ROWS.iter().map(|row| (row.name, row.why));
        let leaves = cpuid::ROWS.iter().map(|row| (row.name, row.why));
        for (name, why) in sysregs.chain(msrs).chain(ports).chain(leaves) {
            assert!(!name.is_empty() && !why.is_empty(), "{name}: {why}");
        }
    }

    #[test]
    fn nothing_is_in_two_rows() {
        let mut seen = BTreeMap::new();
        for row in sysregs::ROWS {
            assert!(row.encodings().next().is_some(), "{} stands for nothing", row.name);
            for encoding in row.encodings() {
                assert!(sysregs::find(encoding).is_some_and(|found| found.name == row.name));
                assert_eq!(seen.insert(encoding, row.name), None, "{}", row.name);
            }
        }
        are_apart(msrs::ROWS);
        are_apart(ports::ROWS);
        are_apart(cpuid::ROWS);
    }

    fn are_apart<N: PartialOrd, T>(rows: &[Row<N, T>]) {
        for pair in rows.windows(2) {
            assert!(pair[0].last < pair[1].first, "{} and {}", pair[0].name, pair[1].name);
        }
    }
}
