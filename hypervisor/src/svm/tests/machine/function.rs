//! A made function.

use std::collections::BTreeMap;

use alloc::vec::Vec;

#[derive(Clone, Copy)]
pub(super) struct MadeMsix {
    pub(super) capability: u16,
    /// BAR of table and pending bits, and their offsets.
    pub(super) bar: u8,
    pub(super) table: u64,
    pub(super) pending: u64,
    pub(super) count: u16,
}

/// A function: the first 512 bytes of its configuration space, and its registers.
pub(super) struct MadeFunction {
    words: [u32; 128],
    writable: [u32; 128],
    /// Register that points to the next capability to be added, and the shift of the pointer.
    link: (u16, u32),
    /// Registers by BAR and offset, 4 bytes each.
    pub(super) memory: BTreeMap<(u8, u64), u32>,
    pub(super) msix: Option<MadeMsix>,
    /// Offset of the capability of a function level reset.
    flr: Option<u16>,
    /// Offset of virtio's window.
    window: Option<u16>,
    pub(super) resets: u32,
    /// Looks at it that it does not answer after a reset.
    pub(super) absent_looks: u32,
    pub(super) absent_now: u32,
    /// It does not keep silent: it starts transactions although it may not.
    pub(super) pending_looks: u32,
}

impl MadeFunction {
    pub(super) fn new(vendor: u16, device: u16, class: u32) -> Self {
        let mut made = Self {
            words: [0; 128],
            writable: [0; 128],
            link: (0x34, 0),
            memory: BTreeMap::new(),
            msix: None,
            flr: None,
            window: None,
            resets: 0,
            absent_looks: 0,
            absent_now: 0,
            pending_looks: 0,
        };
        made.words[0] = u32::from(vendor) | u32::from(device) << 16;
        made.words[2] = class << 8 | 1;
        made.writable(4, 0x0547).writable(0x3c, 0xff).writable(0x0c, 0xff)
    }

    pub(super) fn bridge(bus: u8) -> Self {
        let mut made = Self::new(0x1b36, 0x0001, 0x06_0400);
        made.words[3] = 0x0001_0000;
        made.words[6] = u32::from(bus) << 8 | u32::from(bus) << 16;
        made.writable(0x3c, 0xffff_00ff)
    }

    pub(super) fn with(mut self, register: u16, bits: u32) -> Self {
        self.words[usize::from(register / 4)] |= bits;
        self
    }

    fn writable(mut self, register: u16, mask: u32) -> Self {
        self.writable[usize::from(register / 4)] = mask;
        self
    }

    pub(super) fn bar(self, number: u16, address: u32, size: u32) -> Self {
        self.with(0x10 + 4 * number, address).writable(0x10 + 4 * number, !(size - 1))
    }

    pub(super) fn bar64(self, number: u16, address: u64, size: u32) -> Self {
        self.bar(number, address as u32 | 4, size)
            .with(0x14 + 4 * number, (address >> 32) as u32)
            .writable(0x14 + 4 * number, u32::MAX)
    }

    pub(super) fn capability(mut self, offset: u16, words: &[u32]) -> Self {
        let (register, shift) = self.link;
        self = self.with(register, u32::from(offset) << shift).with(4, 1 << 20);
        for (index, &word) in (0..).zip(words) {
            self.words[usize::from(offset / 4) + index] = word;
        }
        self.link = (offset, 8);
        self
    }

    /// PCI Express in the root complex, with function level reset.
    pub(super) fn with_flr(self, offset: u16) -> Self {
        let made = self.capability(offset, &[0x0092_0010, 1 << 28, 0x2810]).writable(offset + 8, 0x7fff);
        Self { flr: Some(offset), ..made }
    }

    pub(super) fn with_msix(self, msix: MadeMsix) -> Self {
        let place = |at: u64| at as u32 | u32::from(msix.bar);
        let first = 0x11 | (u32::from(msix.count) - 1) << 16;
        let made = self.capability(msix.capability, &[first, place(msix.table), place(msix.pending)]);
        let made = made.writable(msix.capability, 0xc000_0000);
        let mut made = Self { msix: Some(msix), ..made };
        made.mask_all();
        made
    }

    /// MSI to addresses of 64 bits, at an offset.
    pub(super) fn with_msi(self, offset: u16) -> Self {
        let made = self.capability(offset, &[0x0080_0005, 0, 0, 0]).writable(offset, 0x0071_0000);
        (1..4).fold(made, |made, word| made.writable(offset + 4 * word, u32::MAX))
    }

    /// Access control services: redirection of requests and of completions, which are off.
    pub(super) fn with_acs(self) -> Self {
        self.with(0x100, 0x0001_000d).with(0x104, 0x000c).writable(0x104, 0x000c_0000)
    }

    /// Nothing enables them any more.
    pub(super) fn lose_acs(&mut self) {
        self.words[0x104 / 4] &= 0xffff;
        self.writable[0x104 / 4] = 0;
    }

    /// A virtio device's common registers at BAR 4, and its window.
    pub(super) fn with_window(self, offset: u16) -> Self {
        let made = self
            .capability(offset - 0x10, &[0x0110_0009, 4, 0, 0x1000])
            .capability(offset, &[0x0514_0009, 0, 0, 0, 0]);
        let made = (1..5).fold(made, |made, word| made.writable(offset + 4 * word, u32::MAX));
        Self { window: Some(offset), ..made }
    }

