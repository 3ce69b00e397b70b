//! Signals with an instruction that a phase begins: `phase N`, a number of
//! `hostlink::phase::Phase`. What is executed from then on is counted for that phase. The
//! instruction is a hint, which only affects a plugin that counts instructions.
//!
//! As the first program (`rdinit=/bin/phase`) it runs right after the kernel, signals
//! [`Phase::After`], and switches the machine off: a kernel's boot is counted up to there.

use hostlink::phase::Phase;
use rustix::system::{RebootCommand, reboot};
use std::env;
use std::process::{self, ExitCode};
use workloads::phase::mark;

fn main() -> ExitCode {
    if process::id() == 1 {
        mark(Phase::After);
        let error = reboot(RebootCommand::PowerOff);
        eprintln!("phase: cannot switch the machine off: {error:?}");
        return ExitCode::FAILURE;
    }
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
