//! A machine whose configuration space behaves as hardware's does, for tests.

use crate::config::{Address, ConfigSpace};
use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::vec::Vec;

/// The address of a text.
pub fn at(text: &str) -> Address {
    text.parse().unwrap()
}

/// What makes a function forget its state.
#[derive(Clone, Copy)]
struct Trigger {
    register: u16,
    mask: u32,
    before: u32,
    after: u32,
}

/// A function.
#[derive(Clone, Default)]
pub struct Device {
    words: Vec<u32>,
    writable: Vec<u32>,
    triggers: Vec<Trigger>,
    /// Register that points to the next capability to be added, and the shift of the pointer.
    link: (u16, u32),
    extended_link: Option<u16>,
    /// Microseconds until it answers after a reset.
    pub ready_us: u64,
    absent_until: u64,
    /// How often it was reset.
    pub resets: u32,
}

impl Device {
    /// One without BARs and capabilities.
    pub fn new(vendor: u16, device: u16, class: u32) -> Self {
        let (words, writable) = (std::vec![0; 1024], std::vec![0; 1024]);
        let mut made = Self { words, writable, link: (0x34, 0), ..Self::default() };
        made.set(0, u32::from(vendor) | u32::from(device) << 16);
        made.set(8, class << 8 | 2);
        made.writable(4, 0x0547).writable(0x3c, 0xff).writable(0x0c, 0xff)
    }

    /// A bridge with these buses behind it.
    pub fn bridge(secondary: u8, subordinate: u8) -> Self {
        let mut made =
            Self::new(0x1b36, 0x000c, 0x06_0400).with(0x0c, 0x0001_0000).writable(0x3c, 0xffff_00ff);
        made.set(0x18, u32::from(secondary) << 8 | u32::from(subordinate) << 16);
        made
    }

    /// Sets a register, as the device does itself.
    pub fn set(&mut self, register: u16, value: u32) {
        self.words[usize::from(register / 4)] = value;
    }

    /// A register.
    pub fn word(&self, register: u16) -> u32 {
        self.words[usize::from(register / 4)]
    }

    /// Adds bits to a register.
    pub fn with(mut self, register: u16, bits: u32) -> Self {
        self.words[usize::from(register / 4)] |= bits;
        self
    }

    /// Removes bits from a register.
    pub fn without(mut self, register: u16, bits: u32) -> Self {
        self.words[usize::from(register / 4)] &= !bits;
        self
    }

    /// The bits of a register that can be written.
    pub fn mask(&self, register: u16) -> u32 {
        self.writable[usize::from(register / 4)]
    }

    /// These bits of a register can be written.
    pub fn writable(mut self, register: u16, mask: u32) -> Self {
        self.writable[usize::from(register / 4)] = mask;
        self
    }

    /// Its device has several functions.
    pub fn multi_function(self) -> Self {
        self.with(0x0c, 0x0080_0000)
    }

    /// A BAR with its lowest bits, of memory of 32 bits.
    pub fn bar(mut self, number: u16, flags: u32, address: u32, size: u32) -> Self {
        self.set(0x10 + 4 * number, address | flags);
        self.writable(0x10 + 4 * number, !(size - 1))
    }

    /// A BAR of memory of 64 bits.
    pub fn bar64(mut self, number: u16, flags: u32, address: u64, size: u64) -> Self {
        let bits = !(size - 1);
        self.set(0x10 + 4 * number, address as u32 | flags);
        self.set(0x14 + 4 * number, (address >> 32) as u32);
        self.writable(0x10 + 4 * number, bits as u32).writable(0x14 + 4 * number, (bits >> 32) as u32)
    }

    /// Appends a capability to the list.
    pub fn capability(mut self, offset: u8, words: &[u32]) -> Self {
        let (register, shift) = self.link;
        self = self.with(register, u32::from(offset) << shift).with(4, 1 << 20);
        for (index, &word) in (0..).zip(words) {
            self.set(u16::from(offset) + 4 * index, word);
        }
        self.link = (offset.into(), 8);
        self
    }

    /// Appends an extended capability; the first one at 0x100.
    pub fn extended(mut self, offset: u16, words: &[u32]) -> Self {
        if let Some(link) = self.extended_link {
            self = self.with(link, u32::from(offset) << 20);
        }
        for (index, &word) in (0..).zip(words) {
            self.set(offset + 4 * index, word);
        }
        self.extended_link = Some(offset);
        self
    }

    /// PCI Express of a type, with function level reset or without, at 0x80.
    pub fn express(self, port: u32, has_flr: bool) -> Self {
        let flr = u32::from(has_flr) << 28;
        let made = self.capability(0x80, &[0x0002_0010 | port << 20, flr, 0x2810]).writable(0x88, 0x7fff);
        if has_flr { made.reset_by(0x88, 1 << 15, 0, 1 << 15) } else { made }
    }

    /// Power management at 0x60.
    pub fn power(self, keeps_state: bool) -> Self {
        let made = self.capability(0x60, &[0x0003_0001, u32::from(keeps_state) << 3]).writable(0x64, 3);
        if keeps_state { made } else { made.reset_by(0x64, 3, 3, 0) }
    }

