//! Output of the hypervisor's own log, and the real serial ports behind the guest's.
//!
//! The log goes to the debug console (port 0xe9) if there is one, otherwise to COM1, mixed with the
//! guest's output. The guest's COM1 and COM2 are emulated. Bytes that it sends go to the real port
//! of the same number, and bytes that the real COM1 receives go to the guest. The real COM4 is the
//! control channel.

use core::sync::atomic::{AtomicBool, Ordering};

use baremetal::x86_64::serial::{CONSOLE, REPORTS, Serial};
use x86_64::instructions::port::Port;

/// Debug console of QEMU and Bochs: reading it gives its own number.
const DEBUG_CONSOLE: u16 = 0xe9;
/// The real ports behind the guest's: COM1 and COM2.
const GUEST: [Serial; 2] = [CONSOLE, REPORTS];
/// The real COM4. It shares its interrupt with COM2, which has none enabled.
// SAFETY: the address is a serial port's, or unused.
const CONTROL: Serial = unsafe { Serial::at(0x2e8) };

static HAS_DEBUG_CONSOLE: AtomicBool = AtomicBool::new(false);

/// Finds the debug console, sets up the serial ports (115,200 baud, 8n1, FIFO).
pub(crate) fn init() {
    // SAFETY: reading the debug console, or an unused port, changes nothing.
    let number: u8 = unsafe { Port::new(DEBUG_CONSOLE).read() };
    HAS_DEBUG_CONSOLE.store(u16::from(number) == DEBUG_CONSOLE, Ordering::Relaxed);
    GUEST.into_iter().chain([CONTROL]).for_each(Serial::set_up);
}

/// Lets the real COM4 interrupt when it has received something, and COM1 if it is a guest's.
pub(crate) fn enable_receive_interrupts(console_is_a_guests: bool) {
    CONSOLE.interrupt_on_receive(console_is_a_guests);
    CONTROL.interrupt_on_receive(true);
}

/// Sends one byte from the guest's COM1 (0) or COM2 (1).
pub(crate) fn guest_transmit(port: usize, byte: u8) {
    if let Some(port) = GUEST.get(port) {
        port.send(byte);
    }
}

pub(crate) fn send_control(byte: u8) {
    CONTROL.send(byte);
}

pub(crate) fn receive() -> Option<u8> {
    CONSOLE.receive()
}

pub(crate) fn receive_control() -> Option<u8> {
    CONTROL.receive()
}

pub(crate) fn log_byte(byte: u8) {
    if HAS_DEBUG_CONSOLE.load(Ordering::Relaxed) {
        // SAFETY: the debug console is there.
        unsafe { Port::new(DEBUG_CONSOLE).write(byte) };
    } else {
        CONSOLE.send(byte);
    }
}
