//! AMD-Vi: the driver. Source: AMD I/O Virtualization Technology (IOMMU) Specification, 48882.
//!
//! All functions are blocked from the beginning: they neither reach memory nor interrupt. Those
//! that a guest owns are attached to its nested tables. Interrupts of the machine's I/O APICs pass:
//! the hypervisor uses them itself.

use alloc::vec::Vec;
use core::fmt;
use core::ops::ControlFlow;
use core::sync::atomic::{AtomicU64, Ordering};
use hostlink::defect::Defect;
use iommu::amd::command::{completion_wait, invalidate_all, invalidate_device, invalidate_interrupts};
use iommu::amd::ivrs::{self, Scope, Unit};
use iommu::amd::table::{DeviceEntry, InterruptTable};
use iommu::amd::{Event, registers as register};
use iommu::{Command, DeviceId, Entry, Port, Queue, Stuck};
use spin::Mutex;
use stay::iommu::{Device, Domain, amd_vi as engine};
use stay::{Mistake, Mistakes};

use super::remaps::Rewritten;
use crate::owned::tables::{address, ring, words};
use crate::owned::{NotAttached, Translations};
use crate::pages::Pages;
use crate::vm::defects::makes;

/// Entries of the command ring, and of the event log: a page each.
const ENTRIES: usize = 256;
const ORDER: u32 = 8;
/// Bytes of an entry of both.
const ENTRY_LEN: u64 = 16;
/// Words of an entry of the device table.
const WORDS: usize = 4;
const WORDS_PER_PAGE: usize = 512;
const BUSES_MAX: u16 = 256;
/// Turns of waiting for the IOMMU. A completion takes microseconds; this is seconds.
const TURNS_MAX: u64 = if cfg!(test) { 1 << 10 } else { 1 << 28 };
/// Bits of the control register that firmware chooses for the machine's links: HtTunEn, PassPW,
/// ResPassPW, Isoc.
const FIRMWARE_CONTROL: u64 = 1 << 1 | 1 << 8 | 1 << 9 | 1 << 11;

/// The registers of one IOMMU.
pub trait Registers: Sync {
    /// Reads 8 bytes at an offset.
    fn read(&self, offset: u64) -> u64;
    /// Writes 8 bytes. The IOMMU finds everything that this CPU has written to memory before.
    fn write(&self, offset: u64, value: u64);
}

/// One IOMMU, in operation.
pub struct Iommu {
    queue: Queue<Ring, &'static [Entry]>,
    table: &'static [AtomicU64],
    scopes: Vec<Scope>,
    /// Index of the next event. The lock is held while events are read.
    next_event: Mutex<usize>,
    events: &'static [AtomicU64],
}

/// The proof that an IOMMU uses no interrupt of a device that is not in its table any more.
/// [`Iommu::interrupts_changed`] alone makes it, so vectors are not freed before:
///
/// ```compile_fail,E0603
/// let proof = hypervisor::iommu::amd_vi::Forgotten(iommu::DeviceId(8));
/// ```
#[derive(Debug)]
pub struct Forgotten(DeviceId);

impl Forgotten {
    /// The device.
    pub const fn device(&self) -> DeviceId {
        self.0
    }

    #[cfg(test)]
    pub(crate) const fn made(device: DeviceId) -> Self {
        Self(device)
    }
}

/// The IOMMU's side of the command ring.
pub(crate) struct Ring {
    registers: &'static dyn Registers,
    /// Where it reports, and from where.
    report: &'static AtomicU64,
}

impl Port for Ring {
    fn set_tail(&self, position: u64) {
        let offset = position % ENTRIES as u64 * ENTRY_LEN;
        self.registers.write(register::COMMAND_TAIL, offset);
    }

    fn head(&self) -> u32 {
        (self.registers.read(register::COMMAND_HEAD) / ENTRY_LEN) as u32
    }

    fn sync(&self, position: u64) -> Command {
        let address = core::ptr::from_ref(self.report).expose_provenance() as u64;
        completion_wait(address, position).unwrap_or(Command([0; 2]))
    }

    fn reported(&self) -> Option<u64> {
        // Pairs with the IOMMU's store.
        Some(self.report.load(Ordering::Acquire))
    }

    fn relax(&self, turns: u64) -> ControlFlow<()> {
        core::hint::spin_loop();
        if turns < TURNS_MAX { ControlFlow::Continue(()) } else { ControlFlow::Break(()) }
    }
}

impl Mistakes for Ring {
    fn makes(&self, mistake: Mistake) -> bool {
        mistake == Mistake::WrongDomain && makes(Defect::DmaWrongDomain)
    }
}

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
        let (events, entries) = (words(Pages::new(1)), ring(Pages::new(1)));
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
        let queue = Queue::new(Ring { registers, report }, entries);
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
        let ticket = if register::has_invalidate_all(features) {
            self.queue.issue([invalidate_all()])?
        } else {
            self.queue.issue(self.devices().map(invalidate_device))?
        };
        self.queue.wait(ticket)
    }

    /// The id with which requests of a device reach this IOMMU; `None` if it is not behind it, or
    /// beyond its device table.
    pub fn requester(&self, device: DeviceId) -> Option<DeviceId> {
        ivrs::requester(self.scopes.iter().copied(), device)
            .filter(|id| usize::from(id.0) < self.table.len() / WORDS)
    }

    /// Whether interrupts of the machine's I/O APICs or timers arrive with this id.
    pub fn is_machines_own(&self, id: DeviceId) -> bool {
        self.scopes.iter().any(|scope| match *scope {
            Scope::IoApic { device, .. } | Scope::Hpet { device } => id == device,
            Scope::Devices { .. } => false,
        })
    }

    fn unowned(&self, device: DeviceId) -> DeviceEntry {
        if self.is_machines_own(device) { DeviceEntry::INTERRUPTS_PASS } else { DeviceEntry::BLOCKED }
    }

    /// Lets devices, which are blocked, translate by a guest's tables, and interrupt by a table.
    ///
    /// # Errors
    ///
    /// [`NotAttached`].
    pub fn attach(
        &self,
        devices: &[Device],
        translations: Translations,
        interrupts: InterruptTable,
    ) -> Result<(), NotAttached> {
        let Translations { root, domain } = translations;
        let entry = DeviceEntry::translated(root, domain)
            .and_then(|entry| entry.with_interrupts(interrupts))
            .filter(|_| devices.iter().all(|device| self.place(device.id).is_some()))
            .ok_or(NotAttached::NoPlace)?;
        Ok(engine::attach(&self.queue, devices, |device| {
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
        engine::detach(&self.queue, domain, |device| self.set(device.id, self.unowned(device.id)))
    }

    pub(crate) const fn queue(&self) -> &Queue<Ring, &'static [Entry]> {
        &self.queue
    }

    /// An interrupt remapping table was changed, which belongs to this device.
    ///
    /// # Errors
    ///
    /// [`Stuck`] if the IOMMU does not go on: it may still use a former entry.
    pub fn interrupts_changed(&self, device: DeviceId, _: Rewritten) -> Result<Forgotten, Stuck> {
        self.queue.wait(self.queue.issue([invalidate_interrupts(device)])?)?;
        Ok(Forgotten(device))
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
