//! AMD-Vi: the driver. Source: AMD I/O Virtualization Technology (IOMMU) Specification, 48882.
//!
//! All functions are blocked from the beginning: they neither reach memory nor interrupt. Those
//! that a guest owns are attached to its nested tables. Interrupts of the machine's I/O APICs pass:
//! the hypervisor uses them itself.

use alloc::vec::Vec;
use core::fmt;
use core::sync::atomic::{AtomicU64, Ordering};
use iommu::amd::command::{completion_wait, invalidate_all, invalidate_device, invalidate_interrupts};
use iommu::amd::ivrs::Unit;
use iommu::amd::table::{DeviceEntry, InterruptTable};
use iommu::amd::{Commands, Event, registers as register};
use iommu::scope::{Scope, is_machines_own, requester};
use iommu::{DeviceId, Queue, Stuck};
use spin::Mutex;
use stay::iommu::{Domain, nested as engine};

use super::remaps::{Forgotten, Rewritten};
use super::ring::{self, ENTRIES, Kind, Registers, Ring};
use crate::owned::NotAttached;
use crate::owned::tables::{self, address, words};
use crate::pages::Pages;

/// Entries of the event log are as many as those of the command ring: a page each.
const ORDER: u32 = 8;
/// Bytes of an entry of both.
const ENTRY_LEN: u64 = 16;
/// Words of an entry of the device table.
const WORDS: usize = 4;
const WORDS_PER_PAGE: usize = 512;
const BUSES_MAX: u16 = 256;
/// Bits of the control register that firmware chooses for the machine's links: HtTunEn, PassPW,
/// ResPassPW, Isoc.
const FIRMWARE_CONTROL: u64 = 1 << 1 | 1 << 8 | 1 << 9 | 1 << 11;

/// One IOMMU, in operation.
pub struct Iommu {
    queue: ring::Commands,
    table: &'static [AtomicU64],
    scopes: Vec<Scope>,
    /// Index of the next event. The lock is held while events are read.
    next_event: Mutex<usize>,
    events: &'static [AtomicU64],
}

/// The ring. The whole position is reported.
const KIND: Kind = Kind {
    head: register::COMMAND_HEAD,
    tail: register::COMMAND_TAIL,
    sync: completion_wait,
    reported: |word, _| word,
};

/// Why an IOMMU is not used.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NotStarted {
    /// It reads no commands.
    Stuck(Stuck),
    /// Its tables are where it cannot reach them.
    NoPlace,
}

impl fmt::Display for NotStarted {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Stuck(stuck) => stuck.fmt(f),
            Self::NoPlace => f.write_str("its tables are where it cannot reach them"),
        }
    }
}

impl Iommu {
    /// Puts an IOMMU into operation whose description is `unit`, with all functions of buses below
    /// `buses` blocked.
    ///
    /// # Errors
    ///
    /// [`NotStarted`].
    pub fn start(registers: &'static dyn Registers, unit: &Unit<'_>, buses: u16) -> Result<Self, NotStarted> {
        let scopes: Vec<Scope> = unit.scopes().collect();
        let buses = if buses == 0 { 1 } else { buses.min(BUSES_MAX) };
        let table = words(Pages::new(usize::from(buses) * 2));
        let (events, entries) = (words(Pages::new(1)), tables::ring(Pages::new(1)));
        let report = words(Pages::new(1)).first().ok_or(NotStarted::NoPlace)?;
        let control = registers.read(register::CONTROL) & FIRMWARE_CONTROL;
        registers.write(register::CONTROL, control);
        let pages = (table.len() / WORDS_PER_PAGE) as u64;
        for (register, base) in [
            (register::DEVICE_TABLE_BASE, register::device_table(address(table), pages)),
            (register::COMMAND_BASE, register::ring(address(entries), ORDER)),
            (register::EVENT_BASE, register::ring(address(events), ORDER)),
        ] {
            registers.write(register, base.ok_or(NotStarted::NoPlace)?);
        }
        for offset in
            [register::COMMAND_HEAD, register::COMMAND_TAIL, register::EVENT_HEAD, register::EVENT_TAIL]
        {
            registers.write(offset, 0);
        }
        registers.write(register::STATUS, register::EVENT_OVERFLOW | register::EVENT_LOG_INT);
        let queue = Queue::new(Ring::new(registers, &KIND, report), entries);
        let iommu = Self { queue, table, scopes, next_event: Mutex::new(0), events };
        for device in iommu.devices() {
            iommu.set(device, iommu.unowned(device));
        }
        let log = register::EVENT_LOG_EN | register::EVENT_INT_EN;
        let on = register::COHERENT | register::CMD_BUF_EN | log | register::IOMMU_EN;
        registers.write(register::CONTROL, control | on);
        let features = registers.read(register::EXTENDED_FEATURE);
        iommu.forget_all(features).map_err(NotStarted::Stuck)?;
        Ok(iommu)
    }

    /// The devices that its table has entries for.
    fn devices(&self) -> impl Iterator<Item = DeviceId> + use<> {
        (0..self.table.len() / WORDS).map(|device| DeviceId(device as u16))
    }

