//! The serial port: a PL011 that is polled. DDI 0183, chapter 3.

use core::fmt::{self, Write};
use core::sync::atomic::{AtomicU64, Ordering};

/// Where QEMU's virt machine and Quell have it; the device tree may name another place.
static ADDRESS: AtomicU64 = AtomicU64::new(0x0900_0000);

/// Data register, flag register, line control, control, interrupt mask.
const DATA: u64 = 0x00;
const FLAGS: u64 = 0x18;
const LINE_CONTROL: u64 = 0x2c;
const CONTROL: u64 = 0x30;
const INTERRUPT_MASK: u64 = 0x38;

const RECEIVER_EMPTY: u32 = 1 << 4;
const TRANSMITTER_FULL: u32 = 1 << 5;
/// Words of 8 bits, FIFOs.
const LINE: u32 = 0x70;
/// Enabled, both directions.
const ENABLED: u32 = 0x301;
/// Reads of the flags before a byte is sent regardless.
const TRIES: u32 = 1 << 22;

/// Says where the PL011 is.
pub(super) fn set_address(address: u64) {
    ADDRESS.store(address, Ordering::Relaxed);
}

/// The PL011 that the device tree names first.
#[derive(Clone, Copy, Debug)]
pub struct Serial;

/// The port of a program's words.
pub const CONSOLE: Serial = Serial;
/// The port of its reports to the host: the same.
pub const REPORTS: Serial = Serial;

impl Serial {
    fn register(offset: u64) -> *mut u32 {
        (ADDRESS.load(Ordering::Relaxed) + offset) as *mut u32
    }

    fn read(offset: u64) -> u32 {
        // SAFETY: a PL011 is there, mapped as a device.
        unsafe { Self::register(offset).read_volatile() }
    }

    fn write(offset: u64, value: u32) {
        // SAFETY: a PL011 is there, mapped as a device; it has no DMA and raises no interrupts.
        unsafe { Self::register(offset).write_volatile(value) };
    }

    /// Enables the port, without interrupts and with its rate as it is.
    pub fn set_up(self) {
        Self::write(INTERRUPT_MASK, 0);
        Self::write(CONTROL, 0);
        Self::write(LINE_CONTROL, LINE);
        Self::write(CONTROL, ENABLED);
    }

    /// A byte that has come, if one has.
    pub fn receive(self) -> Option<u8> {
        (Self::read(FLAGS) & RECEIVER_EMPTY == 0).then(|| Self::read(DATA) as u8)
    }
}

impl Write for Serial {
    fn write_str(&mut self, text: &str) -> fmt::Result {
        for byte in text.bytes() {
            let _ = (0..TRIES).any(|_| Self::read(FLAGS) & TRANSMITTER_FULL == 0);
            Self::write(DATA, byte.into());
        }
        Ok(())
    }
}
