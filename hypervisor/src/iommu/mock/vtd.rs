//! A made VT-d, by the specification (D51397), not by the driver: it reads its tables and its queue
//! from memory, keeps everything that it may, and forgets by descriptor only.

use baremetal::moment::Moment;
use core::sync::atomic::{AtomicU32, Ordering};
use std::collections::{BTreeMap, VecDeque};
use std::sync::{Mutex, MutexGuard, PoisonError};

use super::walk::{Kept, word};
use super::{Note, Notes};
use crate::iommu::Registers;
use crate::iommu::vtd::HalfRegisters;

/// Offsets of registers (11.4), and bits of the global command.
const COMMAND: u64 = 0x18;
const STATUS: u64 = 0x1c;
const ROOT: u64 = 0x20;
const FAULT_STATUS: u64 = 0x34;
const FAULT_CONTROL: u64 = 0x38;
const HEAD: u64 = 0x80;
const TAIL: u64 = 0x88;
const QUEUE: u64 = 0x90;
const INTERRUPTS: u64 = 0xb8;
/// Two registers.
const FAULTS: u64 = 0x200;
const FAULT_COUNT: u64 = 2;
const HELD: u64 = 1 << 63;
const TE: u64 = 1 << 31;
const SRTP: u64 = 1 << 30;
const QIE: u64 = 1 << 26;
const IRE: u64 = 1 << 25;
const SIRTP: u64 = 1 << 24;
const CFI: u64 = 1 << 23;
const STAYS: u64 = TE | QIE | IRE | CFI;

const ADDRESS: u64 = 0x000f_ffff_ffff_f000;

#[derive(Default)]
struct State {
    registers: BTreeMap<u64, u64>,
    /// Commands that it does not answer.
    deaf: u64,
    is_held: bool,
    queued: VecDeque<[u64; 2]>,
    contexts: BTreeMap<u16, [u64; 2]>,
    remaps: BTreeMap<u16, [u64; 2]>,
    kept: Vec<Kept>,
    next_fault: u64,
    interrupts: u32,
}

pub(crate) struct MadeVtd {
    state: Mutex<State>,
    notes: &'static Notes,
    pub(crate) moment: Moment,
}

impl State {
    fn register(&self, offset: u64) -> u64 {
        self.registers.get(&offset).copied().unwrap_or(0)
    }

    fn set(&mut self, offset: u64, value: u64) {
        self.registers.insert(offset, value);
    }

    /// One bit at a time (11.4.4).
    fn command(&mut self, value: u64) {
        let status = self.register(STATUS);
        let changed = (value ^ status) & STAYS | value & (SRTP | SIRTP);
        assert!(changed.count_ones() <= 1, "{changed:#x} at once");
        let place = match changed {
            SRTP => ROOT,
            SIRTP => INTERRUPTS,
            _ => QUEUE,
        };
        let is_off = changed & value == 0;
        assert!(is_off || self.register(place) != 0, "{changed:#x} without what is at {place:#x}");
        match changed & !self.deaf {
            0 => return,
            SRTP => assert_eq!(status & TE, 0, "DMA is being translated"),
            SIRTP => assert_eq!(status & IRE, 0, "interrupts are being remapped"),
            QIE if status & QIE == 0 => assert_eq!(self.register(TAIL), 0, "the queue begins at its end"),
            QIE => self.set(HEAD, 0),
            TE if status & TE == 0 => assert_ne!(status & SRTP, 0, "there is no table"),
            IRE if status & IRE == 0 => assert_eq!(status & (SIRTP | QIE), SIRTP | QIE, "6.7"),
            _ => {}
        }
        self.set(STATUS, status & !(changed & !value & STAYS) | changed & value);
    }

    fn fetch(&mut self) {
        let base = self.register(QUEUE) & ADDRESS;
        while self.register(STATUS) & QIE != 0 && self.register(HEAD) != self.register(TAIL) {
            let head = self.register(HEAD);
            self.queued.push_back([word(base + head), word(base + head + 8)]);
            self.set(HEAD, (head + 16) % 4096);
        }
    }