    /// Access control services at 0x100, with what they can and what is enabled.
    pub fn acs(self, capability: u16, control: u16) -> Self {
        let word = u32::from(capability) | u32::from(control) << 16;
        self.extended(0x100, &[0x0001_000d, word]).writable(0x104, u32::from(capability) << 16)
    }

    /// A write that turns the bits `mask` of a register from `before` to `after` resets it.
    pub fn reset_by(mut self, register: u16, mask: u32, before: u32, after: u32) -> Self {
        self.triggers.push(Trigger { register, mask, before, after });
        self
    }

    /// Forgets what was written.
    pub fn reset(&mut self, now: u64) {
        for (word, writable) in self.words.iter_mut().zip(&self.writable) {
            *word &= !writable;
        }
        self.absent_until = now.saturating_add(self.ready_us);
        self.resets += 1;
    }

    /// A write as it arrives from the bus.
    pub fn write(&mut self, register: u16, value: u32, now: u64) {
        let index = usize::from(register / 4);
        let mask = self.writable[index];
        let is_bar = (0x10..0x28).contains(&register) && self.word(0xc) >> 16 & 0x7f == 0;
        assert!(!is_bar || self.word(4) & 3 == 0, "a BAR is written while it is decoded");
        let before = self.words[index];
        self.words[index] = before & !mask | value & mask;
        let fires =
            |t: &Trigger| t.register == register && before & t.mask == t.before && value & t.mask == t.after;
        if self.triggers.iter().any(fires) {
            self.reset(now);
        }
    }
}

/// Functions, and a time in microseconds.
#[derive(Default)]
pub struct Machine {
    devices: RefCell<BTreeMap<Address, Device>>,
    /// Writes, in their order.
    pub writes: RefCell<Vec<(Address, u16, u32)>>,
    /// How many reads there were.
    pub reads: Cell<usize>,
    /// The time.
    pub now: Cell<u64>,
}

impl Machine {
    /// One with these functions.
    pub fn new<const N: usize>(devices: [(&str, Device); N]) -> Self {
        let devices = devices.into_iter().map(|(address, device)| (at(address), device)).collect();
        Self { devices: RefCell::new(devices), ..Self::default() }
    }

    /// A function as it is now.
    pub fn device(&self, address: &str) -> Device {
        self.devices.borrow()[&at(address)].clone()
    }

    /// Changes a register from outside, as a device does itself.
    pub fn poke(&self, address: &str, register: u16, value: u32) {
        self.devices.borrow_mut().get_mut(&at(address)).unwrap().set(register, value);
    }
}

impl ConfigSpace for Machine {
    fn read(&self, address: Address, register: u16) -> u32 {
        assert!(register.is_multiple_of(4) && register < 4096, "{register:#x}");
        self.reads.set(self.reads.get() + 1);
        match self.devices.borrow().get(&address) {
            Some(device) if self.now.get() >= device.absent_until => device.word(register),
            _ => u32::MAX,
        }
    }

    fn write(&self, address: Address, register: u16, value: u32) {
        assert!(register.is_multiple_of(4) && register < 4096, "{register:#x}");
        self.writes.borrow_mut().push((address, register, value));
        let mut devices = self.devices.borrow_mut();
        if let Some(device) = devices.get_mut(&address) {
            device.write(register, value, self.now.get());
            let is_bridge = device.word(0xc) >> 16 & 0x7f == 1;
            if is_bridge && register == 0x3c && value >> 22 & 1 != 0 {
                let bus = device.word(0x18).to_le_bytes()[1];
                let behind = devices.iter_mut().filter(|(address, _)| address.bus() == bus);
                behind.for_each(|(_, device)| device.reset(self.now.get()));
            }
        }
    }
}

/// QEMU's NVMe controller in the root complex: 65 vectors, function level reset.
pub fn nvme() -> Device {
    Device::new(0x1b36, 0x0010, 0x01_0802)
        .with(0x2c, 0x1100_1af4)
        .with(0x3c, 0x0100)
        .with(4, 0x0006)
        .bar64(0, 4, 0xfebf_0000, 0x4000)
        .capability(0x40, &[0x0040_0011, 0x2000, 0x3000])
        .express(9, true)
        .power(true)
}

/// QEMU's virtio-net-pci without transitional parts, on a conventional bus.
pub fn virtio_net() -> Device {
    let part = |kind: u32, len: u32, offset: u32, size: u32| [9 | len << 16 | kind << 24, 4, offset, size];
    let [a, b, c, d] = part(2, 20, 0x3000, 0x1000);
    Device::new(0x1af4, 0x1041, 0x02_0000)
        .with(0x2c, 0x1100_1af4)
        .with(0x3c, 0x0100)
        .bar(1, 0, 0xfebf_1000, 0x1000)
        .bar64(4, 0xc, 0xfe00_0000, 0x4000)
        .capability(0x98, &[0x0003_0011, 1, 0x801])
        .capability(0x84, &[0x0514_0009, 0, 0, 0, 0])
        .capability(0x70, &[a, b, c, d, 4])
        .capability(0x60, &part(4, 16, 0x2000, 0x1000))
        .capability(0x50, &part(3, 16, 0x1000, 0x1000))
        .capability(0x40, &part(1, 16, 0, 0x1000))
}
