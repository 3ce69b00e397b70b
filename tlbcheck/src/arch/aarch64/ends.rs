//! The serial port, and the ways to end the machine.

use baremetal::aarch64::serial::{CONSOLE, Serial};
use baremetal::aarch64::{interrupts, power};

pub(in crate::arch) type Port = Serial;
pub(in crate::arch) const FIRST: Port = CONSOLE;
/// There is no second port.
pub(in crate::arch) const SECOND: Option<Port> = None;

pub(in crate::arch) fn mask_interrupts() {
    interrupts::disable();
}

/// Ends QEMU by semihosting, with status 2 * code + 1, or switches the machine off by PSCI.
pub(in crate::arch) fn leave(code: u8, by_semihosting: bool) -> ! {
    if by_semihosting {
        // Where the call is not served the machine is switched off.
        let _ = power::semihosting_exit(2 * code + 1);
    }
    power::off()
}
