//! Phases of a run, for counting instructions by phase (Arm): a hint instruction switches.
//!
//! `HINT #0x60` to `HINT #0x67` are NOPs that nobody has given a meaning (Arm ARM DDI 0487, C6.2,
//! "HINT": encodings that are not allocated are NOPs). QEMU with the plugin of `host/plugin` counts
//! what is executed after one of them, up to the next, for that phase. All CPUs count for one and
//! the same phase: a run that uses this counts instructions on one thread.

/// What the hint of phase 0 has for immediate.
pub const HINT_FIRST: u32 = 0x60;

/// A phase.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u32)]
pub enum Phase {
    /// Whatever nobody measures; a run begins with it.
    None = 0,
    /// Memory goes: until the guest may go on.
    Blocking = 1,
    /// Memory goes: tables and pages are given back.
    Reclaim = 2,
    /// Stores begin to be logged.
    DirtyEnable = 3,
    /// The log is fetched.
    DirtyFetch = 4,
    /// Pages are installed after faults: the guest says so, around what touches them.
    FaultIn = 5,
    /// Memory goes page by page, with a flush for each.
    PerPage = 6,
    /// What was measured is over, and nothing follows: the guest has reached userspace, for
    /// instance.
    After = 7,
}

impl Phase {
    /// All of them, in the order of their numbers.
    pub const ALL: [Self; 8] = [
        Self::None,
        Self::Blocking,
        Self::Reclaim,
        Self::DirtyEnable,
        Self::DirtyFetch,
        Self::FaultIn,
        Self::PerPage,
        Self::After,
    ];

    /// The immediate of its hint instruction.
    pub const fn hint(self) -> u32 {
        HINT_FIRST + self as u32
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hints_are_the_eight_that_the_plugin_knows() {
        let hints = Phase::ALL.map(Phase::hint);
        assert_eq!((hints[0], hints[7]), (0x60, 0x67));
        assert!(hints.windows(2).all(|pair| pair[1] == pair[0] + 1));
    }
}
