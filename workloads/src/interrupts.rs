//! Rows of `/proc/interrupts`.

use std::{fs, io};

/// IPIs that the kernel has sent, summed over all CPUs.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct IpiCounts {
    /// Row `TLB`: remote TLB flushes requested by IPI.
    pub tlb: u64,
    /// Row `CAL`: function calls on other CPUs; the kernel counts those for TLB flushes in `TLB`
    /// only.
    pub call: u64,
}

impl IpiCounts {
    /// The counts at this moment.
    pub fn now() -> io::Result<Self> {
        Ok(Self::parse(&fs::read_to_string("/proc/interrupts")?))
    }

    /// The counts in the text of `/proc/interrupts`; a row that is absent counts as 0.
    pub fn parse(text: &str) -> Self {
        Self { tlb: row_sum(text, "TLB"), call: row_sum(text, "CAL") }
    }

    /// The increase since `earlier`.
    pub fn since(self, earlier: Self) -> Self {
        Self { tlb: self.tlb.saturating_sub(earlier.tlb), call: self.call.saturating_sub(earlier.call) }
    }
}

/// Sum over the CPUs of the row labelled `label`: the numbers up to the first word that is not one.
fn row_sum(text: &str, label: &str) -> u64 {
    text.lines()
        .filter_map(|line| line.trim_start().split_once(':'))
        .filter(|(name, _)| *name == label)
        .flat_map(|(_, counts)| counts.split_whitespace().map_while(|word| word.parse::<u64>().ok()))
        .sum()
}

#[cfg(test)]
mod tests {
    use super::*;

    const TEXT: &str = "           CPU0       CPU1
  4:        120          7   IO-APIC   4-edge      ttyS0
LOC:       1000       2000   Local timer interrupts
CAL:        300         40   Function call interrupts
TLB:         11         31   TLB shootdowns
";

    #[test]
    fn rows_are_summed_over_cpus_without_their_description() {
        for (text, tlb, call) in [
            (TEXT, 42, 340),
            ("           CPU0\nLOC: 5 Local timer interrupts\n", 0, 0),
            // A label inside another row does not count.
            ("XTLB: 9 other\n 1: 3 edge TLB: 4\n", 0, 0),
        ] {
            assert_eq!(IpiCounts::parse(text), IpiCounts { tlb, call }, "{text}");
        }
    }

    #[test]
    fn a_difference_never_wraps() {
        let low = IpiCounts { tlb: 1, call: 5 };
        let high = IpiCounts { tlb: 3, call: 4 };
        assert_eq!(high.since(low), IpiCounts { tlb: 2, call: 0 });
    }
}