    /// Drops what the IOMMU may have kept from an earlier use: by firmware, or before a restart.
    fn forget_all(&self, features: u64) -> Result<(), Stuck> {
        if register::has_invalidate_all(features) {
            ring::demand(&self.queue, [invalidate_all()])
        } else {
            ring::demand(&self.queue, self.devices().map(invalidate_device))
        }
    }

    /// The id with which requests of a device reach this IOMMU; `None` if it is not behind it, or
    /// beyond its device table.
    pub fn requester(&self, device: DeviceId) -> Option<DeviceId> {
        requester(self.scopes.iter().copied(), device)
            .filter(|id| usize::from(id.0) < self.table.len() / WORDS)
    }

    /// Whether interrupts of the machine's I/O APICs or timers arrive with this id.
    pub fn is_machines_own(&self, id: DeviceId) -> bool {
        is_machines_own(self.scopes.iter().copied(), id)
    }

    fn unowned(&self, device: DeviceId) -> DeviceEntry {
        if self.is_machines_own(device) { DeviceEntry::INTERRUPTS_PASS } else { DeviceEntry::BLOCKED }
    }

    /// Lets a domain's devices, which are blocked, translate by a guest's tables, and
    /// interrupt by a table.
    ///
    /// # Errors
    ///
    /// [`NotAttached`].
    pub fn attach(
        &self,
        domain: &Domain<'_>,
        root: u64,
        interrupts: InterruptTable,
    ) -> Result<(), NotAttached> {
        let entry = DeviceEntry::translated(root, domain.id)
            .and_then(|entry| entry.with_interrupts(interrupts))
            .filter(|_| domain.devices.iter().all(|device| self.place(device.id).is_some()))
            .ok_or(NotAttached::NoPlace)?;
        Ok(engine::attach(&self.queue, &Commands, domain, |device| {
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
        engine::detach(&self.queue, &Commands, domain, |device| self.set(device.id, self.unowned(device.id)))
    }

    pub(crate) const fn queue(&self) -> &ring::Commands {
        &self.queue
    }

    /// An interrupt remapping table was changed, which belongs to this device.
    ///
    /// # Errors
    ///
    /// [`Stuck`] if the IOMMU does not go on: it may still use a former entry.
    pub fn interrupts_changed(&self, device: DeviceId, rewritten: Rewritten) -> Result<Forgotten, Stuck> {
        rewritten.forgotten(device, &self.queue, invalidate_interrupts(device))
    }

    /// Calls `report` with the events that were logged since the last call, at most as many as the
    /// log holds. Returns whether further events were lost because it was full.
    pub fn take_events(&self, mut report: impl FnMut(Event)) -> bool {
        let registers = self.queue.port().registers;
        let mut next = self.next_event.lock();
        // Before the tail is read: an event behind it interrupts again, which it does not while the
        // bit is set (3.4.10).
        registers.write(register::STATUS, register::EVENT_LOG_INT);
        let tail = (registers.read(register::EVENT_TAIL) / ENTRY_LEN) as usize % ENTRIES;
        while *next != tail {
            let (first, second) = (self.events.get(*next * 2), self.events.get(*next * 2 + 1));
            let (Some(first), Some(second)) = (first, second) else { break };
            // The tail may move before the entry is there. Pairs with the IOMMU's store.
            let first = first.swap(0, Ordering::Acquire);
            if first == 0 {
                break;
            }
            // Relaxed: it was there when the first word was.
            report(Event::decode([first, second.swap(0, Ordering::Relaxed)]));
            *next = (*next + 1) % ENTRIES;
            registers.write(register::EVENT_HEAD, *next as u64 * ENTRY_LEN);
        }
        let has_lost = registers.read(register::STATUS) & register::EVENT_OVERFLOW != 0;
        if has_lost {
            // The log goes on after it was off (3.4.5).
            let control = registers.read(register::CONTROL);
            registers.write(register::CONTROL, control & !register::EVENT_LOG_EN);
            // Relaxed: the log is off. What is left of it would be taken for a new entry.
            self.events.iter().for_each(|word| word.store(0, Ordering::Relaxed));
            *next = 0;
            registers.write(register::EVENT_HEAD, 0);
            registers.write(register::EVENT_TAIL, 0);
            registers.write(register::STATUS, register::EVENT_OVERFLOW | register::EVENT_LOG_INT);
            registers.write(register::CONTROL, control);
        }
        has_lost
    }

    /// The words of a device's entry.
    fn place(&self, device: DeviceId) -> Option<&'static [AtomicU64]> {
        self.table.get(usize::from(device.0) * WORDS..)?.get(..WORDS)
    }

    fn set(&self, device: DeviceId, entry: DeviceEntry) {
        let Some(place) = self.place(device) else { return };
        for index in order(entry) {
            if let (Some(word), Some(&value)) = (place.get(index), entry.0.get(index)) {
                // Release: the words before it are there. Pairs with the IOMMU's read.
                word.store(value, Ordering::Release);
            }
        }
    }
}

/// The order in which the words of an entry are written: a valid one appears by its first word,
/// which is written last, and a blocked one by the same word, written first.
pub(crate) const fn order(entry: DeviceEntry) -> [usize; WORDS] {
    if entry.is_translated() { [3, 2, 1, 0] } else { [0, 1, 2, 3] }
}
