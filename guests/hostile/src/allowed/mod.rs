//! The tables of what a guest is to find, with the reasons. Whatever is in none has to fault, or to
//! read as if nothing were there.

pub mod cpuid;
pub mod msrs;
pub mod ports;
pub mod sysregs;

/// What a register is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// The vCPU's own: exchanged with the vCPU, or made from its state. Tests change these bits,
    /// for a moment. Where a processor has nothing there, they stay as they are.
    Own(u64),
    /// The same for ever, for each vCPU; writes are undefined or have no effect.
    Constant,
    /// It changes by itself, or by being read, and is not written to.
    Moves,
    /// Writes have effects, and this is what is written.
    Written(u64),
    /// The program lives by it: what is there is written back.
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
