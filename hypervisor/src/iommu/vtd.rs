//! VT-d: the driver. Source: Intel Virtualization Technology for Directed I/O, D51397.
//!
//! All functions are blocked from the beginning: they neither reach memory nor interrupt. Those
//! that a guest owns are attached to its extended page tables. Interrupts of the machine's I/O
//! APICs pass if the hypervisor has given them an entry: there is one table for all.

use alloc::vec::Vec;
use core::fmt;
use core::ops::Range;
use core::sync::atomic::{AtomicU64, Ordering};
use iommu::scope::{Scope, is_machines_own, requester};
use iommu::vtd::command::{everything, invalidate_interrupts, position, wait};
use iommu::vtd::interrupt::{InterruptEntry, LocalApics, redirection};
use iommu::vtd::table::{ContextEntry, root_entry};
use iommu::vtd::{Capabilities, Fault, Unusable, dmar, fault, registers as register};
use iommu::{Command, DeviceId, Queue, Stuck};
use pci::Message;
use spin::Mutex;
use stay::iommu::{Domain, nested};

use super::remaps::{Forgotten, Remaps, Rewritten};
use super::ring::{self, Commands, Kind, Registers, Ring, TURNS_MAX};
use crate::owned::NotAttached;
use crate::owned::tables::{address, words};
use crate::pages::Pages;

/// Bytes of an IOMMU's registers.
pub const REGISTERS_LEN: u64 = 0x1000;
/// Words of an entry of any of its tables.
const WORDS: usize = 2;
/// Interrupts of one function, and of the hypervisor itself: it has the first block.
const BLOCK_ORDER: u8 = 8;
const BLOCK: usize = 1 << BLOCK_ORDER;
/// Log2 of the entries of the interrupt remapping table: 63 functions.
const INTERRUPTS_ORDER: u32 = 14;
const BLOCKS: usize = 1 << (INTERRUPTS_ORDER - BLOCK_ORDER as u32);
const BUSES_MAX: usize = 256;
const _: () = assert!(BLOCK * WORDS * size_of::<u64>() == 4096);
/// Looks at the fault recording registers by one interrupt.
const LOOKS_MAX: u32 = 1 << 13;
/// What stays on when another bit changes.
const STAYS: u32 = register::TRANSLATION | register::QUEUE | register::REMAPPING | register::COMPATIBILITY;

/// The ring, which is called a queue. Half of a position is reported.
const KIND: Kind = Kind {
    head: register::QUEUE_HEAD,
    tail: register::QUEUE_TAIL,
    sync: |address, position| wait(address, position as u32),
    reported: |word, near| position(word as u32, near),
};

/// Registers, some of which have 32 bits.
pub trait HalfRegisters: Registers {
    /// Reads 4 bytes at an offset.
    fn read_half(&self, offset: u64) -> u32;
    /// Writes 4 bytes. The IOMMU finds everything that this CPU has written to memory before.
    fn write_half(&self, offset: u64, value: u32);
}

/// One IOMMU, in operation.
pub struct Iommu {
    registers: &'static dyn HalfRegisters,
    queue: Commands,
    can: Capabilities,
    /// One table for each bus.
    contexts: &'static [AtomicU64],
    scopes: Vec<Scope>,
    apics: LocalApics,
    interrupts: &'static [AtomicU64],
    /// The functions that have blocks of interrupts: from the second block on.
    blocks: Mutex<Vec<DeviceId>>,
    /// Held while faults are read.
    reading: Mutex<()>,
}

/// Why an IOMMU is not used.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NotStarted {
    /// It cannot do what is needed.
    Unusable(Unusable),
    /// It reads no descriptors.
    Stuck(Stuck),
    /// A part of it is not switched on or off: this bit of its global command.
    Silent(u32),
    /// Its tables are where it cannot reach them, or its registers where they are not mapped.
    NoPlace,
}

impl fmt::Display for NotStarted {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Unusable(why) => why.fmt(f),
            Self::Stuck(stuck) => stuck.fmt(f),
            Self::Silent(bit) => write!(f, "it does not answer command {bit:#x}"),
            Self::NoPlace => f.write_str("its tables or registers are where they cannot be reached"),
        }
    }
}

/// Switches a part on or off, or has a table taken, and waits until that is so (11.4.4).
fn switch(registers: &dyn HalfRegisters, bit: u32, is_on: bool) -> Result<(), NotStarted> {
    let status = || registers.read_half(register::GLOBAL_STATUS);
    let others = status() & STAYS & !bit;
    registers.write_half(register::GLOBAL_COMMAND, if is_on { others | bit } else { others });
    for _ in 0..TURNS_MAX {
        if (status() & bit != 0) == is_on {
            return Ok(());
        }
        core::hint::spin_loop();
    }
    Err(NotStarted::Silent(bit))
}

