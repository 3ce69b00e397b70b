//! Signals with an instruction that a phase begins: `phase N`, a number of
//! `hostlink::phase::Phase`. What is executed from then on is counted for that phase.

use hostlink::phase::Phase;
use std::env;
use std::process::ExitCode;
use workloads::phase::mark;

fn main() -> ExitCode {
    let number = env::args().nth(1).and_then(|text| text.parse::<usize>().ok());
    match number.and_then(|number| Phase::ALL.get(number)) {
        Some(phase) => {
            mark(*phase);
            ExitCode::SUCCESS
        }
        None => {
            eprintln!("phase: expected a number from 0 to {}", Phase::ALL.len() - 1);
            ExitCode::FAILURE
        }
    }
}
