//! The guest's serial port on Arm64: a PrimeCell UART PL011 (TRM, DDI 0183), revision r1p1, like
//! QEMU's.
//!
//! It transmits at once and has no bit rate. So its transmit FIFO is always empty, and received
//! bytes below the trigger level have always timed out.

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

const DR: u32 = 0x000;
const RSR: u32 = 0x004;
const FR: u32 = 0x018;
const ILPR: u32 = 0x020;
const IBRD: u32 = 0x024;
const FBRD: u32 = 0x028;
const LCR_H: u32 = 0x02c;
const CR: u32 = 0x030;
const IFLS: u32 = 0x034;
const IMSC: u32 = 0x038;
const RIS: u32 = 0x03c;
const MIS: u32 = 0x040;
const ICR: u32 = 0x044;
const DMACR: u32 = 0x048;
const ID: u32 = 0xfe0;
const ID_END: u32 = 0x1000;

const FR_CTS: u32 = 1 << 0;
const FR_DSR: u32 = 1 << 1;
const FR_DCD: u32 = 1 << 2;
const FR_RXFE: u32 = 1 << 4;
const FR_RXFF: u32 = 1 << 6;
const FR_TXFE: u32 = 1 << 7;
const FR_RI: u32 = 1 << 8;

const LCR_FIFO: u32 = 1 << 4;

const CR_ENABLE: u32 = 1 << 0;
const CR_LOOP: u32 = 1 << 7;
const CR_TX: u32 = 1 << 8;
const CR_RX: u32 = 1 << 9;
const CR_DTR: u32 = 1 << 10;
const CR_RTS: u32 = 1 << 11;
const CR_OUT1: u32 = 1 << 12;
const CR_OUT2: u32 = 1 << 13;
/// Bits 6:3 are reserved.
const CR_MASK: u32 = 0xff87;

/// Received, received and timed out, transmitted, overrun: bits of IMSC, RIS, MIS and ICR.
const INT_RX: u32 = 1 << 4;
const INT_TX: u32 = 1 << 5;
const INT_TIMEOUT: u32 = 1 << 6;
const INT_OVERRUN: u32 = 1 << 10;
const INT_MODEM: u32 = 0x00f;
const INT_MASK: u32 = 0x7ff;

const DR_OVERRUN: u32 = 1 << 11;
const RSR_OVERRUN: u32 = 1 << 3;

/// PeriphID0 to 3 and PCellID0 to 3.
const IDENTIFICATION: [u8; 8] = [0x11, 0x10, 0x14, 0x00, 0x0d, 0xf0, 0x05, 0xb1];

/// One serial port.
#[derive(Clone, Debug)]
pub struct Pl011 {
    rx: ArrayVec<u8, FIFO_LEN>,
    /// A byte was lost; reported with the next one that is read.
    overrun: bool,
    rsr: u32,
    ilpr: u32,
    ibrd: u32,
    fbrd: u32,
    lcr_h: u32,
    cr: u32,
    ifls: u32,
    imsc: u32,
    /// Latched causes; receive and timeout follow the FIFO, see [`Self::causes`].
    ris: u32,
    /// Receive and timeout interrupts that ICR has cleared, until a byte is received or read.
    quiet: u32,
    dmacr: u32,
    modem: u32,
}

impl Default for Pl011 {
    /// After reset: transmitter and receiver are enabled, the UART is disabled.
    fn default() -> Self {
        Self {
            rx: ArrayVec::new_const(),
            overrun: false,
            rsr: 0,
            ilpr: 0,
            ibrd: 0,
            fbrd: 0,
            lcr_h: 0,
            cr: CR_TX | CR_RX,
            ifls: 0x12,
            imsc: 0,
            ris: 0,
            quiet: 0,
            dmacr: 0,
            modem: FR_CTS | FR_DSR | FR_DCD,
        }
    }
}

described! { Pl011:
    rx (|rx, archive| archive.list(rx, FIFO_LEN)), overrun, rsr & RSR_OVERRUN, ilpr & 0xff,
    ibrd & 0xffff, fbrd & 0x3f, lcr_h & 0xff, cr & CR_MASK, ifls & 0x3f, imsc & INT_MASK,
    ris & INT_MASK, quiet & (INT_RX | INT_TIMEOUT), dmacr & 7,
    modem & (FR_CTS | FR_DSR | FR_DCD | FR_RI)
}

impl Pl011 {
    /// Reads the register that holds the byte at `offset` in the page: an access of 1, 2 or 4 bytes
    /// to a register's start. Registers that do not exist read as 0. May lower the interrupt line.
    #[must_use]
    pub fn read(&mut self, offset: u32) -> u32 {
        match offset {
            DR => self.read_data(),
            RSR => self.rsr,
            FR => self.flags(),
            ILPR => self.ilpr,
            IBRD => self.ibrd,
            FBRD => self.fbrd,
            LCR_H => self.lcr_h,
            CR => self.cr,
            IFLS => self.ifls,
            IMSC => self.imsc,
            RIS => self.causes(),
            MIS => self.causes() & self.imsc,
            DMACR => self.dmacr,
            ID..ID_END if offset.is_multiple_of(4) => u32::from(IDENTIFICATION[((offset - ID) / 4) as usize]),
            _ => 0,
        }
    }

