//! The tables of everything that a guest should find, with the reasons. Accesses to anything else
//! must fault, or read as unused.

pub mod cpuid;
pub mod msrs;
pub mod ports;
pub mod sysregs;

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
        for pair in msrs::ROWS.windows(2) {
            assert!(pair[0].last < pair[1].first, "{} and {}", pair[0].name, pair[1].name);
        }
        for pair in ports::ROWS.windows(2) {
            assert!(pair[0].last < pair[1].first, "{} and {}", pair[0].name, pair[1].name);
        }
        for pair in cpuid::ROWS.windows(2) {
            assert!(pair[0].last < pair[1].first, "{} and {}", pair[0].name, pair[1].name);
        }
    }
}
