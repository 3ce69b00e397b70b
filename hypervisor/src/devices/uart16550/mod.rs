//! The guest's serial port: a 16550A (TI PC16550D data sheet, SNLS378).
//!
//! It transmits at once and has no bit rate. So the transmitter is always empty, and a byte in the
//! receive FIFO below the trigger level is always a character timeout.

#[cfg(test)]
mod tests;

use arrayvec::ArrayVec;
use migration::described;

/// Size of the receive FIFO in bytes.
pub const FIFO_LEN: usize = 16;

/// The effect of a register write.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[must_use]
pub enum Effect {
    /// Nothing.
    None,
    /// Send this byte out.
    Transmit(u8),
}

const IER_RX: u8 = 1 << 0;
const IER_THRE: u8 = 1 << 1;
const IER_LINE: u8 = 1 << 2;
const IER_MODEM: u8 = 1 << 3;

const IIR_NONE: u8 = 0x01;
const IIR_MODEM: u8 = 0x00;
const IIR_THRE: u8 = 0x02;
const IIR_RX: u8 = 0x04;
const IIR_LINE: u8 = 0x06;
const IIR_TIMEOUT: u8 = 0x0c;
const IIR_FIFOS: u8 = 0xc0;

const FCR_ENABLE: u8 = 1 << 0;
const FCR_CLEAR_RX: u8 = 1 << 1;

const LCR_DLAB: u8 = 1 << 7;

const MCR_DTR: u8 = 1 << 0;
const MCR_RTS: u8 = 1 << 1;
const MCR_OUT1: u8 = 1 << 2;
const MCR_OUT2: u8 = 1 << 3;
const MCR_LOOP: u8 = 1 << 4;

const LSR_DATA: u8 = 1 << 0;
const LSR_OVERRUN: u8 = 1 << 1;
/// Holding register and shift register empty.
const LSR_IDLE: u8 = 0x60;

const MSR_RI: u8 = 1 << 6;
/// Clear to send, data set ready, carrier detect: the other side is connected.
const MSR_CONNECTED: u8 = 0xb0;
/// The delta bits, cleared by reading.
const MSR_DELTAS: u8 = 0x0f;

/// One serial port.
#[derive(Clone, Debug)]
pub struct Uart16550 {
    rx: ArrayVec<u8, FIFO_LEN>,
    fifo_enabled: bool,
    /// Number of bytes in the FIFO for data available rather than a timeout.
    trigger: usize,
    /// The holding register became empty, or its interrupt was enabled, which IIR has not reported.
    thre_pending: bool,
    overrun: bool,
    divisor: [u8; 2],
    ier: u8,
    lcr: u8,
    mcr: u8,
    msr: u8,
    scratch: u8,
}

impl Default for Uart16550 {
    /// After reset.
    fn default() -> Self {
        Self {
            rx: ArrayVec::new_const(),
            fifo_enabled: false,
            trigger: 1,
            thre_pending: false,
            overrun: false,
            divisor: [12, 0],
            ier: 0,
            lcr: 0,
            mcr: 0,
            msr: MSR_CONNECTED,
            scratch: 0,
        }
    }
}

described! { Uart16550:
    rx (|rx, archive| archive.list(rx, FIFO_LEN)), fifo_enabled,
    trigger (|trigger, archive| archive.choice(trigger, &[1, 4, 8, 14])), thre_pending, overrun,
    divisor, ier & 0x0f, lcr, mcr & 0x1f, msr, scratch
}

impl Uart16550 {
    /// Reads the register at `offset` (0 to 7) from the base port. May lower the interrupt line.
    #[must_use]
    pub fn read(&mut self, offset: u16) -> u8 {
        match (offset, self.lcr & LCR_DLAB != 0) {
            (0 | 1, true) => self.divisor[usize::from(offset)],
            (0, false) => self.rx.pop_at(0).unwrap_or(0),
            (1, false) => self.ier,
            (2, _) => self.read_iir(),
            (3, _) => self.lcr,
            (4, _) => self.mcr,
            (5, _) => {
                let overrun = if core::mem::take(&mut self.overrun) { LSR_OVERRUN } else { 0 };
                LSR_IDLE | overrun | if self.rx.is_empty() { 0 } else { LSR_DATA }
            }
            (6, _) => {
                let msr = self.msr;
                self.msr &= !MSR_DELTAS;
                msr
            }
            (7, _) => self.scratch,
            _ => u8::MAX,
        }
    }

