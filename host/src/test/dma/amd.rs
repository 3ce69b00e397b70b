//! An emulated AMD-Vi keeps translations until it is told.

use super::board::{Board, Kind as Machine};
use super::edu::Edu;
use super::kept::{self, DEVICE, DOMAIN, Kind};
use super::ring::{ENTRIES, ORDER, Ring, RingIommu};
use crate::test::prelude::*;
use iommu::amd::Commands;
use iommu::amd::command::completion_wait;
use iommu::amd::registers::{
    CMD_BUF_EN, COMMAND_BASE, COMMAND_HEAD, COMMAND_TAIL, CONTROL, DEVICE_TABLE_BASE, IOMMU_EN, device_table,
    ring,
};
use iommu::amd::table::{DeviceEntry, NextLevel, PageEntry, page_bits};
use iommu::{Command, Port};
use std::ops::ControlFlow;
use std::rc::Rc;

/// Where QEMU has its registers.
const REGISTERS: u64 = 0xfed8_0000;

/// Places in memory: each is a page.
const DEVICE_TABLE: u64 = 0x10_0000;
const RING: u64 = 0x10_1000;
const REPORT: u64 = 0x10_3000;
/// The page table: one table of each level, the root first.
const ROOT: u64 = 0x10_4000;

/// Registers of the device.
const EDU: u32 = 0xe000_0000;

/// The IOMMU's side of the ring.
struct Registers(Ring);

impl Port for Registers {
    fn set_tail(&self, position: u64) {
        self.0.send(position);
        self.0.board.write(REGISTERS + COMMAND_TAIL, position % ENTRIES * 16);
    }

    fn head(&self) -> u32 {
        (self.0.board.read(REGISTERS + COMMAND_HEAD) / 16) as u32
    }

    fn sync(&self, position: u64) -> Command {
        completion_wait(REPORT, position).expect("the address is a multiple of 8")
    }

    fn reported(&self) -> Option<u64> {
        Some(self.0.board.read(REPORT))
    }

    fn relax(&self, turns: u64) -> ControlFlow<()> {
        self.0.relax(turns)
    }
}

struct Vi {
    told: RingIommu<Registers>,
    edu: Edu,
}

impl Vi {
    /// Starts a machine whose IOMMU is on, with a device that has no entry.
    fn start(directory: &Path) -> Result<Self> {
        let edu = format!("edu,addr={:#x}", DEVICE.0 >> 3);
        let board = Rc::new(Board::start(directory, Machine::Pc, &["amd-iommu,intremap=on,pt=off", &edu])?);
        let edu = Edu::attach(&board, DEVICE.0, EDU);
        let table = device_table(DEVICE_TABLE, 1).context("the device table is refused")?;
        let commands = ring(RING, ORDER).context("the ring is refused")?;
        for (register, value) in
            [(DEVICE_TABLE_BASE, table), (COMMAND_BASE, commands), (CONTROL, IOMMU_EN | CMD_BUF_EN)]
        {
            board.write(REGISTERS + register, value);
        }
        for (level, next) in [NextLevel::Three, NextLevel::Two, NextLevel::One].into_iter().enumerate() {
            let table = ROOT + 0x1000 * level as u64;
            let entry = (table + 0x1000) | page_bits(PageEntry::Table(next)) | 1;
            // All addresses lead to the same last table.
            (0..512).for_each(|index| board.write(table + 8 * index, entry));
        }
        board.check()?;
        Ok(Self { told: RingIommu::new(Ring::new(&board, RING), Registers), edu })
    }
}

impl Kind for Vi {
    type Port = Registers;
    type Commands = Commands;

    fn told(&self) -> &RingIommu<Registers> {
        &self.told
    }

    fn edu(&self) -> &Edu {
        &self.edu
    }

    fn commands(&self) -> &Commands {
        &Commands
    }

    /// The valid double word is written last, or first to block the device.
    fn set_entry(&self, is_blocked: bool) -> Result<()> {
        let entry = DeviceEntry::translated(ROOT, DOMAIN).context("the entry is refused")?;
        let (entry, order) =
            if is_blocked { (DeviceEntry::BLOCKED, [0, 1, 2, 3]) } else { (entry, [3, 2, 1, 0]) };
        for index in order {
            let address = DEVICE_TABLE + 32 * u64::from(DEVICE.0) + 8 * index as u64;
            self.told.board.write(address, entry.0[index]);
        }
        Ok(())
    }

    fn map(&self, page: u64, to: Option<(u64, bool)>) {
        let entry = to.map_or(0, |(page, is_writable)| page | page_bits(PageEntry::Leaf { is_writable }) | 1);
        self.told.board.write(ROOT + 0x3000 + 8 * (page >> 12 & 511), entry);
    }

    /// QEMU 7.2 never writes to the event log, for a mask that it takes for "the log has
    /// overflowed" is never 0 (`amdvi_test_mask`).
    fn refused(&self, _: usize) -> Result<()> {
        Ok(())
    }
}

pub(super) fn keeps_until_told(room: &Room<'_>) -> Result<()> {
    kept::keeps_until_told(&Vi::start(room.directory)?)
}
