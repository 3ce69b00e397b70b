//! Arm64.

use baremetal::aarch64::guarded::Cause;
use baremetal::aarch64::info::BootInfo;
use baremetal::aarch64::{boot, processors};
use baremetal::guarded_asm;

pub(crate) use baremetal::aarch64::interrupts::number;
pub(crate) use baremetal::aarch64::power::off;

/// The exception class without further information: undefined instructions.
const CLASS_UNKNOWN: u8 = 0;

/// Finds the processors and lets the first one take interrupts. Returns the number of processors.
pub(super) fn prepare(info: &BootInfo) -> usize {
    processors::find(&info.processors)
}

/// The first address after the program.
pub(super) fn image_end() -> u64 {
    boot::image().1
}

/// Executes an undefined instruction; returns whether the processor raises the fault for it.
pub(crate) fn undefined() -> bool {
    // SAFETY: the instruction only faults, which is guarded.
    let done = unsafe { guarded_asm!("udf #0";) };
    done.is_err_and(|fault| fault.cause() == Cause::Class(CLASS_UNKNOWN))
}
