//! A made IOMMU, by the specification (48882), not by the driver: it reads its tables and its ring
//! from memory, keeps everything that it may, and forgets by command only.

use alloc::boxed::Box;
use alloc::vec::Vec;
use baremetal::moment::Moment;
use core::sync::atomic::{AtomicU64, Ordering};
use std::collections::{BTreeMap, VecDeque};
use std::sync::{Mutex, MutexGuard, PoisonError};

use super::walk::{Kept, Refusal, word};
use super::{Note, Notes};
use crate::iommu::ring::Registers;

/// Offsets of registers (3.4).
pub(super) const DEVICE_TABLE: u64 = 0;
const COMMAND_BASE: u64 = 8;
const EVENT_BASE: u64 = 0x10;
const CONTROL: u64 = 0x18;
const FEATURES: u64 = 0x30;
const COMMAND_HEAD: u64 = 0x2000;
const COMMAND_TAIL: u64 = 0x2008;
const EVENT_HEAD: u64 = 0x2010;
const EVENT_TAIL: u64 = 0x2018;
const STATUS: u64 = 0x2020;

pub(super) const ADDRESS: u64 = 0x000f_ffff_ffff_f000;

#[derive(Default)]
pub(super) struct State {
    registers: BTreeMap<u64, u64>,
    /// Writes of the tail after which nothing is carried out.
    held: u32,
    /// Commands that were read and not carried out.
    queued: VecDeque<[u64; 2]>,
    pub(super) entries: BTreeMap<u16, [u64; 4]>,
    pub(super) remaps: BTreeMap<(u16, u32), u32>,
    pub(super) kept: Vec<Kept>,
    interrupts: u32,
    hook: Option<Box<dyn FnMut([u64; 2]) + Send>>,
}

pub(crate) struct MadeIommu {
    state: Mutex<State>,
    notes: &'static Notes,
    pub(crate) moment: Moment,
}

/// A block of ACPI's table for the IOMMU with an id, and the entries of its devices.
pub(crate) fn block(device: u16, entries: &[u8]) -> Vec<u8> {
    let mut table = alloc::vec![0; 48 + 24];
    table[48] = 0x10;
    table[50..52].copy_from_slice(&(24 + entries.len() as u16).to_le_bytes());
    table[52..54].copy_from_slice(&device.to_le_bytes());
    table.extend(entries);
    table
}

/// The table of the made machine: devices 00:00.0 to 00:08.7 and 00:0a.0 to 00:0c.7, all of bus 1;
/// 00:0d.0 with the id of 00:0e.0; an I/O APIC that is 00:1f.0, and 00:0f.0 with its id.
pub(super) fn ivrs() -> Vec<u8> {
    let ranges = [3, 0, 0, 0, 4, 8 << 3 | 7, 0, 0, 3, 0x50, 0, 0, 4, 0x67, 0, 0, 3, 0, 1, 0, 4, 0xff, 1, 0];
    let aliases = [0x42, 0x68, 0, 0, 0, 0x70, 0, 0, 2, 0x70, 0, 0, 0x42, 0x78, 0, 0, 0, 0xf8, 0, 0];
    let io_apic = [2, 0xf8, 0, 0, 0x48, 0, 0, 0, 0, 0xf8, 0, 1];
    block(super::OWN, &[&ranges[..], &aliases, &io_apic].concat())
}

impl State {
    pub(super) fn register(&self, offset: u64) -> u64 {
        self.registers.get(&offset).copied().unwrap_or(0)
    }

    fn set(&mut self, offset: u64, value: u64) {
        self.registers.insert(offset, value);
    }

    pub(super) fn has(&self, bit: u64) -> bool {
        self.register(CONTROL) & bit != 0
    }

    fn log(&mut self, event: [u64; 2]) {
        if !self.has(1 << 2) || self.register(STATUS) & 1 != 0 {
            return;
        }
        let (tail, next) = (self.register(EVENT_TAIL), (self.register(EVENT_TAIL) + 16) % 4096);
        if next == self.register(EVENT_HEAD) {
            return self.set(STATUS, self.register(STATUS) | 1);
        }
        self.put(tail, event);
        self.set(EVENT_TAIL, next);
        self.announce();
    }

