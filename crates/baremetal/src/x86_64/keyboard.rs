//! The keyboard behind a PC's 8042. Firmware that drives USB keyboards often makes them look so.
//!
//! It may be absent: everything that waits has a bound.
//!
//! Source: IBM Personal System/2 Hardware Interface Technical Reference (1990), "Keyboard and
//! Auxiliary Device Controller".

use core::sync::atomic::{AtomicBool, Ordering};
use spin::Mutex;
use x86_64::instructions::port::Port;

pub use crate::keys::Key;
use crate::keys::Keys;

/// ISA interrupt of the keyboard.
pub const IRQ: usize = 1;

const DATA: u16 = 0x60;
/// Read: the status. Written: a command.
const STATUS: u16 = 0x64;

const OUTPUT_FULL: u8 = 1 << 0;
const INPUT_FULL: u8 = 1 << 1;
/// The byte is a mouse's.
const OF_MOUSE: u8 = 1 << 5;

const READ_CONFIGURATION: u8 = 0x20;
const WRITE_CONFIGURATION: u8 = 0x60;
const DISABLE_KEYBOARD: u8 = 0xad;
const ENABLE_KEYBOARD: u8 = 0xae;
/// Of the configuration: the keyboard interrupts, a mouse does, the keyboard's clock is off, its
/// codes are translated into set 1.
const INTERRUPTS: u8 = 1 << 0;
const MOUSE_INTERRUPTS: u8 = 1 << 1;
const CLOCK_OFF: u8 = 1 << 4;
const TRANSLATES: u8 = 1 << 6;

/// Reads of the status before the controller is given up: 100 ms or more.
const TRIES: u32 = 1 << 17;
/// The most bytes that are taken at once: more than controller and keyboard hold.
const BYTES_MAX: usize = 32;

static IS_THERE: AtomicBool = AtomicBool::new(false);
static KEYS: Mutex<Keys> = Mutex::new(Keys::new());

fn status() -> u8 {
    // SAFETY: reading the status, or where nothing is, changes nothing.
    unsafe { Port::new(STATUS).read() }
}

fn data() -> u8 {
    // SAFETY: takes a byte that nobody else wants.
    unsafe { Port::new(DATA).read() }
}

/// Whether the status has these bits, of which others may be set, within the time for it.
fn wait(mask: u8, value: u8) -> Option<()> {
    (0..TRIES).any(|_| status() & mask == value).then_some(())
}

fn write(port: u16, byte: u8) -> Option<()> {
    wait(INPUT_FULL, 0)?;
    // SAFETY: the controller takes a byte, and its state is this module's.
    unsafe { Port::new(port).write(byte) };
    Some(())
}

/// Finds the controller, and makes the keyboard send codes of set 1, with an interrupt for each if
/// `interrupts`. Returns whether it is there.
pub fn open(interrupts: bool) -> bool {
    // Nothing reads as all ones.
    let is_there = status() != 0xff && set_up(interrupts).is_some();
    IS_THERE.store(is_there, Ordering::Relaxed);
    is_there
}

fn set_up(interrupts: bool) -> Option<()> {
    write(STATUS, DISABLE_KEYBOARD)?;
    // What was typed before is for nobody.
    for _ in 0..BYTES_MAX {
        if status() & OUTPUT_FULL != 0 {
            data();
        }
    }
    write(STATUS, READ_CONFIGURATION)?;
    wait(OUTPUT_FULL, OUTPUT_FULL)?;
    let others = data() & !(INTERRUPTS | MOUSE_INTERRUPTS | CLOCK_OFF);
    write(STATUS, WRITE_CONFIGURATION)?;
    write(DATA, others | TRANSLATES | if interrupts { INTERRUPTS } else { 0 })?;
    write(STATUS, ENABLE_KEYBOARD)
}

/// Takes all that was typed since the last time.
pub fn read(mut take: impl FnMut(Key)) {
    if !IS_THERE.load(Ordering::Relaxed) {
        return;
    }
    let mut keys = KEYS.lock();
    for _ in 0..BYTES_MAX {
        let status = status();
        if status & OUTPUT_FULL == 0 {
            return;
        }
        let code = data();
        if status & OF_MOUSE == 0 {
            keys.take(code).into_iter().for_each(&mut take);
        }
    }
}
