//! An IOMMU: its commands, and what it and the devices behind it may hold.
//!
//! The commands are decoded from the specification, not by the crate under test: AMD I/O
//! Virtualization Technology (IOMMU) Specification, 48882, 2.4. It reads them in order, and
//! executes them as late and in any order that it may: COMPLETION_WAIT is complete after all that
//! were before it, and with its F bit those behind it begin after that. Nothing else orders them.
//!
//! An invalidation removes translations of a size that overlap its block. The IOMMU may go by a
//! former entry of the device table until INVALIDATE_DEVTAB_ENTRY. It holds no absent entries.

use paging::Level;

use super::cache::{Context, Invalidation};

/// The offset in a page.
const OFFSET: u64 = Level::Page4K.offset_mask();

/// An entry of the device table that does not block DMA.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DeviceEntry {
    /// The tag.
    pub domain: u16,
    /// Root of the tables.
    pub root: u64,
}

/// The meaning of a command.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Order {
    /// COMPLETION_WAIT with a store.
    Wait {
        /// What is stored.
        data: u64,
        /// Later commands begin after it.
        holds: bool,
    },
    /// INVALIDATE_DEVTAB_ENTRY.
    Entry {
        /// Of this device.
        device: u16,
    },
    /// INVALIDATE_IOMMU_PAGES.
    Pages {
        /// Of this domain.
        domain: u16,
        /// What it removes.
        what: Invalidation,
    },
    /// INVALIDATE_IOTLB_PAGES.
    DevicePages {
        /// In this device.
        device: u16,
        /// What it removes.
        what: Invalidation,
    },
}

/// What an address with the bits S and PDE names.
const fn named(operand: u64) -> Invalidation {
    let (walk, page) = (operand & 2 != 0, operand >> 12);
    // With S, the lowest zero says the size.
    let bits = if operand & 1 == 0 { 0 } else { page.trailing_ones() + 1 };
    if bits >= 52 {
        return Invalidation::Nested { start: 0, len: u64::MAX, level: None, walk };
    }
    let len = Level::Page4K.size() << bits;
    Invalidation::Nested { start: operand & !(len - 1) & !OFFSET, len, level: None, walk }
}

impl Order {
    /// The meaning of two double words; `None` if they are no command, or one that the machine's
    /// software has no use for.
    pub fn decode([first, second]: [u64; 2]) -> Option<Self> {
        let (device, upper) = (first as u16, (first >> 32) as u16);
        let has_only = |bits: u64| first & !(0xf << 60 | bits) == 0;
        match first >> 60 {
            // S and F; no interrupt.
            1 if has_only(0x000f_ffff_ffff_fff8 | 5) && first & 1 != 0 => {
                Some(Self::Wait { data: second, holds: first & 4 != 0 })
            }
            2 if has_only(0xffff) && second == 0 => Some(Self::Entry { device }),
            3 if has_only(0xffff << 32) && second & OFFSET & !3 == 0 => {
                Some(Self::Pages { domain: upper, what: named(second) })
            }
            4 if has_only(0xffff << 32 | 0xff << 24 | 0xffff) && second & OFFSET & !1 == 0 => {
                // A device keeps no upper levels.
                Some(Self::DevicePages { device, what: named(second) })
            }
            _ => None,
        }
    }
}

/// A device, and what the IOMMU knows about it.
#[derive(Debug)]
pub(super) struct Device {
    /// Its number on the bus.
    id: u16,
    /// The device has a TLB of its own.
    pub(super) has_ats: bool,
    /// Its entry of the device table; `None` blocks DMA.
    entry: Option<DeviceEntry>,
    /// Former entries that the IOMMU may go by.
    former: Vec<Option<DeviceEntry>>,
    /// What the device itself holds.
    pub(super) tlb: Context,
}

/// The IOMMU.
#[derive(Debug, Default)]
pub struct Iommu {
    /// Index of the entry up to which it may read: a register.
    pub tail: usize,
    /// Index of the next entry: a register.
    pub head: usize,
    /// The data of the last wait that is complete: a word in memory.
    pub reported: u64,
    /// Commands that were read and are not executed yet, in order.
    pending: Vec<Order>,
    domains: Vec<(u16, Context)>,
    devices: Vec<Device>,
}

impl Iommu {
    /// With devices that have these numbers, and ATS or not.
    pub fn new(devices: impl IntoIterator<Item = (u16, bool)>) -> Self {
        let device =
            |(id, has_ats)| Device { id, has_ats, entry: None, former: Vec::new(), tlb: Context::default() };
        Self { devices: devices.into_iter().map(device).collect(), ..Self::default() }
    }

    /// A device, by its place.
    pub(super) fn device(&self, device: usize) -> &Device {
        &self.devices[device]
    }

    /// What is held of a domain.
    pub(super) fn domain(&self, domain: u16) -> Option<&Context> {
        self.domains.iter().find(|(number, _)| *number == domain).map(|(_, context)| context)
    }

    fn domain_mut(&mut self, domain: u16) -> &mut Context {
        let place = self.domains.iter().position(|(number, _)| *number == domain).unwrap_or_else(|| {
            self.domains.push((domain, Context::default()));
            self.domains.len() - 1
        });
        &mut self.domains[place].1
    }

    /// The number of entries of the device table that the IOMMU may go by for a device.
    pub(super) fn entry_count(&self, device: usize) -> usize {
        self.devices[device].former.len() + 1
    }

    /// One of them: the one in memory is the first.
    pub(super) fn entry(&self, device: usize, number: usize) -> Option<DeviceEntry> {
        let Device { entry, former, .. } = &self.devices[device];
        number.checked_sub(1).map_or(*entry, |number| former[number])
    }