    /// Writes the register at `offset` from the base port. May raise or lower the interrupt line.
    pub fn write(&mut self, offset: u16, value: u8) -> Effect {
        match (offset, self.lcr & LCR_DLAB != 0) {
            (0 | 1, true) => self.divisor[usize::from(offset)] = value,
            (0, false) => return self.transmit(value),
            (1, false) => self.write_ier(value),
            (2, _) => self.write_fcr(value),
            (3, _) => self.lcr = value,
            (4, _) => self.write_mcr(value),
            (7, _) => self.scratch = value,
            // LSR and MSR are read-only.
            _ => {}
        }
        Effect::None
    }

    /// Receives a byte. `false` if it must be offered again later: the FIFO is full, or the
    /// receiver is disconnected by loopback. No byte is ever lost by overrun, because there is no
    /// bit rate.
    #[must_use]
    pub fn receive(&mut self, byte: u8) -> bool {
        let room = self.can_receive();
        if room {
            self.rx.push(byte);
        }
        room
    }

    /// Whether [`Self::receive`] would accept a byte.
    pub const fn can_receive(&self) -> bool {
        self.mcr & MCR_LOOP == 0 && self.rx.len() < self.capacity()
    }

    /// The level of the interrupt line. It is not gated by OUT2, as it is on PC boards.
    pub fn irq_level(&self) -> bool {
        self.cause() != IIR_NONE
    }

    const fn capacity(&self) -> usize {
        if self.fifo_enabled { FIFO_LEN } else { 1 }
    }

    /// The enabled interrupt of highest priority (data sheet table 4).
    const fn cause(&self) -> u8 {
        if self.ier & IER_LINE != 0 && self.overrun {
            IIR_LINE
        } else if self.ier & IER_RX != 0 && self.rx.len() >= self.trigger {
            IIR_RX
        } else if self.ier & IER_RX != 0 && !self.rx.is_empty() {
            IIR_TIMEOUT
        } else if self.ier & IER_THRE != 0 && self.thre_pending {
            IIR_THRE
        } else if self.ier & IER_MODEM != 0 && self.msr & MSR_DELTAS != 0 {
            IIR_MODEM
        } else {
            IIR_NONE
        }
    }

    fn read_iir(&mut self) -> u8 {
        let cause = self.cause();
        if cause == IIR_THRE {
            self.thre_pending = false;
        }
        cause | if self.fifo_enabled { IIR_FIFOS } else { 0 }
    }

    /// Enabling the transmitter's interrupt while it is empty raises it at once: drivers rely on
    /// this to start sending, and Linux tests for it.
    const fn write_ier(&mut self, value: u8) {
        let value = value & 0x0f;
        if (value ^ self.ier) & IER_THRE != 0 {
            self.thre_pending = value & IER_THRE != 0;
        }
        self.ier = value;
    }

    fn write_fcr(&mut self, value: u8) {
        let enable = value & FCR_ENABLE != 0;
        if enable != self.fifo_enabled || value & FCR_CLEAR_RX != 0 {
            self.rx.clear();
        }
        self.fifo_enabled = enable;
        self.trigger = match value >> 6 {
            _ if !enable => 1,
            0 => 1,
            1 => 4,
            2 => 8,
            _ => 14,
        };
    }

    /// Loopback wires the four outputs to the four inputs.
    fn write_mcr(&mut self, value: u8) {
        self.mcr = value & 0x1f;
        let inputs = if self.mcr & MCR_LOOP == 0 {
            MSR_CONNECTED
        } else {
            let wire = |output, shift: u32| if self.mcr & output != 0 { 1 << shift } else { 0 };
            wire(MCR_RTS, 4) | wire(MCR_DTR, 5) | wire(MCR_OUT1, 6) | wire(MCR_OUT2, 7)
        };
        let changed = (self.msr ^ inputs) & !MSR_DELTAS;
        // The ring indicator's delta is set by its trailing edge only.
        let ring = if inputs & MSR_RI == 0 { MSR_RI } else { 0 };
        self.msr = inputs | self.msr & MSR_DELTAS | (changed & (!MSR_RI | ring)) >> 4;
    }

    fn transmit(&mut self, byte: u8) -> Effect {
        self.thre_pending = true;
        if self.mcr & MCR_LOOP == 0 {
            return Effect::Transmit(byte);
        }
        if self.rx.len() < self.capacity() {
            self.rx.push(byte);
        } else {
            self.overrun = true;
        }
        Effect::None
    }
}
