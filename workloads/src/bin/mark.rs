//! Signals by an instruction that userspace is reached, and switches the machine off: instructions
//! of a kernel's boot are counted up to here.
//!
//! As first program (`rdinit=/bin/mark`) it runs right after the kernel. The instruction is the
//! hint that `hostlink::phase::AFTER` names, which has an effect only on a plugin that counts
//! instructions.

use rustix::system::{RebootCommand, reboot};
use std::process::ExitCode;

fn main() -> ExitCode {
    mark();
    match reboot(RebootCommand::PowerOff) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("mark: cannot switch the machine off: {error}");
            ExitCode::FAILURE
        }
    }
}

#[cfg(target_arch = "aarch64")]
fn mark() {
    // SAFETY: a hint that no architecture defines is a NOP.
    unsafe {
        std::arch::asm!("hint #{phase}", phase = const hostlink::phase::Phase::After.hint(), options(nomem, nostack));
    }
}

/// This architecture has no such instruction.
#[cfg(not(target_arch = "aarch64"))]
fn mark() {}
