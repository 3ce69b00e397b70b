//! Output of the hypervisor's own log, the real serial ports behind the guest's, the screen.
//!
//! The log goes to the debug console (port 0xe9) if there is one, otherwise to COM1, mixed with the
//! guest's output. The guest's COM1 and COM2 are emulated. Bytes that it sends go to the real port
//! of the same number, and bytes that the real COM1 receives go to the guest. The real COM4 is the
//! control channel.
//!
//! The screen, if the loader has left one, shows the log, and what one of the guests sends to its
//! COM1: F1 to F8 choose which. What is typed on the keyboard is for that guest.

use core::sync::atomic::{AtomicBool, Ordering};

use arrayvec::ArrayVec;
use baremetal::x86_64::keyboard::{self, Key};
use baremetal::x86_64::screen;
use baremetal::x86_64::serial::{CONSOLE, REPORTS, Serial};
use spin::Mutex;
use x86_64::instructions::port::Port;

use crate::image::panic;

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

/// Lets the real COM4 and the keyboard interrupt when they have received something, and COM1 if it
/// is a guest's.
pub(crate) fn enable_receive_interrupts(console_is_a_guests: bool) {
    CONSOLE.interrupt_on_receive(console_is_a_guests);
    CONTROL.interrupt_on_receive(true);
    if screen::size().is_some() && !keyboard::open(true) {
        log::info!("no keyboard");
    }
}

/// What was typed on the keyboard. What there is no room for is dropped.
static TYPED: Mutex<ArrayVec<u8, 64>> = Mutex::new(ArrayVec::new_const());

/// Takes what was typed. Returns the guest that a key has chosen, if one has.
pub(crate) fn chosen() -> Option<u32> {
    let mut chosen = None;
    keyboard::read(|key| match key {
        Key::Function(number) => chosen = Some(number),
        Key::Typed(text) => {
            // A full buffer is as it was.
            let _ = TYPED.lock().try_extend_from_slice(text.as_bytes());
        }
    });
    chosen
}

/// Shows text on the screen: behind what is there, or `alone`.
pub(crate) fn show(text: &mut dyn Iterator<Item = u8>, alone: bool) {
    match alone {
        true => screen::show(text),
        false => text.for_each(|byte| screen::write(&[byte])),
    }
}

/// Sends one byte from the guest's COM1 (0) or COM2 (1).
pub(crate) fn guest_transmit(port: usize, byte: u8) {
    if let Some(serial) = GUEST.get(port) {
        serial.send(byte);
    }
    if port == 0 {
        screen::write(&[byte]);
    }
}

pub(crate) fn send_control(byte: u8) {
    CONTROL.send(byte);
}

pub(crate) fn receive() -> Option<u8> {
    CONSOLE.receive().or_else(|| TYPED.lock().pop_at(0))
}

pub(crate) fn receive_control() -> Option<u8> {
    CONTROL.receive()
}

pub(crate) fn log_text(text: &str) {
    for byte in text.bytes() {
        if HAS_DEBUG_CONSOLE.load(Ordering::Relaxed) {
            // SAFETY: the debug console is there.
            unsafe { Port::new(DEBUG_CONSOLE).write(byte) };
        } else {
            CONSOLE.send(byte);
        }
    }
    if panic::has_panicked() {
        // SAFETY: the other CPUs were stopped, and this one does not return to what it was doing.
        unsafe { screen::take_over() };
    }
    screen::write(text.as_bytes());
}
