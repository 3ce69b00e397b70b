//! The two serial ports, and the ways to end the machine.

use baremetal::x86_64::power;
use baremetal::x86_64::serial::{CONSOLE, REPORTS, Serial};

pub(in crate::arch) type Port = Serial;
pub(in crate::arch) const FIRST: Port = CONSOLE;
pub(in crate::arch) const SECOND: Option<Port> = Some(REPORTS);

/// Port of QEMU's debug exit device, at its conventional address.
const DEBUG_EXIT_PORT: u16 = 0xf4;

pub(in crate::arch) fn mask_interrupts() {
    x86_64::instructions::interrupts::disable();
}

/// Ends QEMU by its debug exit device, with status 2 * code + 1, or switches the machine off.
pub(in crate::arch) fn leave(code: u8, by_debug_exit: bool) -> ! {
    if by_debug_exit {
        power::debug_exit(DEBUG_EXIT_PORT, code);
    }
    power::off()
}
