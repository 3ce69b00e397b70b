//! Serial ports: 16550s that are polled.

use core::fmt::{self, Write};

use x86_64::instructions::port::Port;

/// First port of COM1.
pub const COM1: u16 = 0x3f8;
/// First port of COM2.
pub const COM2: u16 = 0x2f8;

const INTERRUPTS: u16 = 1;
const FIFO: u16 = 2;
const LINE_CONTROL: u16 = 3;
const MODEM_CONTROL: u16 = 4;
const LINE_STATUS: u16 = 5;
const DATA_READY: u8 = 1 << 0;
const TRANSMITTER_EMPTY: u8 = 1 << 5;
/// Reads of the line status before a byte is sent regardless.
const TRIES: u32 = 1 << 22;

/// The port of a program's words.
pub const CONSOLE: Serial = Serial(COM1);
/// The port of its reports to the host.
pub const REPORTS: Serial = Serial(COM2);

/// A serial port by the first of its ports.
#[derive(Clone, Copy, Debug)]
pub struct Serial(pub u16);

impl Serial {
    /// Sets the port to 115,200 baud, 8 bits, no parity, without interrupts.
    pub fn set_up(self) {
        // Divisor 1 while the divisor's latch is open.
        let writes = [
            (INTERRUPTS, 0),
            (LINE_CONTROL, 0x80),
            (0, 1),
            (INTERRUPTS, 0),
            (LINE_CONTROL, 3),
            (FIFO, 7),
            (MODEM_CONTROL, 3),
        ];
        for (register, value) in writes {
            // SAFETY: a serial port is there, or nothing is.
            unsafe { Port::<u8>::new(self.0 + register).write(value) };
        }
    }

    /// A byte that has come, if one has.
    pub fn receive(self) -> Option<u8> {
        // SAFETY: a serial port is there, or nothing is, which then reads as all ones: a status that no port has.
        unsafe {
            let status = Port::<u8>::new(self.0 + LINE_STATUS).read();
            (status != 0xff && status & DATA_READY != 0).then(|| Port::new(self.0).read())
        }
    }
}

impl Write for Serial {
    fn write_str(&mut self, text: &str) -> fmt::Result {
        for byte in text.bytes() {
            // SAFETY: a serial port is there, or nothing is, which then reads as empty.
            unsafe {
                let mut status = Port::<u8>::new(self.0 + LINE_STATUS);
                let _ = (0..TRIES).any(|_| status.read() & TRANSMITTER_EMPTY != 0);
                Port::new(self.0).write(byte);
            }
        }
        Ok(())
    }
}