    /// Writes the register at `offset`. May raise or lower the interrupt line.
    pub fn write(&mut self, offset: u32, value: u32) -> Effect {
        match offset {
            DR => return self.transmit(value as u8),
            // A write of any value clears the errors.
            RSR => self.rsr = 0,
            ILPR => self.ilpr = value & 0xff,
            IBRD => self.ibrd = value & 0xffff,
            FBRD => self.fbrd = value & 0x3f,
            LCR_H => self.write_line_control(value & 0xff),
            CR => self.write_control(value & CR_MASK),
            IFLS => self.ifls = value & 0x3f,
            IMSC => self.imsc = value & INT_MASK,
            ICR => {
                self.ris &= !value;
                self.quiet |= value & (INT_RX | INT_TIMEOUT);
            }
            DMACR => self.dmacr = value & 7,
            _ => {}
        }
        Effect::None
    }

    /// Receives a byte. `false` if it must be offered again later: the FIFO is full, or the
    /// receiver is off or looped back to the transmitter. No byte is lost by overrun, because there
    /// is no bit rate.
    #[must_use]
    pub fn receive(&mut self, byte: u8) -> bool {
        let room = self.can_receive();
        if room {
            self.push(byte);
        }
        room
    }

    /// Whether [`Self::receive`] would accept a byte.
    pub const fn can_receive(&self) -> bool {
        self.cr & (CR_ENABLE | CR_RX | CR_LOOP) == CR_ENABLE | CR_RX && self.rx.len() < self.capacity()
    }

    /// The level of the interrupt line.
    pub fn irq_level(&self) -> bool {
        self.causes() & self.imsc != 0
    }

    const fn capacity(&self) -> usize {
        if self.lcr_h & LCR_FIFO != 0 { FIFO_LEN } else { 1 }
    }

    /// Number of bytes in the FIFO that raise the receive interrupt (UARTIFLS).
    const fn trigger(&self) -> usize {
        if self.lcr_h & LCR_FIFO == 0 {
            return 1;
        }
        match self.ifls >> 3 & 7 {
            0 => FIFO_LEN / 8,
            1 => FIFO_LEN / 4,
            2 => FIFO_LEN / 2,
            3 => FIFO_LEN / 4 * 3,
            _ => FIFO_LEN / 8 * 7,
        }
    }

    /// The raw interrupt status.
    fn causes(&self) -> u32 {
        let timeout = if self.rx.is_empty() { 0 } else { INT_TIMEOUT };
        let received = if self.rx.len() >= self.trigger() { INT_RX } else { 0 };
        self.ris | (timeout | received) & !self.quiet
    }

    fn flags(&self) -> u32 {
        let empty = if self.rx.is_empty() { FR_RXFE } else { 0 };
        let full = if self.rx.len() >= self.capacity() { FR_RXFF } else { 0 };
        FR_TXFE | self.modem | empty | full
    }

    fn read_data(&mut self) -> u32 {
        // A byte that is read restarts the timeout of the remaining ones.
        self.quiet &= if self.rx.len() > self.trigger() { !INT_TIMEOUT } else { !(INT_TIMEOUT | INT_RX) };
        let overrun = core::mem::take(&mut self.overrun);
        self.rsr = if overrun { RSR_OVERRUN } else { 0 };
        u32::from(self.rx.pop_at(0).unwrap_or(0)) | if overrun { DR_OVERRUN } else { 0 }
    }

    fn push(&mut self, byte: u8) {
        if self.rx.len() < self.capacity() {
            self.rx.push(byte);
            self.quiet = 0;
        } else {
            self.overrun = true;
            self.ris |= INT_OVERRUN;
        }
    }

    /// The transmit FIFO passes its trigger level with every byte, because it is empty at once. The
    /// interrupt is pending until it is cleared, but not before the first byte (TRM section 2.8).
    /// Early consoles write to a UART that they assume firmware has enabled: like QEMU's, it sends
    /// even when it is not enabled.
    fn transmit(&mut self, byte: u8) -> Effect {
        self.ris |= INT_TX;
        if self.cr & CR_LOOP == 0 {
            return Effect::Transmit(byte);
        }
        if self.cr & CR_RX != 0 {
            self.push(byte);
        }
        Effect::None
    }

    /// Turning the FIFOs on or off empties them.
    fn write_line_control(&mut self, value: u32) {
        if (value ^ self.lcr_h) & LCR_FIFO != 0 {
            self.rx.clear();
            self.quiet = 0;
        }
        self.lcr_h = value;
    }

    /// Loopback wires the outputs to the inputs (TRM section 3.3: RTS to CTS, DTR to DSR, OUT1 to
    /// DCD, OUT2 to RI).
    const fn write_control(&mut self, value: u32) {
        self.cr = value;
        let modem = if value & CR_LOOP == 0 {
            FR_CTS | FR_DSR | FR_DCD
        } else {
            let mut wired = if value & CR_RTS != 0 { FR_CTS } else { 0 };
            wired |= if value & CR_DTR != 0 { FR_DSR } else { 0 };
            wired |= if value & CR_OUT1 != 0 { FR_DCD } else { 0 };
            wired | if value & CR_OUT2 != 0 { FR_RI } else { 0 }
        };
        let changed = modem ^ self.modem;
        self.modem = modem;
        // Interrupts of RI, CTS, DCD, DSR are bits 0 to 3.
        let ring = (changed & FR_RI) >> 8;
        let cts = (changed & FR_CTS) << 1;
        let dcd = changed & FR_DCD;
        let dsr = (changed & FR_DSR) << 2;
        self.ris |= (ring | cts | dcd | dsr) & INT_MODEM;
    }
}
