//! Serial ports: a PL011 that is polled (DDI 0183, chapter 3), and 16550s in memory.

use core::fmt::{self, Write};
use core::sync::atomic::{AtomicU64, Ordering};

use crate::uart16550::Registers;

/// The address on QEMU's virt machine and on Quell; the device tree may name another.
static ADDRESS: AtomicU64 = AtomicU64::new(0x0900_0000);

/// Data register, flag register, line control, control, interrupt mask, interrupt clear.
const DATA: u64 = 0x00;
const FLAGS: u64 = 0x18;
const LINE_CONTROL: u64 = 0x2c;
const CONTROL: u64 = 0x30;
const INTERRUPT_MASK: u64 = 0x38;
const INTERRUPT_CLEAR: u64 = 0x44;

const RECEIVER_EMPTY: u32 = 1 << 4;
const TRANSMITTER_FULL: u32 = 1 << 5;
/// Words of 8 bits, FIFOs on.
const LINE: u32 = 0x70;
/// Enabled, both directions.
const ENABLED: u32 = 0x301;
const ALL_INTERRUPTS: u32 = 0x7ff;
/// Receive, and receive timeout.
const RECEIVE_INTERRUPTS: u32 = 1 << 4 | 1 << 6;
/// Reads of the flags before a byte is dropped: a stuck port blocks no caller forever.
const TRIES: u32 = 1 << 16;
/// The same for text: a program has nothing else to do, and the reader may be slow.
const TRIES_FOR_TEXT: u32 = 1 << 22;

/// Sets the address of the PL011 of [`CONSOLE`].
pub(super) fn set_address(address: u64) {
    ADDRESS.store(address, Ordering::Relaxed);
}

/// A PL011 by its register page, mapped as a device.
#[derive(Clone, Copy, Debug)]
pub struct Pl011(u64);

impl Pl011 {
    /// The PL011 at `address`.
    ///
    /// # Safety
    ///
    /// It is there, mapped as a device, and used only by the program.
    pub const unsafe fn at(address: u64) -> Self {
        Self(address)
    }

    fn read(self, offset: u64) -> u32 {
        // SAFETY: `at`'s caller vouches for it.
        unsafe { ((self.0 + offset) as *const u32).read_volatile() }
    }

    fn write(self, offset: u64, value: u32) {
        // SAFETY: `at`'s caller vouches for it; a PL011's registers reach nothing but the serial
        // line.
        unsafe { ((self.0 + offset) as *mut u32).write_volatile(value) };
    }

    /// Enables the port, without interrupts and with its current rate.
    pub fn set_up(self) {
        self.write(INTERRUPT_MASK, 0);
        self.write(INTERRUPT_CLEAR, ALL_INTERRUPTS);
        self.write(CONTROL, 0);
        self.write(LINE_CONTROL, LINE);
        self.write(CONTROL, ENABLED);
    }

    /// Enables the port's receive interrupt.
    pub fn interrupt_on_receive(self) {
        self.write(INTERRUPT_MASK, RECEIVE_INTERRUPTS);
    }

    /// A received byte, if there is one.
    pub fn receive(self) -> Option<u8> {
        (self.read(FLAGS) & RECEIVER_EMPTY == 0).then(|| self.read(DATA) as u8)
    }

    /// Sends a byte, unless the port is stuck.
    pub fn send(self, byte: u8) {
        self.send_within(TRIES, byte);
    }

    fn send_within(self, tries: u32, byte: u8) {
        if (0..tries).any(|_| self.read(FLAGS) & TRANSMITTER_FULL == 0) {
            self.write(DATA, byte.into());
        }
    }
}

/// The first PL011 in the device tree.
#[derive(Clone, Copy, Debug)]
pub struct Serial;

/// The port for a program's text.
pub const CONSOLE: Serial = Serial;
/// The port for its reports to the host: the same.
pub const REPORTS: Serial = Serial;

impl Serial {
    /// Itself: it is always there.
    pub const fn or_logged(self) -> Self {
        self
    }

    fn port(self) -> Pl011 {
        Pl011(ADDRESS.load(Ordering::Relaxed))
    }

    /// Enables the port, without interrupts and with its current rate.
    pub fn set_up(self) {
        self.port().set_up();
    }

    /// A received byte, if there is one.
    pub fn receive(self) -> Option<u8> {
        self.port().receive()
    }
}

impl Write for Serial {
    fn write_str(&mut self, text: &str) -> fmt::Result {
        text.bytes().for_each(|byte| self.port().send_within(TRIES_FOR_TEXT, byte));
        Ok(())
    }
}

/// The address of a 16550's registers, which are adjacent.
#[derive(Clone, Copy, Debug)]
pub struct Mapped(u64);

impl Mapped {
    /// The registers at `address`.
    ///
    /// # Safety
    ///
    /// They are there, mapped as a device, and used only by the program.
    pub const unsafe fn at(address: u64) -> Self {
        Self(address)
    }
}

impl Registers for Mapped {
    fn read(self, register: u16) -> u8 {
        // SAFETY: `at`'s caller vouches for it.
        unsafe { ((self.0 + u64::from(register)) as *const u8).read_volatile() }
    }

    fn write(self, register: u16, value: u8) {
        // SAFETY: `at`'s caller vouches for it; a 16550's registers reach nothing but the serial
        // line.
        unsafe { ((self.0 + u64::from(register)) as *mut u8).write_volatile(value) };
    }
}
