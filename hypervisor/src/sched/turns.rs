//! Counts a CPU's turns without an entry into the guest since this count last made it take
//! interrupts.

use core::cell::Cell;

/// Maximum number of vCPU turns without an entry into the guest before the CPU takes interrupts.
///
/// Without a bound there could be any number of them: a guest that halts with interrupts off while
/// its timers keep expiring is woken for nothing, over and over, and leaves its CPU no time to
/// idle.
pub const TURNS_MAX: u32 = 16;

/// One CPU's count of turns.
#[derive(Debug, Default)]
pub struct Turns(Cell<u32>);

impl Turns {
    /// Counts a turn; returns whether interrupts must be taken now.
    #[must_use = "somebody waits for it"]
    pub fn is_window_due(&self) -> bool {
        self.0.set(self.0.get() + 1);
        let is_due = self.0.get() >= TURNS_MAX;
        if is_due {
            self.0.set(0);
        }
        is_due
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn u2_each_run_of_so_many_turns_has_a_window() {
        let turns = Turns::default();
        let windows: Vec<u32> = (1..=5 * TURNS_MAX).filter(|_| turns.is_window_due()).collect();
        let expected: Vec<u32> = (1..=5).map(|run| run * TURNS_MAX).collect();
        assert_eq!(windows, expected);
    }
}
