//! Runs that end when requests have been answered.

use alloc::string::String;
use alloc::vec::Vec;
#[cfg(test)]
use core::sync::atomic::Ordering;

use super::{End, MockBoard};
use crate::vm::arch::Arch;

impl<A: Arch> MockBoard<A> {
    /// Somebody chooses the console of this guest for the screen.
    #[cfg(test)]
    pub(crate) fn choose(&self, number: u32) {
        *self.chosen.lock().expect("no test panics with it") = Some(number);
        self.lock().lines[0].serial = true;
    }

    /// What the screen shows.
    #[cfg(test)]
    pub(crate) fn screen(&self) -> Vec<u8> {
        self.screen.lock().expect("no test panics with it").clone()
    }

    /// Runs the machine until these requests have been answered; returns the lines of the answers.
    /// Guests that were created meanwhile are not started by another run.
    pub(crate) fn answer(&'static self, requests: &[&str]) -> Vec<String> {
        let (before, now) = (self.answers().len(), self.time());
        for (number, line) in (1..).zip(requests) {
            // A request comes after the answer to the one before.
            self.ask(now + number * 10_000_000, &alloc::format!("{number} {line}"));
        }
        {
            let mut turns = self.lock();
            turns.enough = Some(turns.answered + requests.len());
        }
        assert_eq!(self.run(1), End::Quiet, "{requests:?}");
        self.lock().enough = None;
        self.answers().split_off(before)
    }

    #[cfg(test)]
    pub(crate) fn set_time(&self, time: u64) {
        self.clock.store(time, Ordering::Relaxed);
    }

    /// Kicks that are sent from this time on do not arrive.
    #[cfg(test)]
    pub(crate) fn lose_kicks(&self, from: u64) {
        self.kicks_until.store(from, Ordering::Relaxed);
    }

    /// The run ends when so many requests have been answered.
    pub(crate) fn enough(&self, answers: usize) {
        self.lock().enough = Some(answers);
    }

    /// Runs the machine until these requests, each sent at its time or later, have been answered,
    /// in whatever order. Returns of each the last line of its answer, without its number, and how
    /// long that took.
    pub(crate) fn answer_each(&'static self, seed: u64, requests: &[(u64, String)]) -> Vec<(String, u64)> {
        let before = self.answers().len();
        for (number, (when, line)) in (1..).zip(requests) {
            self.ask(*when, &alloc::format!("{number} {line}"));
        }
        {
            let mut turns = self.lock();
            turns.enough = Some(turns.answered + requests.len());
        }
        assert_eq!(self.run(seed), End::Quiet, "seed {seed}: {requests:?}, {:?}", self.answers());
        let mut turns = self.lock();
        turns.enough = None;
        let lines: Vec<_> = turns.answers.iter().zip(&turns.answered_at).skip(before).collect();
        let answer = |(number, (when, asked)): (usize, &(u64, String))| {
            let last = |line: &str| line.strip_prefix(&alloc::format!("{number} ")).map(String::from);
            let found = lines.iter().find_map(|&(line, at)| {
                last(line).filter(|line| !line.starts_with(": ")).map(|line| (line, at - when))
            });
            found.unwrap_or_else(|| panic!("seed {seed}: '{asked}' is not answered"))
        };
        (1..).zip(requests).map(answer).collect()
    }
}
