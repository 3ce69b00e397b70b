//! An emulated VT-d keeps translations until it is told, walks a processor's extended page tables,
//! and records what it refuses.

use super::board::{Board, Kind as Machine};
use super::edu::Edu;
use super::kept::{self, DEVICE, DOMAIN, Kind, TARGET};
use super::ring::{Ring, RingIommu};
use crate::test::prelude::*;
use iommu::vtd::command::{everything, invalidate_interrupts, position, wait};
use iommu::vtd::interrupt::{InterruptEntry, LocalApics, message_address};
use iommu::vtd::registers::{
    CAPABILITY, EXTENDED_CAPABILITY, GLOBAL_COMMAND, GLOBAL_STATUS, INTERRUPT_TABLE, QUEUE, QUEUE_ADDRESS,
    QUEUE_HEAD, QUEUE_TAIL, REMAPPING, ROOT_TABLE, SET_INTERRUPT_TABLE, SET_ROOT_TABLE, TRANSLATION, VERSION,
    interrupt_table,
};
use iommu::vtd::table::{ContextEntry, root_entry};
use iommu::vtd::{Capabilities, Commands, Fault, fault};
use iommu::{Command, DeviceId, Port};
use paging::{Ept, Format, Level, Permissions, PhysAddr};
use std::ops::ControlFlow;
use std::rc::Rc;

/// Where QEMU has its registers.
const REGISTERS: u64 = 0xfed9_0000;

/// Places in memory: each is a page.
const ROOTS: u64 = 0x10_0000;
const RING: u64 = 0x10_1000;
const CONTEXTS: u64 = 0x10_2000;
const REPORT: u64 = 0x10_3000;
/// The page table: one table of each level, the root first.
const ROOT: u64 = 0x10_4000;
const INTERRUPTS: u64 = 0x10_8000;
const INTERRUPTS_ORDER: u32 = 8;

/// Registers of the device.
const EDU: u32 = 0xe000_0000;

struct Registers(Ring);

impl Port for Registers {
    fn set_tail(&self, position: u64) {
        self.0.send(position);
        self.0.board.write(REGISTERS + QUEUE_TAIL, position % super::ring::ENTRIES * 16);
    }

    fn head(&self) -> u32 {
        (self.0.board.read(REGISTERS + QUEUE_HEAD) / 16) as u32
    }

    fn sync(&self, position: u64) -> Command {
        wait(REPORT, position as u32).expect("the address is a multiple of 4")
    }

    fn reported(&self) -> Option<u64> {
        Some(position(self.0.board.read(REPORT) as u32, 0))
    }

    fn relax(&self, turns: u64) -> ControlFlow<()> {
        self.0.relax(turns)
    }
}

struct Vtd {
    told: RingIommu<Registers>,
    edu: Edu,
    can: Capabilities,
}

impl Vtd {
    fn start(directory: &Path) -> Result<Self> {
        let edu = format!("edu,addr={:#x}", DEVICE.0 >> 3);
        let board = Board::start(directory, Machine::Pc, &["intel-iommu,intremap=on,aw-bits=48", &edu])?;
        let board = Rc::new(board);
        let edu = Edu::attach(&board, DEVICE.0, EDU);
        let words = [CAPABILITY, EXTENDED_CAPABILITY].map(|at| board.read(REGISTERS + at));
        let version = board.read_u32(REGISTERS + VERSION);
        let can =
            Capabilities::read(version, words, LocalApics::Xapic, true).map_err(|why| anyhow!("{why}"))?;
        board.write(ROOTS, root_entry(CONTEXTS).context("the entry is refused")?);
        for (level, of) in [Level::Page512G, Level::Page1G, Level::Page2M].into_iter().enumerate() {
            let table = ROOT + 0x1000 * level as u64;
            let entry = Ept::table(PhysAddr(table + 0x1000), of);
            // All addresses lead to the same last table.
            (0..512).for_each(|index| board.write(table + 8 * index, entry));
        }
        let mut command = 0;
        let mut switch = |bit| -> Result<()> {
            board.write_u32(REGISTERS + GLOBAL_COMMAND, command | bit);
            command |= bit & (QUEUE | REMAPPING | TRANSLATION);
            let status = board.read_u32(REGISTERS + GLOBAL_STATUS);
            ensure!(status & bit != 0, "command {bit:#x} is not carried out: {status:#x}");
            Ok(())
        };
        board.write(REGISTERS + QUEUE_ADDRESS, RING);
        switch(QUEUE)?;
        board.write(REGISTERS + ROOT_TABLE, ROOTS);
        switch(SET_ROOT_TABLE)?;
        let interrupts = interrupt_table(INTERRUPTS, INTERRUPTS_ORDER, LocalApics::Xapic)
            .context("the table is refused")?;
        board.write(REGISTERS + INTERRUPT_TABLE, interrupts);
        switch(SET_INTERRUPT_TABLE)?;
        switch(REMAPPING)?;
        switch(TRANSLATION)?;
        board.check()?;
        let told = RingIommu::new(Ring::new(&board, RING), Registers);
        told.wait_for(everything())?;
        Ok(Self { told, edu, can })
    }

