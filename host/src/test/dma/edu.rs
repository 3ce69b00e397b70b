//! QEMU's device for teaching (docs/specs/edu.txt of QEMU 7.2): it copies bytes between memory and
//! a buffer of its own. It addresses 28 bits unless it is given another mask.

use super::board::Board;
use crate::test::prelude::*;
use std::rc::Rc;

/// Its registers.
const FROM: u64 = 0x80;
const TO: u64 = 0x88;
const COUNT: u64 = 0x90;
const COMMAND: u64 = 0x98;
/// Interrupts: raised, and acknowledged.
const RAISE: u64 = 0x60;
const LOWER: u64 = 0x64;
/// Its buffer, by the device's own addresses.
const BUFFER: u64 = 0x4_0000;
/// Commands.
const START: u64 = 1 << 0;
const TO_MEMORY: u64 = 1 << 1;
/// How often its command register is read until the copy, of 0.1 s of the machine's time, is done.
const POLLS_MAX: u32 = 1_000_000;

/// PCI: the command register, with memory accesses of and by the device; the first base address.
const PCI_COMMAND: u8 = 0x04;
const PCI_MEMORY_AND_MASTER: u32 = 0b110;
const PCI_BASE: u8 = 0x10;
/// Its capability of messages, with 64 bits of an address.
const MSI: u8 = 0x40;

pub(super) struct Edu {
    board: Rc<Board>,
    function: u16,
    registers: u64,
}

impl Edu {
    /// Puts the registers of a function on bus 0 at an address, and lets it access memory.
    pub(super) fn attach(board: &Rc<Board>, function: u16, registers: u32) -> Self {
        board.configure(function, PCI_BASE, registers);
        board.configure(function, PCI_COMMAND, PCI_MEMORY_AND_MASTER);
        Self { board: board.clone(), function, registers: registers.into() }
    }

    /// It reads 8 bytes into its buffer.
    pub(super) fn load(&self, from: u64) -> Result<()> {
        self.copy(from, BUFFER, 0)
    }

    pub(super) fn store(&self, to: u64) -> Result<()> {
        self.copy(BUFFER, to, TO_MEMORY)
    }

    /// It sends a message to this address, by MSI (PCI 3.0, 6.8.1), whose data are 0.
    pub(super) fn interrupt(&self, address: u64) -> Result<()> {
        let enabled = 1 << 16;
        for (register, value) in [(0, enabled), (4, address as u32), (8, (address >> 32) as u32), (12, 0)] {
            self.board.configure(self.function, MSI + register, value);
        }
        self.board.write_u32(self.registers + RAISE, 1);
        self.board.write_u32(self.registers + LOWER, 1);
        self.board.check()
    }

    fn copy(&self, from: u64, to: u64, direction: u64) -> Result<()> {
        for (register, value) in [(FROM, from), (TO, to), (COUNT, 8), (COMMAND, START | direction)] {
            self.board.write(self.registers + register, value);
        }
        let is_done = (0..POLLS_MAX).any(|_| self.board.read(self.registers + COMMAND) & START == 0);
        self.board.check()?;
        ensure!(is_done, "the device has not finished its copy");
        Ok(())
    }
}
