//! Shortening a failing program: delta debugging by removing operations.
//!
//! A removed operation changes the order of the rest, so each candidate is tried with several
//! seeds.

use crate::bug::Bug;
use crate::program::Program;
use crate::run::run;

/// Operations to run for a candidate, with one seed after the other, and the least and most seeds.
const OPERATIONS: u64 = 400;
const SEEDS: (u64, u64) = (4, 40);
/// Runs in total.
const RUNS_MAX: u32 = 6000;

/// A part of `program` that fails too, possibly in another way.
pub(crate) fn shrink(mut program: Program, bug: Option<Bug>) -> Program {
    let mut runs = 0;
    let mut chunk = program.len().div_ceil(2);
    while chunk > 0 {
        let (mut start, length) = (0, program.len());
        while start < program.len() && runs < RUNS_MAX {
            match fails(&without(&program, start, chunk), bug, &mut runs) {
                // The following operations have moved up.
                Some(shorter) => program = shorter,
                None => start += chunk,
            }
        }
        // Again, as long as that helps.
        if chunk > 1 || program.len() == length || runs >= RUNS_MAX {
            chunk /= 2;
        }
    }
    program
}

/// The candidate with a seed for which it fails.
fn fails(candidate: &Program, bug: Option<Bug>, runs: &mut u32) -> Option<Program> {
    let seeds = (OPERATIONS / (candidate.len() as u64 + 1)).clamp(SEEDS.0, SEEDS.1);
    (0..seeds).find_map(|turn| {
        *runs += 1;
        let candidate = Program { seed: candidate.seed.wrapping_add(turn), ..candidate.clone() };
        run(&candidate, bug, false).failure.map(|_| candidate)
    })
}

/// The program without `count` operations starting with number `start`, counted across all lists.
fn without(program: &Program, start: usize, count: usize) -> Program {
    let mut next = 0;
    let mut stays = || {
        let number = next;
        next += 1;
        !(start..start + count).contains(&number)
    };
    let mut shorter = program.clone();
    shorter.guests.iter_mut().for_each(|ops| ops.retain(|_| stays()));
    shorter.hosts.iter_mut().for_each(|ops| ops.retain(|_| stays()));
    shorter
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::explore;
    use crate::hw::format::Arch;

    #[test]
    fn operations_are_left_out_by_their_number() {
        let program = explore::program(Arch::Amd64, 0, None);
        let first = program.guests[0].len();
        let shorter = without(&program, first - 1, 2);
        assert_eq!(shorter.len(), program.len() - 2);
        assert_eq!(shorter.guests[0][..], program.guests[0][..first - 1]);
        assert_eq!(shorter.guests[1][..], program.guests[1][1..]);
        assert_eq!(shorter.hosts, program.hosts);
    }

    #[test]
    fn a_program_that_fails_gets_short_and_still_fails() {
        let bug = Some(Bug::FlushBeforeUnmap);
        let program = (0..).map(|seed| explore::program(Arch::Amd64, seed, None));
        let program = program.into_iter().find(|program| run(program, bug, false).failure.is_some()).unwrap();
        let short = shrink(program.clone(), bug);
        assert!(short.len() * 8 <= program.len(), "{} of {}: {short:?}", short.len(), program.len());
        assert!(run(&short, bug, false).failure.is_some());
    }
}