    /// Carries out a descriptor (6.5.2).
    fn execute(&mut self, [first, second]: [u64; 2]) {
        let (domain, device) = ((first >> 16) as u16, (first >> 32) as u16);
        match first & 0x3f {
            0x11 => self.contexts.clear(),
            0x31 => {
                let is_it = |entry: &[u64; 2]| (entry[1] >> 8) as u16 == domain;
                if self.contexts.get(&device).is_some_and(is_it) {
                    self.contexts.remove(&device);
                }
            }
            0x12 => self.kept.clear(),
            0x22 => self.kept.retain(|kept| kept.domain != domain),
            0x32 => {
                let (start, len) = (second & !0xfff, 0x1000 << (second & 0x3f));
                self.kept.retain(|kept| !kept.meets(domain, start, start + len));
            }
            0x04 => self.remaps.clear(),
            0x14 => {
                let len = 1 << (first >> 27 & 0x1f);
                self.remaps.retain(|&index, _| u64::from(index) & !(len - 1) != u64::from(device));
            }
            0x25 => {
                assert_eq!(first & 0xffff, 0x65, "it stores, and what follows begins later");
                // SAFETY: the driver waits for a word there, of which this is the lower half.
                unsafe { &*(second as *const AtomicU32) }.store((first >> 32) as u32, Ordering::Release);
            }
            other => panic!("the driver has no use for descriptor {other:#x}"),
        }
    }

    /// Records a fault (7.3.1).
    fn record(&mut self, device: u16, address: u64, reason: u64, is_write: bool) {
        let (at, status) = (FAULTS + self.next_fault * 16, self.register(FAULT_STATUS));
        if status & 1 != 0 {
            return;
        }
        if self.register(at + 8) & HELD != 0 {
            self.set(FAULT_STATUS, status | 1);
        } else {
            self.set(at, address);
            self.set(at + 8, HELD | u64::from(!is_write) << 62 | reason << 32 | u64::from(device));
            self.next_fault = (self.next_fault + 1) % FAULT_COUNT;
            self.set(FAULT_STATUS, status | 2);
        }
        if status & 3 == 0 && self.register(FAULT_CONTROL) >> 31 == 0 {
            self.interrupts += 1;
        }
    }

    /// Walks the tables at `root` (9.8).
    fn walk(&self, domain: u16, root: u64, address: u64) -> Option<Kept> {
        let (mut table, mut rights) = (root, 3);
        for level in (1..=4).rev() {
            let shift = 12 + 9 * (level - 1);
            let entry = word(table + (address >> shift & 511) * 8);
            rights &= entry;
            if rights & 3 == 0 {
                return None;
            }
            assert_eq!(entry & 1 << 11, 0, "it is reserved without snoop control");
            if level == 1 || entry & 1 << 7 != 0 {
                let len = 1 << shift;
                let (start, host) = (address & !(len - 1), entry & ADDRESS & !(len - 1));
                return Some(Kept { domain, start, len, host, rights });
            }
            table = entry & ADDRESS;
        }
        None
    }

    /// The host physical address that a device reaches, or the reason of the fault.
    fn translate(&mut self, device: u16, address: u64, is_write: bool) -> Result<u64, u64> {
        assert_ne!(self.register(STATUS) & TE, 0, "device {device:#x} reaches all memory");
        let root = word((self.register(ROOT) & ADDRESS) + u64::from(device >> 8) * 16);
        if root & 1 == 0 {
            return Err(1);
        }
        let at = (root & ADDRESS) + u64::from(device & 0xff) * 16;
        let [first, second] = *self.contexts.entry(device).or_insert_with(|| [word(at), word(at + 8)]);
        if first & 1 == 0 {
            // What is not present is not kept (6.2.2.1).
            self.contexts.remove(&device);
            return Err(2);
        }
        assert_eq!((first & 0xffe, second & 7), (0, 2), "no translation of the device's own; 4 levels");
        let domain = (second >> 8) as u16;
        let found = self.kept.iter().find(|kept| kept.has(domain, address)).copied();
        let right = if is_write { 2 } else { 1 };
        let denied = if is_write { 5 } else { 6 };
        let kept = found.or_else(|| self.walk(domain, first & ADDRESS, address)).ok_or(denied)?;
        if found.is_none() {
            self.kept.push(kept);
        }
        if kept.rights & right == 0 { Err(denied) } else { Ok(kept.at(address)) }
    }

    /// Destination and vector of an interrupt, or the reason of the fault (5.1.4).
    fn remap(&mut self, device: u16, address: u64, data: u32) -> Result<(u8, u8), u64> {
        assert_eq!((address >> 20, self.register(STATUS) & (IRE | CFI)), (0xfee, IRE));
        if address & 0x10 == 0 {
            return Err(0x25);
        }
        assert_eq!((address & 8, data), (0, 0), "no further number");
        let index = (address >> 5 & 0x7fff | address << 13 & 1 << 15) as u16;
        let table = self.register(INTERRUPTS);
        if u64::from(index) >> ((table & 15) + 1) != 0 {
            return Err(0x21);
        }
        let at = (table & ADDRESS) + u64::from(index) * 16;
        let entry = *self.remaps.entry(index).or_insert_with(|| [word(at), word(at + 8)]);
        if entry[0] & 1 == 0 {
            self.remaps.remove(&index);
            return Err(0x22);
        }
        assert_eq!((entry[0] & 0xfffe, entry[1] >> 16), (0, 4), "fixed, and the whole source counts");
        if entry[1] as u16 != device {
            return Err(0x26);
        }
        let shift = if table & 1 << 11 != 0 { 32 } else { 40 };
        Ok(((entry[0] >> shift) as u8, (entry[0] >> 16) as u8))
    }
}