    /// Writes an entry of the log: the first word last.
    fn put(&self, offset: u64, event: [u64; 2]) {
        let at = (self.register(EVENT_BASE) & ADDRESS) + offset;
        for index in [1, 0] {
            // SAFETY: the driver has put the log there, which consists of words.
            let place = unsafe { &*((at + 8 * index) as *const AtomicU64) };
            place.store(event[index as usize], Ordering::Release);
        }
    }

    /// One interrupt for all events until software has cleared the bit.
    fn announce(&mut self) {
        let status = self.register(STATUS);
        if status & 2 == 0 && self.has(1 << 3) {
            self.interrupts += 1;
        }
        self.set(STATUS, status | 2);
    }

    /// Reads the commands up to the tail.
    fn fetch(&mut self) {
        let base = self.register(COMMAND_BASE) & ADDRESS;
        while self.has(1) && self.has(1 << 12) && self.register(COMMAND_HEAD) != self.register(COMMAND_TAIL) {
            let head = self.register(COMMAND_HEAD);
            self.queued.push_back([word(base + head), word(base + head + 8)]);
            self.set(COMMAND_HEAD, (head + 16) % 4096);
        }
    }

    /// Carries out a command (2.4).
    fn execute(&mut self, [first, second]: [u64; 2]) {
        let device = first as u16;
        match first >> 60 {
            1 => {
                assert_eq!(first & 7, 5, "with a store, and in front of what follows");
                let at = first & 0x000f_ffff_ffff_fff8;
                // SAFETY: the driver waits for a word there.
                unsafe { &*(at as *const AtomicU64) }.store(second, Ordering::Release);
            }
            2 => drop(self.entries.remove(&device)),
            3 => {
                let (domain, page) = ((first >> 32) as u16, second >> 12);
                let bits = if second & 1 == 0 { 0 } else { page.trailing_ones() + 1 };
                let len = if bits >= 52 { u64::MAX } else { 4096 << bits };
                let start = if bits >= 52 { 0 } else { second & !(len - 1) };
                let end = start.saturating_add(len);
                self.kept.retain(|kept| !kept.meets(domain, start, end));
            }
            5 => self.remaps.retain(|&(owner, _), _| owner != device),
            8 => {
                assert_ne!(self.register(FEATURES) & 1 << 6, 0, "there is no such command");
                self.entries.clear();
                self.remaps.clear();
                self.kept.clear();
            }
            other => panic!("the driver has no use for command {other}"),
        }
    }
}

