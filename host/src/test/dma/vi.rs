//! AMD-Vi and the device behind it, on a [`Board`].

use super::board::Board;
use anyhow::{Result, ensure};
use iommu::amd::command::{DeviceId, completion_wait};
use iommu::amd::table::{DeviceEntry, NextLevel, PageEntry, page_bits};
use iommu::{Command, Entry, Port, Queue};
use std::cell::{Cell, RefCell};
use std::ops::ControlFlow;
use std::path::Path;
use std::rc::Rc;

/// Registers of AMD-Vi (48882, 3.4), where QEMU has them.
const REGISTERS: u64 = 0xfed8_0000;
const DEVICE_TABLE_BASE: u64 = REGISTERS;
const RING_BASE: u64 = REGISTERS + 0x08;
const CONTROL: u64 = REGISTERS + 0x18;
const RING_HEAD: u64 = REGISTERS + 0x2000;
const RING_TAIL: u64 = REGISTERS + 0x2008;
/// The IOMMU and its ring.
const ENABLED: u64 = 1 << 0 | 1 << 12;
/// Length of the ring: 256 entries.
const LENGTH: u64 = 8 << 56;
const ENTRIES: usize = 256;

/// Places in memory: each is a page.
const DEVICE_TABLE: u64 = 0x10_0000;
const RING: u64 = 0x10_1000;
const REPORT: u64 = 0x10_3000;
/// The page table: one table of each level, the root first.
pub(super) const ROOT: u64 = 0x10_4000;

/// Registers of the device, and its buffer.
const EDU: u64 = 0xe000_0000;
const FROM: u64 = EDU + 0x80;
const TO: u64 = EDU + 0x88;
const COUNT: u64 = EDU + 0x90;
const COMMAND: u64 = EDU + 0x98;
const BUFFER: u64 = 0x4_0000;
const START: u64 = 1 << 0;
const TO_MEMORY: u64 = 1 << 1;
/// How often its command register is read until the copy, of 0.1 s, is done.
const POLLS_MAX: u32 = 1_000_000;

/// The IOMMU's side of the ring.
struct Registers {
    board: Rc<RefCell<Board>>,
    entries: Rc<[Entry]>,
    /// Up to which position entries are in the machine's memory.
    sent: Cell<u64>,
}

impl Port for Registers {
    fn set_tail(&self, position: u64) {
        let mut board = self.board.borrow_mut();
        for position in self.sent.replace(position)..position {
            let index = position % ENTRIES as u64;
            let Command([low, high]) = self.entries[index as usize].load();
            board.write(RING + 16 * index, low);
            board.write(RING + 16 * index + 8, high);
        }
        board.write(RING_TAIL, position % ENTRIES as u64 * 16);
    }

    fn head(&self) -> u32 {
        (self.board.borrow_mut().read(RING_HEAD) / 16) as u32
    }

    fn sync(&self, position: u64) -> Command {
        completion_wait(REPORT, position).expect("the address is a multiple of 8")
    }

    fn reported(&self) -> Option<u64> {
        Some(self.board.borrow_mut().read(REPORT))
    }

    fn relax(&self, turns: u64) -> ControlFlow<()> {
        if turns > 10_000 || self.board.borrow().has_failed() {
            return ControlFlow::Break(());
        }
        ControlFlow::Continue(())
    }
}

/// The machine.
pub(super) struct Vi {
    board: Rc<RefCell<Board>>,
    queue: Queue<Registers, Rc<[Entry]>>,
}

impl Vi {
    /// Starts a machine whose IOMMU is on, with a device that has no entry.
    pub(super) fn start(directory: &Path, device: DeviceId) -> Result<Self> {
        let edu = format!("edu,addr={:#x}", device.0 >> 3);
        let mut board = Board::start(directory, &["amd-iommu,intremap=on", &edu])?;
        // Its registers, and memory accesses of and by it.
        board.configure(device.0, 0x10, EDU as u32);
        board.configure(device.0, 0x04, 6);
        board.write(DEVICE_TABLE_BASE, DEVICE_TABLE);
        board.write(RING_BASE, RING | LENGTH);
        board.write(CONTROL, ENABLED);
        for (level, next) in [NextLevel::Three, NextLevel::Two, NextLevel::One].into_iter().enumerate() {
            let table = ROOT + 0x1000 * level as u64;
            let entry = (table + 0x1000) | page_bits(PageEntry::Table(next)) | 1;
            // All addresses lead to the same last table.
            (0..512).for_each(|index| board.write(table + 8 * index, entry));
        }
        board.check()?;
        let board = Rc::new(RefCell::new(board));
        let entries: Rc<[Entry]> = (0..ENTRIES).map(|_| Entry::default()).collect();
        let port = Registers { board: board.clone(), entries: entries.clone(), sent: Cell::new(0) };
        Ok(Self { board, queue: Queue::new(port, entries) })
    }

    /// The first error that there was.
    pub(super) fn check(&self) -> Result<()> {
        self.board.borrow_mut().check()
    }

    pub(super) fn read(&self, address: u64) -> u64 {
        self.board.borrow_mut().read(address)
    }

    pub(super) fn write(&self, address: u64, value: u64) {
        self.board.borrow_mut().write(address, value);
    }

    /// Writes an entry of the device table, the double word that makes it valid last, or first if
    /// the device is to be blocked.
    pub(super) fn set_entry(&self, device: DeviceId, entry: DeviceEntry) {
        let order = if entry.is_translated() { [3, 2, 1, 0] } else { [0, 1, 2, 3] };
        for index in order {
            self.write(DEVICE_TABLE + 32 * u64::from(device.0) + 8 * index as u64, entry.0[index]);
        }
    }

    /// Maps a device-visible page to a page of memory, which it may write to or not; or unmaps it.
    pub(super) fn map(&self, page: u64, to: Option<(u64, bool)>) {
        let entry = to.map_or(0, |(page, is_writable)| page | page_bits(PageEntry::Leaf { is_writable }) | 1);
        self.write(ROOT + 0x3000 + 8 * (page >> 12 & 511), entry);
    }

    /// Puts commands in, and waits until they are complete.
    pub(super) fn wait_for(&self, commands: impl IntoIterator<Item = Command>) -> Result<()> {
        let done = self.queue.issue(commands).and_then(|ticket| self.queue.wait(ticket));
        self.check()?;
        Ok(done?)
    }

    /// The device reads 8 bytes into its buffer.
    pub(super) fn load(&self, from: u64) -> Result<()> {
        self.copy(from, BUFFER, 0)
    }

    /// The device writes them.
    pub(super) fn store(&self, to: u64) -> Result<()> {
        self.copy(BUFFER, to, TO_MEMORY)
    }

    fn copy(&self, from: u64, to: u64, direction: u64) -> Result<()> {
        for (register, value) in [(FROM, from), (TO, to), (COUNT, 8), (COMMAND, START | direction)] {
            self.write(register, value);
        }
        let is_done = (0..POLLS_MAX).any(|_| self.read(COMMAND) & START == 0);
        self.check()?;
        ensure!(is_done, "the device has not finished its copy");
        Ok(())
    }
}