    /// Software writes a device's entry of the device table.
    pub(super) fn write_entry(&mut self, time: u64, device: usize, entry: Option<DeviceEntry>) {
        if let Some(DeviceEntry { domain, root }) = entry {
            let context = self.domain_mut(domain);
            if !context.is_at(time, root) {
                context.enter(time, root, 0);
            }
            self.devices[device].tlb.enter(time, root, 0);
        }
        let device = &mut self.devices[device];
        device.former.push(core::mem::replace(&mut device.entry, entry));
    }

    /// Whether it reads another command: none is held back.
    pub fn is_reading(&self) -> bool {
        !self.pending.iter().any(|order| matches!(order, Order::Wait { holds: true, .. }))
    }

    /// It has read a command.
    pub fn read(&mut self, order: Order) {
        self.pending.push(order);
    }

    /// The commands that may be executed next, in any order.
    pub(super) fn executable(&self) -> usize {
        let is_wait = |order: &Order| matches!(order, Order::Wait { .. });
        match self.pending.iter().position(is_wait) {
            // All before it are executed.
            Some(0) => 1,
            Some(count) => count,
            None => self.pending.len(),
        }
    }

    /// Executes one of them.
    pub(super) fn execute(&mut self, time: u64, number: usize) -> Order {
        let order = self.pending.remove(number);
        match order {
            Order::Wait { data, .. } => self.reported = data,
            Order::Pages { domain, what } => self.domain_mut(domain).invalidate(time, what),
            Order::DevicePages { device, what } => {
                let told = self.devices.iter_mut().filter(|other| other.id == device);
                told.for_each(|device| device.tlb.invalidate(time, what));
            }
            Order::Entry { device } => self.drop_entries(time, device),
        }
        order
    }

    /// The IOMMU goes by the entry in memory.
    fn drop_entries(&mut self, time: u64, id: u16) {
        let mut left = Vec::new();
        for device in self.devices.iter_mut().filter(|other| other.id == id) {
            left.extend(device.former.drain(..).flatten());
            if device.entry.is_none() {
                device.tlb.exit(time);
            }
        }
        for former in left {
            let is_used =
                |device: &Device| device.entry == Some(former) || device.former.contains(&Some(former));
            if !self.devices.iter().any(is_used) {
                self.domain_mut(former.domain).exit(time);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn p16_commands_are_read_as_the_encoder_means_them() {
        use iommu::amd::command::{completion_wait, invalidate_all, invalidate_device};
        use iommu::amd::{Depth, device_pages, pages};
        use iommu::{DeviceId, DomainId};
        let nested = |start, len, walk| Invalidation::Nested { start, len, level: None, walk };
        let decoded = |command: iommu::Command| Order::decode(command.0);
        for (range, len) in [(0x5000..0x6000, 0x1000), (0x4000..0x8000, 0x4000), (1 << 30..2 << 30, 1 << 30)]
        {
            let start = range.start;
            for (depth, walk) in [(Depth::Leaves, false), (Depth::Tables, true)] {
                let command = pages(DomainId(3), depth, range.clone(), 1).next().unwrap();
                let order = Order::Pages { domain: 3, what: nested(start, len, walk) };
                assert_eq!(decoded(command), Some(order));
            }
            let order = Order::DevicePages { device: 9, what: nested(start, len, false) };
            assert_eq!(decoded(device_pages(DeviceId(9), 3, range).unwrap()), Some(order));
        }
        let everything = pages(DomainId(3), Depth::Tables, 0..u64::MAX, 1).next().unwrap();
        assert_eq!(decoded(everything), Some(Order::Pages { domain: 3, what: nested(0, u64::MAX, true) }));
        assert_eq!(decoded(invalidate_device(DeviceId(9))), Some(Order::Entry { device: 9 }));
        let wait = completion_wait(0x1000, 7).unwrap();
        assert_eq!(decoded(wait), Some(Order::Wait { data: 7, holds: true }));
        assert_eq!(decoded(invalidate_all()), None);
    }

    #[test]
    fn p16_nothing_passes_a_wait_and_everything_else_passes_everything() {
        let mut iommu = Iommu::new([(9, false)]);
        let entry = Order::Entry { device: 9 };
        for order in [entry, entry, Order::Wait { data: 7, holds: true }] {
            iommu.read(order);
        }
        assert!(!iommu.is_reading() && iommu.executable() == 2);
        iommu.execute(1, 1);
        assert_eq!((iommu.executable(), iommu.reported), (1, 0));
        iommu.execute(2, 0);
        iommu.execute(3, 0);
        assert!(iommu.is_reading() && iommu.reported == 7);
    }

    #[test]
    fn p16_a_former_entry_of_the_device_table_is_used_until_it_is_dropped() {
        let mut iommu = Iommu::new([(9, true)]);
        let entry = DeviceEntry { domain: 3, root: 0x1000 };
        iommu.write_entry(10, 0, Some(entry));
        iommu.write_entry(20, 0, None);
        let usable = |iommu: &Iommu| -> Vec<_> {
            (0..iommu.entry_count(0)).filter_map(|number| iommu.entry(0, number)).collect()
        };
        assert_eq!(usable(&iommu), [entry]);
        assert!(iommu.domain(3).unwrap().is_at(25, 0x1000));
        iommu.read(Order::Entry { device: 9 });
        iommu.execute(30, 0);
        assert_eq!(usable(&iommu), []);
        assert!(!iommu.domain(3).unwrap().is_at(35, 0x1000));
    }
}