impl Iommu {
    /// Puts an IOMMU into operation whose description is `unit`, with all functions of buses below
    /// `buses` blocked. `is_emulated`: see [`Capabilities::read`].
    ///
    /// # Errors
    ///
    /// [`NotStarted`].
    pub fn start(
        registers: &'static dyn HalfRegisters,
        unit: dmar::Unit<'_>,
        buses: u16,
        apics: LocalApics,
        is_emulated: bool,
    ) -> Result<Self, NotStarted> {
        let version = registers.read_half(register::VERSION);
        let offered = [register::CAPABILITY, register::EXTENDED_CAPABILITY].map(|at| registers.read(at));
        let can = Capabilities::read(version, offered, apics, is_emulated).map_err(NotStarted::Unusable)?;
        let buses = if buses == 0 { 1 } else { usize::from(buses).min(BUSES_MAX) };
        let (contexts, roots) = (words(Pages::new(buses)), words(Pages::new(1)));
        for bus in 0..buses {
            let table = part(contexts, BLOCK, bus).ok_or(NotStarted::NoPlace)?;
            let entry = root_entry(address(table)).ok_or(NotStarted::NoPlace)?;
            // Relaxed: the IOMMU is told of the table later.
            roots.get(bus * WORDS).ok_or(NotStarted::NoPlace)?.store(entry, Ordering::Relaxed);
        }
        // A block is a page, as a bus's table is.
        let interrupts = words(Pages::new(BLOCKS));
        let named = register::interrupt_table(address(interrupts), INTERRUPTS_ORDER, apics);
        let named = named.filter(|_| can.faults.end <= REGISTERS_LEN).ok_or(NotStarted::NoPlace)?;
        let entries = crate::owned::tables::ring(Pages::new(1));
        let report = words(Pages::new(1)).first().ok_or(NotStarted::NoPlace)?;
        // What firmware, or the hypervisor before a restart, has left in use.
        registers.write_half(register::FAULT_CONTROL, register::MASKED);
        for bit in [register::TRANSLATION, register::REMAPPING, register::COMPATIBILITY, register::QUEUE] {
            switch(registers, bit, false)?;
        }
        registers.write(register::QUEUE_TAIL, 0);
        registers.write(register::QUEUE_ADDRESS, address(entries));
        switch(registers, register::QUEUE, true)?;
        registers.write(register::ROOT_TABLE, address(roots));
        switch(registers, register::SET_ROOT_TABLE, true)?;
        registers.write(register::INTERRUPT_TABLE, named);
        switch(registers, register::SET_INTERRUPT_TABLE, true)?;
        let queue = Queue::new(Ring::new(registers, &KIND, report), entries);
        ring::demand(&queue, everything()).map_err(NotStarted::Stuck)?;
        switch(registers, register::REMAPPING, true)?;
        switch(registers, register::TRANSLATION, true)?;
        if registers.read_half(register::PROTECTED_MEMORY) & register::PROTECTED != 0 {
            // Whoever reaches memory now is let by a table.
            registers.write_half(register::PROTECTED_MEMORY, 0);
        }
        let scopes = unit.scopes().collect();
        let (blocks, reading) = (Mutex::default(), Mutex::default());
        Ok(Self { registers, queue, can, contexts, scopes, apics, interrupts, blocks, reading })
    }

    /// Has faults interrupt by this message. It is not remapped.
    pub fn send_events(&self, Message { address, data }: Message) {
        let registers = self.registers;
        self.take_events(|_| ());
        registers.write_half(register::FAULT_DATA, data);
        registers.write_half(register::FAULT_ADDRESS, address as u32);
        registers.write_half(register::FAULT_UPPER_ADDRESS, (address >> 32) as u32);
        registers.write_half(register::FAULT_CONTROL, 0);
    }

    /// The id with which requests of a device reach this IOMMU; `None` if it is not behind it, or
    /// beyond its tables.
    pub fn requester(&self, device: DeviceId) -> Option<DeviceId> {
        requester(self.scopes.iter().copied(), device).filter(|&id| self.place(id).is_some())
    }

    /// Whether interrupts of the machine's I/O APICs or timers arrive with this id.
    pub fn is_machines_own(&self, id: DeviceId) -> bool {
        is_machines_own(self.scopes.iter().copied(), id)
    }

    /// Lets a domain's devices, which are blocked, translate by a guest's tables.
    ///
    /// # Errors
    ///
    /// [`NotAttached`].
    pub fn attach(&self, domain: &Domain<'_>, root: u64) -> Result<(), NotAttached> {
        let entry = ContextEntry::translated(root, domain.id)
            .filter(|_| domain.devices.iter().all(|device| self.place(device.id).is_some()))
            .ok_or(NotAttached::NoPlace)?;
        Ok(nested::attach(&self.queue, self.commands(), domain, |device| {
            let has_ats = device.ats.is_some();
            self.set(device.id, if has_ats { entry.with_ats() } else { entry });
        })?)
    }

