//! An IOMMU: its commands, and what it and the devices behind it may hold.
//!
//! It reads the commands of AMD-Vi ([`amd_vi`]), of VT-d ([`vtd`]) or of an SMMU ([`smmu`]) in
//! order, and executes them as late and in any order that it may: a wait (COMPLETION_WAIT, a wait
//! descriptor, CMD_SYNC) is complete after all that were before it, and those behind it begin after
//! that, with AMD-Vi and VT-d if a bit says so. Nothing else orders them.
//!
//! An invalidation removes translations of a size that overlap its block. The IOMMU may go by a
//! former entry of the device table until it is told (INVALIDATE_DEVTAB_ENTRY, CFGI_STE, CFGI_CD).
//! It holds no absent entries.

pub(crate) mod amd_vi;
pub(crate) mod smmu;
pub(crate) mod vtd;

use stay::iommu::smmu::Structure;

use super::cache::{Context, Invalidation};

/// An entry of the device table that does not block DMA.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct DeviceEntry {
    /// The tag.
    pub domain: u16,
    pub root: u64,
}

/// The meaning of a command.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Order {
    /// COMPLETION_WAIT with a store.
    Wait {
        data: u64,
        /// Later commands begin after it.
        holds: bool,
    },
    /// CMD_SYNC: the head passes it when it is complete.
    Sync,
    /// INVALIDATE_DEVTAB_ENTRY, CFGI_STE; VT-d drops a context if it has the domain that is named.
    Entry { device: u16, former: Option<u16> },
    /// CFGI_CD.
    Descriptor { device: u16 },
    /// INVALIDATE_IOMMU_PAGES, TLBI.
    Pages { domain: u16, what: Invalidation },
    /// INVALIDATE_IOTLB_PAGES.
    DevicePages { device: u16, what: Invalidation },
}

/// What was written when the IOMMU's view of a device changed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Cause {
    /// Its entry of the device table.
    Entry,
    /// The descriptor that its entry names.
    Descriptor,
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
    former: Vec<(Cause, Option<DeviceEntry>)>,
    /// What the device itself holds.
    pub(super) tlb: Context,
}

impl Device {
    /// One of the entries that the IOMMU may go by: the one in memory is the first.
    fn view(&self, number: usize) -> Option<DeviceEntry> {
        number.checked_sub(1).map_or(self.entry, |number| self.former[number].1)
    }
}

#[derive(Debug, Default)]
pub(crate) struct Iommu {
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
    /// What an SMMU reads.
    structures: smmu::Structures,
}

impl Iommu {
    /// With devices that have these numbers, and ATS or not.
    pub(crate) fn new(devices: impl IntoIterator<Item = (u16, bool)>) -> Self {
        let device =
            |(id, has_ats)| Device { id, has_ats, entry: None, former: Vec::new(), tlb: Context::default() };
        Self { devices: devices.into_iter().map(device).collect(), ..Self::default() }
    }

    /// A device, by its place.
    pub(super) fn device(&self, device: usize) -> &Device {
        &self.devices[device]
    }

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
        self.devices[device].view(number)
    }

    /// Software writes a word of what an SMMU reads.
    pub(super) fn store(&mut self, time: u64, of: Structure, word: usize, value: u64) {
        self.structures.store(of, word, value);
        let cause = match of {
            Structure::Entry(_) => Cause::Entry,
            Structure::Descriptor(_) => Cause::Descriptor,
        };
        for device in 0..self.devices.len() {
            let entry = self.structures.entry(self.devices[device].id);
            if entry != self.devices[device].entry {
                self.write_entry(time, device, cause, entry);
            }
        }
    }

    /// What an SMMU reads.
    pub(crate) fn structures(&self) -> &smmu::Structures {
        &self.structures
    }

    /// Software changes how a device translates, by writing its entry or a descriptor.
    pub(super) fn write_entry(&mut self, time: u64, device: usize, cause: Cause, entry: Option<DeviceEntry>) {
        if let Some(DeviceEntry { domain, root }) = entry {
            let context = self.domain_mut(domain);
            if !context.is_at(time, root) {
                context.enter(time, root, 0);
            }
            self.devices[device].tlb.enter(time, root, 0);
        }
        let device = &mut self.devices[device];
        device.former.push((cause, core::mem::replace(&mut device.entry, entry)));
    }

    /// Whether it reads another command: none is held back.
    pub(crate) fn is_reading(&self) -> bool {
        !self.pending.iter().any(|order| matches!(order, Order::Sync | Order::Wait { holds: true, .. }))
    }

    pub(crate) fn read(&mut self, order: Order) {
        self.pending.push(order);
    }

    /// The commands that may be executed next, in any order.
    pub(super) fn executable(&self) -> usize {
        let is_wait = |order: &Order| matches!(order, Order::Sync | Order::Wait { .. });
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
            Order::Sync => {}
            Order::Pages { domain, what } => self.domain_mut(domain).invalidate(time, what),
            Order::DevicePages { device, what } => {
                let told = self.devices.iter_mut().filter(|other| other.id == device);
                told.for_each(|device| device.tlb.invalidate(time, what));
            }
            Order::Entry { device, former } => self.drop_entries(time, device, |_, entry| {
                let of_other = |entry: DeviceEntry| former.is_some_and(|domain| entry.domain != domain);
                !entry.is_some_and(of_other)
            }),
            Order::Descriptor { device } => {
                self.drop_entries(time, device, |cause, _| cause == Cause::Descriptor);
            }
        }
        order
    }

    /// The IOMMU goes by what is in memory, instead of former entries that `names` says.
    fn drop_entries(&mut self, time: u64, id: u16, names: impl Fn(Cause, Option<DeviceEntry>) -> bool) {
        let mut left = Vec::new();
        for device in self.devices.iter_mut().filter(|other| other.id == id) {
            left.extend(
                device
                    .former
                    .extract_if(.., |(cause, entry)| names(*cause, *entry))
                    .filter_map(|(_, entry)| entry),
            );
            if device.entry.is_none() && device.former.is_empty() {
                device.tlb.exit(time);
            }
        }
        for former in left {
            let is_used =
                |device: &Device| (0..=device.former.len()).any(|number| device.view(number) == Some(former));
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
    fn p16_nothing_passes_a_wait_and_everything_else_passes_everything() {
        let mut iommu = Iommu::new([(9, false)]);
        let entry = Order::Entry { device: 9, former: None };
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
        iommu.write_entry(10, 0, Cause::Entry, Some(entry));
        iommu.write_entry(20, 0, Cause::Entry, None);
        let usable = |iommu: &Iommu| -> Vec<_> {
            (0..iommu.entry_count(0)).filter_map(|number| iommu.entry(0, number)).collect()
        };
        assert_eq!(usable(&iommu), [entry]);
        assert!(iommu.domain(3).unwrap().is_at(25, 0x1000));
        iommu.read(Order::Entry { device: 9, former: Some(4) });
        iommu.execute(29, 0);
        assert_eq!(usable(&iommu), [entry], "it has another domain");
        iommu.read(Order::Entry { device: 9, former: Some(3) });
        iommu.execute(30, 0);
        assert_eq!(usable(&iommu), []);
        assert!(!iommu.domain(3).unwrap().is_at(35, 0x1000));
    }
}