    fn mask_all(&mut self) {
        let Some(msix) = self.msix else { return };
        for number in 0..u64::from(msix.count) {
            self.memory.insert((msix.bar, msix.table + number * 16 + 12), 1);
        }
    }

    pub(super) fn word(&self, register: u16) -> u32 {
        self.words[usize::from(register / 4)]
    }

    pub(super) fn set_word(&mut self, register: u16, value: u32) {
        self.words[usize::from(register / 4)] = value;
    }

    pub(super) fn is_bridge(&self) -> bool {
        self.word(0xc) >> 16 & 0x7f == 1
    }

    /// A read as it arrives from the bus.
    pub(super) fn read(&mut self, register: u16) -> u32 {
        if self.absent_now > 0 {
            // One that is looked for is asked for its id.
            self.absent_now -= u32::from(register == 0);
            return u32::MAX;
        }
        if self.flr.is_some_and(|flr| register == flr + 8) && self.pending_looks > 0 {
            self.pending_looks -= 1;
            return self.word(register) | 1 << 21;
        }
        match self.window {
            Some(window) if register == window + 16 => {
                let (bar, at) = (self.word(window + 4) as u8, self.word(window + 8));
                self.memory.get(&(bar, at.into())).copied().unwrap_or(0)
            }
            _ => self.word(register),
        }
    }

    /// A write as it arrives; returns whether it has reset the function.
    pub(super) fn write(&mut self, register: u16, value: u32) -> bool {
        if self.absent_now > 0 {
            return false;
        }
        let index = usize::from(register / 4);
        let is_bar = (0x10..0x28).contains(&register) && !self.is_bridge();
        assert!(!is_bar || self.word(4) & 3 == 0, "a BAR is written while it is decoded");
        self.words[index] = self.words[index] & !self.writable[index] | value & self.writable[index];
        if self.flr.is_some_and(|flr| register == flr + 8) && value & 1 << 15 != 0 {
            self.reset();
            return true;
        }
        if let Some(window) = self.window.filter(|window| register == window + 16) {
            let (bar, at) = (self.word(window + 4) as u8, self.word(window + 8));
            self.memory.insert((bar, at.into()), value);
            // Its status: it stops, and nothing else changes.
            self.resets += u32::from(at == 0x14 && value == 0);
            return at == 0x14 && value == 0;
        }
        false
    }

    pub(super) fn reset(&mut self) {
        for (word, writable) in self.words.iter_mut().zip(&self.writable) {
            *word &= !writable;
        }
        self.memory.clear();
        self.mask_all();
        self.absent_now = self.absent_looks;
        self.resets += 1;
    }

    /// The BAR that contains a host physical address, and the offset there.
    pub(super) fn find(&self, address: u64) -> Option<(u8, u64)> {
        if self.is_bridge() || self.word(4) & 2 == 0 {
            return None;
        }
        let bars: Vec<u16> = (0..6).filter(|bar| self.writable[usize::from(4 + bar)] & 0xfff0 != 0).collect();
        bars.into_iter().find_map(|bar| {
            let at = 0x10 + 4 * bar;
            let len = u64::from(!self.writable[usize::from(at / 4)]) + 1;
            let high = if self.word(at) & 4 != 0 { u64::from(self.word(at + 4)) << 32 } else { 0 };
            let start = u64::from(self.word(at) & !0xf) | high;
            (start..start + len).contains(&address).then(|| (bar as u8, address - start))
        })
    }

    /// Whether the hypervisor has mapped a register of a BAR for itself: the pages of MSI-X, and
    /// BARs of less than a page (`arch/x86_64/pci.rs`).
    pub(super) fn is_mapped(&self, bar: u8, offset: u64) -> bool {
        let len = u64::from(!self.writable[4 + usize::from(bar)]) + 1;
        let is_msix = self.msix.is_some_and(|msix| {
            let table = msix.table / 4096..=(msix.table + u64::from(msix.count) * 16 - 1) / 4096;
            msix.bar == bar && (table.contains(&(offset / 4096)) || msix.pending / 4096 == offset / 4096)
        });
        len < 4096 || is_msix
    }

    pub(super) fn entry(&self, number: u16) -> (u64, u32, bool) {
        let msix = self.msix.expect("it has MSI-X");
        let at = msix.table + u64::from(number) * 16;
        let word = |index: u64| self.memory.get(&(msix.bar, at + index * 4)).copied().unwrap_or(0);
        (u64::from(word(0)) | u64::from(word(1)) << 32, word(2), word(3) & 1 != 0)
    }

    pub(super) fn set_pending(&mut self, number: u16, is_pending: bool) {
        let msix = self.msix.expect("it has MSI-X");
        let at = (msix.bar, msix.pending + u64::from(number) / 32 * 4);
        let word = self.memory.entry(at).or_default();
        *word = *word & !(1 << (number % 32)) | u32::from(is_pending) << (number % 32);
    }

    pub(super) fn is_pending(&self, number: u16) -> bool {
        let msix = self.msix.expect("it has MSI-X");
        let word = self.memory.get(&(msix.bar, msix.pending + u64::from(number) / 32 * 4));
        word.is_some_and(|word| word >> (number % 32) & 1 != 0)
    }
}
