//! Signals with an instruction that userspace is reached, and switches the machine off: the
//! instructions of a kernel's boot are counted up to this point.
//!
//! As the first program (`rdinit=/bin/mark`) it runs right after the kernel. The instruction is the
//! hint that `hostlink::phase::Phase::After` names, which only affects a plugin that counts
//! instructions.

use hostlink::phase::Phase;
use rustix::system::{RebootCommand, reboot};
use std::process::ExitCode;
use workloads::phase::mark;

fn main() -> ExitCode {
    mark(Phase::After);
    match reboot(RebootCommand::PowerOff) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("mark: cannot switch the machine off: {error}");
            ExitCode::FAILURE
        }
    }
}