    /// Blocks devices, and drops all that is kept of their translations. Afterwards nothing of the
    /// guest's tables or memory is used by them.
    ///
    /// # Errors
    ///
    /// [`Stuck`] if the IOMMU does not go on. Nothing may be freed then.
    pub fn detach(&self, domain: &Domain<'_>) -> Result<(), Stuck> {
        nested::detach(&self.queue, self.commands(), domain, |device| {
            self.set(device.id, ContextEntry::BLOCKED);
        })
    }

    pub(super) const fn queue(&self) -> &Commands {
        &self.queue
    }

    pub(super) const fn commands(&self) -> &iommu::vtd::Commands {
        &self.can.commands
    }

    /// The interrupts of a function; none if the table has no place left.
    pub(super) fn remaps(&self, device: DeviceId) -> Remaps {
        let mut blocks = self.blocks.lock();
        let known = blocks.iter().position(|&known| known == device);
        let block = known.unwrap_or(blocks.len()) + 1;
        let Some(words) = self.block(block) else { return Remaps::Nowhere };
        if known.is_none() {
            blocks.push(device);
        }
        let first = (block << BLOCK_ORDER) as u16;
        Remaps::Block { words, first, source: device, apics: self.apics }
    }

    fn block(&self, block: usize) -> Option<&'static [AtomicU64]> {
        part(self.interrupts, BLOCK, block)
    }

    /// The interrupts of a function were changed.
    ///
    /// # Errors
    ///
    /// [`Stuck`] if the IOMMU does not go on: it may still use a former entry.
    pub fn interrupts_changed(&self, device: DeviceId, rewritten: Rewritten) -> Result<Forgotten, Stuck> {
        let known = self.blocks.lock().iter().position(|&known| known == device);
        rewritten.forgotten(device, &self.queue, self.invalidate(known.map_or(0, |block| block + 1)))
    }

    fn invalidate(&self, block: usize) -> Command {
        invalidate_interrupts((block << BLOCK_ORDER) as u16, BLOCK_ORDER, self.can.interrupts_order_max)
    }

    /// What a pin of the I/O APIC with this number is to have, so that it interrupts a CPU. `None`
    /// if it is not behind this IOMMU, or nothing goes on.
    pub fn route_pin(&self, io_apic: u8, to: u8, vector: u8) -> Option<u64> {
        let source = self.scopes.iter().find_map(|scope| match *scope {
            Scope::IoApic { device, number } if number == io_apic => Some(device),
            _ => None,
        })?;
        // Each vector has an entry: nobody else has it.
        let index = u16::from(vector);
        let place = part(self.interrupts, 1, index.into())?;
        put(place, InterruptEntry::fixed(self.apics, to, vector, source).0, [1, 0]);
        ring::demand(&self.queue, [self.invalidate(0)]).ok()?;
        Some(redirection(index, vector))
    }

    /// Calls `report` with the faults that were recorded since the last call, up to a limit.
    /// Returns whether further ones were lost because there was no register left.
    pub fn take_events(&self, mut report: impl FnMut(Fault)) -> bool {
        let registers = self.registers;
        let _held = self.reading.lock();
        let status = || registers.read_half(register::FAULT_STATUS);
        for _ in 0..LOOKS_MAX {
            if status() & register::FAULT_PENDING == 0 {
                break;
            }
            let Range { start, end } = self.can.faults;
            for at in (0..(end - start) / 16).map(|fault| start + fault * 16) {
                if let Some(fault) = Fault::decode([registers.read(at), registers.read(at + 8)]) {
                    report(fault);
                    registers.write(at + 8, fault::HELD);
                }
            }
        }
        // After the registers are empty: while this is set nothing is recorded, and nothing
        // interrupts. What comes next does both.
        let has_lost = status() & register::FAULT_OVERFLOW != 0;
        if has_lost {
            registers.write_half(register::FAULT_STATUS, register::FAULT_OVERFLOW);
        }
        has_lost
    }

    /// The words of a device's entry.
    fn place(&self, device: DeviceId) -> Option<&'static [AtomicU64]> {
        part(self.contexts, 1, device.0.into())
    }

    fn set(&self, device: DeviceId, entry: ContextEntry) {
        if let Some(place) = self.place(device) {
            put(place, entry.0, order(entry));
        }
    }
}

/// The words of one of the parts of a table, which have so many entries each.
pub(super) fn part(table: &[AtomicU64], entries: usize, number: usize) -> Option<&[AtomicU64]> {
    let len = entries * WORDS;
    table.get(number * len..)?.get(..len)
}

/// The order in which the words of a device's entry are written: the first one makes it present, or
/// blocks it.
pub(crate) const fn order(entry: ContextEntry) -> [usize; WORDS] {
    if entry.is_translated() { [1, 0] } else { [0, 1] }
}

/// Writes the words of an entry in an order.
pub(super) fn put(place: &[AtomicU64], entry: [u64; WORDS], order: [usize; WORDS]) {
    for index in order {
        if let (Some(word), Some(&value)) = (place.get(index), entry.get(index)) {
            // Release: the word before it is there. Pairs with the IOMMU's read.
            word.store(value, Ordering::Release);
        }
    }
}
