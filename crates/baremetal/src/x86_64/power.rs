//! Ways to end the machine: ACPI's soft-off, and QEMU's debug exit device.

use spin::Once;
use x86_64::instructions::port::Port;

use super::serial::{CONSOLE, REPORTS, Serial};

/// The register and value that switch the machine off (ACPI 6.5, sections 4.8.3.2.1 and 4.8.3.7).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Switch {
    port: u16,
    value: u16,
    is_byte: bool,
}

impl Switch {
    /// PM1a's control register at `port`: SLP_TYP in bits 12:10, SLP_EN is bit 13.
    pub const fn pm1(port: u16, sleep_type: u8) -> Self {
        Self { port, value: (sleep_type as u16 & 7) << 10 | 1 << 13, is_byte: false }
    }

    /// A hardware-reduced platform's sleep control register at `port`: SLP_TYP in bits 4:2, SLP_EN
    /// is bit 5.
    pub const fn sleep_control(port: u16, sleep_type: u8) -> Self {
        Self { port, value: (sleep_type as u16 & 7) << 2 | 1 << 5, is_byte: true }
    }
}

static SWITCH: Once<Switch> = Once::new();

/// Remembers what switches the machine off, if it is known.
pub fn set_switch(switch: Option<Switch>) {
    if let Some(switch) = switch {
        SWITCH.call_once(|| switch);
    }
}

/// What a program has written is on its way when the machine ends.
fn drain() {
    [CONSOLE, REPORTS].into_iter().for_each(Serial::drain);
}

/// Switches the machine off, if it is known how; otherwise halts. What the serial ports have is
/// sent before.
pub fn off() -> ! {
    drain();
    if let Some(&Switch { port, value, is_byte }) = SWITCH.get() {
        // SAFETY: ACPI says that this switches the machine off.
        unsafe {
            match is_byte {
                true => Port::new(port).write(value as u8),
                false => Port::new(port).write(value),
            }
        }
    }
    halt()
}

/// Halts the calling processor for good. What the serial ports have is sent before.
pub fn halt() -> ! {
    drain();
    loop {
        x86_64::instructions::interrupts::disable();
        x86_64::instructions::hlt();
    }
}

/// Ends QEMU by its device isa-debug-exit at `port`, if it is there: QEMU's exit status is then `2
/// * code + 1`. What the serial ports have is sent before.
pub fn debug_exit(port: u16, code: u8) {
    drain();
    // SAFETY: the caller vouches that the device is there.
    unsafe { Port::new(port).write(u32::from(code)) };
}

/// The same at the port that is usual.
pub fn end_emulator(code: u8) {
    debug_exit(0xf4, code);
}

/// Resets the machine by its reset register, if it has one.
pub fn reset() {
    // SAFETY: the machine begins again.
    unsafe { Port::<u8>::new(0xcf9).write(6) };
}
