//! Phases of a run, for counting instructions by phase: an instruction without effect switches.
//!
//! On Arm64 it is a hint. `HINT #0x60` to `HINT #0x67` are NOPs without an assigned meaning (Arm
//! ARM DDI 0487, C6.2, "HINT": unallocated encodings are NOPs). On AMD64 it is a NOP with an
//! operand in memory, which it does not access (APM volume 3 (24594), NOP); its displacement names
//! the phase. QEMU with the plugin of `host/plugin` counts the instructions executed after one of
//! them, up to the next, for that phase. All CPUs share one phase: a run that uses this counts
//! instructions on one thread.

/// The immediate of the hint for phase 0.
pub const HINT_FIRST: u32 = 0x60;

/// The displacement of the NOP for phase 0. No compiler pads code with such a NOP.
pub const NOP_FIRST: u32 = 0x5175_6c60;

/// A phase. A run may also use the numbers from 1 on for whatever it compares.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u32)]
pub enum Phase {
    /// Everything that is not measured; a run begins in it.
    None = 0,
    /// Removing memory: until the guest may continue.
    Blocking = 1,
    /// Removing memory: tables and pages are freed.
    Reclaim = 2,
    /// Starting to log stores.
    DirtyEnable = 3,
    /// Fetching the log.
    DirtyFetch = 4,
    /// Installing pages after faults: the guest marks the code that touches them.
    FaultIn = 5,
    /// Removing memory page by page, with a flush for each.
    PerPage = 6,
    /// The measurement is over, and nothing follows: the guest has reached userspace, for instance.
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

    /// The displacement of its NOP.
    pub const fn nop(self) -> u32 {
        NOP_FIRST + self as u32
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
        let nops = Phase::ALL.map(Phase::nop);
        assert_eq!((nops[0], nops[7]), (NOP_FIRST, NOP_FIRST + 7));
    }
}
