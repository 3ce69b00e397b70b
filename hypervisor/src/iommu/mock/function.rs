//! A made function.

use std::collections::BTreeMap;

use alloc::vec::Vec;
use pci::mock::Device;

#[derive(Clone, Copy)]
pub(super) struct MadeMsix {
    pub(super) capability: u8,
    /// BAR of table and pending bits, and their offsets.
    pub(super) bar: u8,
    pub(super) table: u64,
    pub(super) pending: u64,
    pub(super) count: u16,
}

/// A function, and its registers.
pub(super) struct MadeFunction {
    device: Device,
    /// Registers by BAR and offset, 4 bytes each.
    pub(super) memory: BTreeMap<(u8, u64), u32>,
    pub(super) msix: Option<MadeMsix>,
    /// Offset of virtio's window.
    window: Option<u16>,
    /// Looks at it that it does not answer after a reset.
    pub(super) absent_looks: u32,
    pub(super) absent_now: u32,
    /// It does not keep silent: it starts transactions although it may not.
    pub(super) pending_looks: u32,
}

impl From<Device> for MadeFunction {
    fn from(device: Device) -> Self {
        Self {
            device,
            memory: BTreeMap::new(),
            msix: None,
            window: None,
            absent_looks: 0,
            absent_now: 0,
            pending_looks: 0,
        }
    }
}

impl MadeFunction {
    pub(super) fn with_msix(device: Device, msix: MadeMsix) -> Self {
        let place = |at: u64| at as u32 | u32::from(msix.bar);
        let first = 0x11 | (u32::from(msix.count) - 1) << 16;
        let capability = [first, place(msix.table), place(msix.pending)];
        let device = device.capability(msix.capability, &capability);
        let device = device.writable(msix.capability.into(), 0xc000_0000);
        let mut made = Self { msix: Some(msix), ..device.into() };
        made.mask_all();
        made
    }

    /// With virtio's window at an offset, for registers in BAR 4.
    pub(super) fn with_window(self, offset: u8) -> Self {
        let device = self
            .device
            .capability(offset - 0x10, &[0x0110_0009, 4, 0, 0x1000])
            .capability(offset, &[0x0514_0009, 0, 0, 0, 0]);
        let offset = u16::from(offset);
        let device = (1..5).fold(device, |made, word| made.writable(offset + 4 * word, u32::MAX));
        Self { device, window: Some(offset), ..self }
    }

    /// Nothing enables access control services any more.
    pub(super) fn lose_acs(&mut self) {
        self.device = self.device.clone().without(0x104, 0xffff_0000).writable(0x104, 0);
    }

    fn mask_all(&mut self) {
        let Some(msix) = self.msix else { return };
        for number in 0..u64::from(msix.count) {
            self.memory.insert((msix.bar, msix.table + number * 16 + 12), 1);
        }
    }

    pub(super) fn word(&self, register: u16) -> u32 {
        self.device.word(register)
    }

    pub(super) fn set_word(&mut self, register: u16, value: u32) {
        self.device.set(register, value);
    }

    pub(super) const fn resets(&self) -> u32 {
        self.device.resets
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
        // The status of PCI Express.
        if register == 0x88 && self.word(0x80) & 0xff == 0x10 && self.pending_looks > 0 {
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
        let before = self.device.resets;
        self.device.write(register, value, 0);
        if self.device.resets != before {
            self.forget();
            return true;
        }
        if let Some(window) = self.window.filter(|window| register == window + 16) {
            let (bar, at) = (self.word(window + 4) as u8, self.word(window + 8));
            self.memory.insert((bar, at.into()), value);
            // Its status: it stops, and nothing else changes.
            self.device.resets += u32::from(at == 0x14 && value == 0);
            return at == 0x14 && value == 0;
        }
        false
    }

    pub(super) fn reset(&mut self) {
        self.device.reset(0);
        self.forget();
    }

    fn forget(&mut self) {
        self.memory.clear();
        self.mask_all();
        self.absent_now = self.absent_looks;
    }

    /// The BAR that contains a host physical address, and the offset there.
    pub(super) fn find(&self, address: u64) -> Option<(u8, u64)> {
        if self.is_bridge() || self.word(4) & 2 == 0 {
            return None;
        }
        let bars: Vec<u16> = (0..6).filter(|bar| self.device.mask(0x10 + 4 * bar) & 0xfff0 != 0).collect();
        bars.into_iter().find_map(|bar| {
            let at = 0x10 + 4 * bar;
            let len = u64::from(!self.device.mask(at)) + 1;
            let high = if self.word(at) & 4 != 0 { u64::from(self.word(at + 4)) << 32 } else { 0 };
            let start = u64::from(self.word(at) & !0xf) | high;
            (start..start + len).contains(&address).then(|| (bar as u8, address - start))
        })
    }

    /// Whether the hypervisor has mapped a register of a BAR for itself: the pages of MSI-X, and
    /// BARs of less than a page (`arch/x86_64/pci.rs`).
    pub(super) fn is_mapped(&self, bar: u8, offset: u64) -> bool {
        let len = u64::from(!self.device.mask(0x10 + 4 * u16::from(bar))) + 1;
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