    /// The fault that was recorded since the last call.
    fn fault(&self) -> Result<Option<Fault>> {
        let at = REGISTERS + self.can.faults.start;
        let found = Fault::decode([self.told.board.read(at), self.told.board.read(at + 8)]);
        self.told.board.write(at + 8, fault::HELD);
        self.told.board.check()?;
        Ok(found)
    }

    /// The device sends a message; returns the reason why it was refused.
    fn send(&self, address: u64) -> Result<Option<u8>> {
        self.edu.interrupt(address)?;
        Ok(self.fault()?.map(|fault| fault.reason))
    }
}

impl Kind for Vtd {
    type Port = Registers;
    type Commands = Commands;

    fn told(&self) -> &RingIommu<Registers> {
        &self.told
    }

    fn edu(&self) -> &Edu {
        &self.edu
    }

    fn commands(&self) -> &Commands {
        &self.can.commands
    }

    fn set_entry(&self, is_blocked: bool) -> Result<()> {
        let entry = ContextEntry::translated(ROOT, DOMAIN).context("the entry is refused")?;
        let (entry, order) = if is_blocked { (ContextEntry::BLOCKED, [0, 1]) } else { (entry, [1, 0]) };
        for index in order {
            let address = CONTEXTS + 16 * u64::from(DEVICE.0) + 8 * index as u64;
            self.told.board.write(address, entry.0[index]);
        }
        Ok(())
    }

    fn map(&self, page: u64, to: Option<(u64, bool)>) {
        let leaf = |(to, is_writable)| {
            let rights = if is_writable { Permissions::RWX } else { Permissions::RX };
            Ept::leaf(PhysAddr(to), Level::Page4K, rights)
        };
        self.told.board.write(ROOT + 0x3000 + 8 * (page >> 12 & 511), to.map_or(0, leaf));
    }

    /// There is one register, and QEMU does not record the same device's faults twice.
    fn refused(&self, count: usize) -> Result<()> {
        let found = self.fault()?;
        let expected = Fault { device: DEVICE, address: TARGET, is_write: true, reason: 5 };
        ensure!(found == (count > 0).then_some(expected), "it has recorded {found:?}");
        Ok(())
    }
}

pub(super) fn keeps_until_told(room: &Room<'_>) -> Result<()> {
    let vtd = Vtd::start(room.directory)?;
    kept::keeps_until_told(&vtd)?;
    let fault = vtd.fault()?.context("nothing is recorded of a device that is blocked")?;
    ensure!((fault.device, fault.reason) == (DEVICE, 2), "a device that is blocked: {fault:?}");

    // Interrupts: the device has entry 3.
    let set = |source| -> Result<()> {
        let InterruptEntry([first, second]) = InterruptEntry::fixed(LocalApics::Xapic, 0, 0x41, source);
        vtd.told.board.write(INTERRUPTS + 3 * 16 + 8, second);
        vtd.told.board.write(INTERRUPTS + 3 * 16, first);
        vtd.told.wait_for([invalidate_interrupts(0, 8, vtd.can.interrupts_order_max)])
    };
    let sent = |address, expected: Option<u8>, when: &str| -> Result<()> {
        let why = vtd.send(address)?;
        ensure!(why == expected, "{when}: {why:x?}");
        Ok(())
    };
    sent(message_address(3), Some(0x22), "an entry that is not there")?;
    // QEMU lets messages without a number pass, whatever the command says (`docs/qemu.md`).
    sent(message_address(256), Some(0x21), "an entry beyond the table")?;
    set(DeviceId(DEVICE.0 + 8))?;
    sent(message_address(3), Some(0x26), "an entry of another device")?;
    set(DEVICE)?;
    sent(message_address(3), None, "an entry of its own")
}