impl MadeVtd {
    /// One that firmware has left in use, with what it kept for device 0x18 and entry 0x100.
    pub(crate) fn new(notes: &'static Notes) -> Self {
        let mut state = State::default();
        let first =
            6 | 4 << 8 | 0x20 << 24 | 3 << 34 | 1 << 39 | (FAULT_COUNT - 1) << 40 | 18 << 48 | 3 << 54;
        for (offset, value) in
            [(8, first), (0x10, 0xb | 15 << 20), (STATUS, TE | QIE | IRE | CFI), (TAIL, 0x40)]
        {
            state.set(offset, value);
        }
        state.set(HEAD, 0x40);
        state.set(FAULT_CONTROL, 1 << 31);
        state.record(0x18, 0x1000, 6, false);
        state.contexts.insert(0x18, [0x5001, 5 << 8 | 2]);
        state.remaps.insert(0x100, [0x41_0001, 1 << 18 | 0x18]);
        state.kept.push(Kept { domain: 5, start: 0, len: 1 << 30, host: 0, rights: 3 });
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

    /// It does not answer these commands.
    pub(crate) fn ignore(&self, commands: u64) {
        self.lock().deaf = commands;
    }

    /// From now on descriptors are carried out when the test says so ([`MadeVtd::go_on`]).
    pub(crate) fn hold(&self) {
        self.lock().is_held = true;
    }

    pub(crate) fn go_on(&self) {
        loop {
            let mut state = self.lock();
            let Some(command) = state.queued.pop_front() else { return };
            state.execute(command);
            self.notes.add(Note::Command(command));
        }
    }

    pub(crate) fn interrupts(&self) -> u32 {
        self.lock().interrupts
    }

    pub(crate) fn kept(&self, domain: u16) -> usize {
        self.lock().kept.iter().filter(|kept| kept.domain == domain).count()
    }

    pub(crate) fn dma(&self, device: u16, address: u64, is_write: bool) -> Result<u64, u64> {
        let mut state = self.lock();
        let result = state.translate(device, address, is_write);
        result.inspect_err(|&reason| state.record(device, address & !0xfff, reason, is_write))
    }

    pub(crate) fn msi(&self, device: u16, address: u64, data: u32) -> Result<(u8, u8), u64> {
        let mut state = self.lock();
        let result = state.remap(device, address, data);
        result.inspect_err(|&reason| state.record(device, (address >> 5 & 0x7fff) << 48, reason, true))
    }

    pub(crate) fn fault(&self, address: u64) {
        self.lock().record(0x18, address, 6, false);
    }
}

impl Registers for MadeVtd {
    fn read(&self, offset: u64) -> u64 {
        self.moment.pass();
        self.register(offset)
    }

    fn write(&self, offset: u64, value: u64) {
        self.moment.pass();
        self.notes.add(Note::Register(offset, value));
        let mut state = self.lock();
        if offset >= FAULTS {
            let register = state.register(offset);
            state.set(offset, register & !(value & HELD));
            let is_held = (0..FAULT_COUNT).any(|fault| state.register(FAULTS + fault * 16 + 8) & HELD != 0);
            let status = state.register(FAULT_STATUS);
            return state.set(FAULT_STATUS, status & !2 | u64::from(is_held) << 1);
        }
        state.set(offset, value);
        state.fetch();
        let is_held = state.is_held;
        drop(state);
        if !is_held {
            self.go_on();
        }
    }
}

impl HalfRegisters for MadeVtd {
    fn read_half(&self, offset: u64) -> u32 {
        self.read(offset) as u32
    }

    fn write_half(&self, offset: u64, value: u32) {
        self.moment.pass();
        self.notes.add(Note::Register(offset, value.into()));
        let mut state = self.lock();
        match offset {
            COMMAND => state.command(value.into()),
            FAULT_STATUS => {
                let status = state.register(FAULT_STATUS);
                state.set(FAULT_STATUS, status & !u64::from(value & 1));
            }
            _ => state.set(offset, value.into()),
        }
    }
}