impl MadeIommu {
    /// One that can invalidate everything at once, and that firmware has left in use.
    pub(crate) fn new(notes: &'static Notes) -> Self {
        let mut state = State::default();
        state.set(FEATURES, 1 << 6);
        state.set(CONTROL, 0x0b0f | 1 << 12);
        for offset in [COMMAND_HEAD, COMMAND_TAIL, EVENT_HEAD, EVENT_TAIL] {
            state.set(offset, 0x40);
        }
        state.set(STATUS, 3);
        Self { state: Mutex::new(state), notes, moment: Moment::default() }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn register(&self, offset: u64) -> u64 {
        self.lock().register(offset)
    }

    pub(crate) fn poke(&self, offset: u64, value: u64) {
        self.lock().set(offset, value);
    }

    /// From now on commands are carried out when the test says so ([`MadeIommu::go_on`]), which may
    /// be never, and not when the tail is written.
    pub(crate) fn hold(&self) {
        self.lock().held = u32::MAX;
    }

    /// The same until the tail is written a second time.
    pub(crate) fn hold_once(&self) {
        self.lock().held = 1;
    }

    /// From now on `hook` sees each command right before it is carried out.
    pub(crate) fn watch(&self, hook: impl FnMut([u64; 2]) + Send + 'static) {
        self.lock().hook = Some(Box::new(hook));
    }

    /// Carries out what was read.
    pub(crate) fn go_on(&self) {
        loop {
            let (command, hook) = {
                let mut state = self.lock();
                let Some(command) = state.queued.pop_front() else { return };
                (command, state.hook.take())
            };
            if let Some(mut hook) = hook {
                hook(command);
                self.lock().hook = Some(hook);
            }
            self.lock().execute(command);
            self.notes.add(Note::Command(command));
        }
    }

    pub(crate) fn interrupts(&self) -> u32 {
        self.lock().interrupts
    }

    pub(crate) fn log(&self, event: [u64; 2]) {
        self.lock().log(event);
    }

    /// The tail moves on before the entry is there; returns where that will be.
    pub(crate) fn announce_early(&self) -> u64 {
        let mut state = self.lock();
        let tail = state.register(EVENT_TAIL);
        state.set(EVENT_TAIL, (tail + 16) % 4096);
        state.announce();
        tail
    }

    pub(crate) fn put_late(&self, offset: u64, event: [u64; 2]) {
        self.lock().put(offset, event);
    }

    pub(crate) fn entry_in_memory(&self, device: u16) -> [u64; 4] {
        let at = (self.register(DEVICE_TABLE) & ADDRESS) + u64::from(device) * 32;
        core::array::from_fn(|index| word(at + 8 * index as u64))
    }

    /// What a device with this entry would reach at an address, if nothing was kept.
    pub(crate) fn walk(&self, entry: [u64; 4], gpa: u64) -> Result<u64, Refusal> {
        self.lock().walk(0, entry[0] & ADDRESS, gpa).map(|kept| kept.at(gpa))
    }

    pub(crate) fn kept(&self, domain: u16) -> usize {
        self.lock().kept.iter().filter(|kept| kept.domain == domain).count()
    }

    /// The host physical address that a device reaches at `gpa`.
    pub(crate) fn dma(&self, device: u16, gpa: u64, is_write: bool) -> Result<u64, Refusal> {
        let mut state = self.lock();
        let result = state.translate(device, gpa, is_write);
        if let Err(why) = result {
            let code = if why == Refusal::NoEntry { 1 } else { 2 };
            state.log([code << 60 | u64::from(is_write) << 53 | u64::from(device), gpa]);
        }
        result
    }

    /// Destination and vector of an interrupt that a device sends with these data.
    pub(crate) fn msi(&self, device: u16, data: u32) -> Result<(u8, u8), Refusal> {
        self.remap(device, 0xfee0_0000, data)
    }

    pub(super) fn remap(&self, device: u16, address: u64, data: u32) -> Result<(u8, u8), Refusal> {
        let mut state = self.lock();
        let result = state.remap(device, address, data);
        if result.is_err() {
            state.log([2 << 60 | 1 << 51 | u64::from(device), address]);
        }
        result
    }
}

impl Registers for MadeIommu {
    fn read(&self, offset: u64) -> u64 {
        self.moment.pass();
        self.register(offset)
    }

    fn write(&self, offset: u64, value: u64) {
        self.moment.pass();
        self.notes.add(Note::Register(offset, value));
        let mut state = self.lock();
        match offset {
            STATUS => {
                let status = state.register(STATUS);
                // Overflow ends when the log was off (3.4.5).
                let log_is_on = state.has(1 << 2) && state.has(1);
                assert!(value & 1 == 0 || !log_is_on, "the log is on");
                return state.set(STATUS, status & !(value & 3));
            }
            DEVICE_TABLE | COMMAND_BASE | EVENT_BASE => assert!(!state.has(1), "it is in use"),
            COMMAND_HEAD => assert!(!state.has(1 << 12), "the ring is in use"),
            _ => {}
        }
        state.set(offset, value);
        if matches!(offset, CONTROL | COMMAND_TAIL) {
            state.fetch();
        }
        let is_held = state.held > 0;
        if offset == COMMAND_TAIL && state.held != u32::MAX {
            state.held = state.held.saturating_sub(1);
        }
        drop(state);
        if !is_held {
            self.go_on();
        }
    }
}
