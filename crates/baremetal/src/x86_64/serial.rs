//! Serial ports: 16550s behind I/O ports.

use x86_64::instructions::port::Port;

use crate::uart16550::{Registers, Uart};

/// First port of COM1.
pub const COM1: u16 = 0x3f8;
/// First port of COM2.
pub const COM2: u16 = 0x2f8;

/// The port for a program's text.
// SAFETY: a serial port is there, or nothing is.
pub const CONSOLE: Serial = unsafe { Serial::at(COM1) };
/// The port for its reports to the host.
// SAFETY: as above.
pub const REPORTS: Serial = unsafe { Serial::at(COM2) };
/// What a hypervisor logs, as Xen does for a domain without serial port, and Bochs. It is one port:
/// where its line status would be, nothing is, so it takes each byte. It is not to be set up.
// SAFETY: as above.
pub const LOGGED: Serial = unsafe { Serial::at(0xe9) };

/// The first of a 16550's ports.
#[derive(Clone, Copy, Debug)]
pub struct Ports(u16);

impl Registers for Ports {
    fn read(self, register: u16) -> u8 {
        // SAFETY: `at`'s caller promises that there is a serial port, or nothing; nothing reads as
        // all ones.
        unsafe { Port::new(self.0 + register).read() }
    }

    fn write(self, register: u16, value: u8) {
        // SAFETY: `at`'s caller promises that there is a serial port, or nothing.
        unsafe { Port::new(self.0 + register).write(value) };
    }
}

/// A serial port.
pub type Serial = Uart<Ports>;

impl Serial {
    /// The serial port whose first I/O port is `port`.
    ///
    /// # Safety
    ///
    /// There is a 16550 that only the program uses, or nothing.
    pub const unsafe fn at(port: u16) -> Self {
        Uart(Ports(port))
    }

    /// Itself, or where it is not there, [`LOGGED`]: Xen's PVH domains have no serial port.
    pub fn or_logged(self) -> Self {
        if self.is_there() { self } else { LOGGED }
    }
}
