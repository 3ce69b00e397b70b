//! Accesses of devices, by the translations that the IOMMU and they themselves may hold.
//!
//! As for a processor, everything is a walk as of some time ([`walk`](super::walk)). A walk whose
//! words are read one after the other, while others change them, is one that begins with entries of
//! the walk cache from before; a translation fetched unasked is one from an earlier time.

use super::cache::Item;
use super::cpu::{Hw, breaks};
use super::format::{Arch, Stage};
use super::iommu::{Cause, DeviceEntry, Order};
use super::walk::{Fault, Nested, Walker};
use stay::iommu::smmu::Structure;

/// How many times one access may go back in time.
const BUDGET: u32 = 4;

/// A completed access of a device.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Dma {
    pub nested: Nested,
    /// The root by which the IOMMU went.
    pub root: u64,
}

impl Hw {
    /// Software writes a device's entry of the device table.
    pub(crate) fn write_device_entry(&mut self, device: usize, entry: Option<DeviceEntry>) {
        let time = self.memory.tick();
        self.iommu.write_entry(time, device, Cause::Entry, entry);
    }

    /// Software writes a word of what an SMMU reads.
    pub(crate) fn write_structure(&mut self, of: Structure, word: usize, value: u64) {
        let time = self.memory.tick();
        self.iommu.store(time, of, word, value);
    }

    /// The IOMMU executes a command that it has read, if there is one.
    pub(crate) fn execute_command(&mut self) -> Option<Order> {
        let count = self.iommu.executable();
        if count == 0 {
            return None;
        }
        let (number, time) = (self.rng.below(count), self.memory.tick());
        Some(self.iommu.execute(time, number))
    }

    /// A device loads from or stores to `gpa`.
    ///
    /// # Errors
    ///
    /// [`Fault`]; `Fault::Guest` if DMA is blocked. Nothing has been stored then.
    pub(crate) fn dma(&mut self, device: usize, gpa: u64, store: Option<u64>) -> Result<Dma, Fault> {
        self.memory.tick();
        self.steps.clear();
        let number = self.rng.below(self.iommu.entry_count(device));
        let entry = self.iommu.entry(device, number).ok_or(Fault::Guest)?;
        let now = self.memory.now();
        let mut nested = self.device_walk(device, entry, BUDGET, |walker| walker.translate(gpa))?;
        if store.is_some() && !self.is_writable(nested) {
            // A fault results from a walk.
            self.steps.clear();
            nested = self.device_walk(device, entry, 1, |walker| walker.walk(now, gpa))?;
        }
        if store.is_some() && !self.is_writable(nested) {
            return Err(Fault::Nested { gpa, in_walk: false, store: true });
        }
        self.check(nested.place)?;
        if self.arch() == Arch::Arm64 && nested.time < now {
            let mark = self.steps.len();
            let current = self.device_walk(device, entry, 0, |walker| walker.walk(now, gpa));
            self.steps.truncate(mark);
            breaks(&self.memory, gpa, nested, current.ok())?;
        }
        if let Some(value) = store {
            self.memory.store(nested.place.pa, value);
        }
        Ok(Dma { nested, root: entry.root })
    }

    /// The IOMMU records no stores in the tables.
    fn is_writable(&self, nested: Nested) -> bool {
        nested.write && (nested.dirty || self.arch().is_x86())
    }

    fn device_walk(
        &mut self,
        device: usize,
        entry: DeviceEntry,
        budget: u32,
        search: impl FnOnce(&mut DeviceWalker<'_>) -> Result<Nested, Fault>,
    ) -> Result<Nested, Fault> {
        // AMD-Vi and VT-d go by the nested tables, which VT-d reads in its own way.
        let tables = match self.arch() {
            Arch::Amd64 => Stage::Nested,
            Arch::Intel64 => Stage::NestedOfDevices,
            Arch::Arm64 => Stage::Device,
        };
        let formats = [self.format(Stage::Guest), self.format(tables)];
        let now = self.memory.now();
        let Self { memory, rng, steps, words, turns, iommu, .. } = self;
        let context = iommu.domain(entry.domain).ok_or(Fault::Guest)?;
        let device = iommu.device(device);
        // By a former entry of the device table, there is nothing but its root.
        let own_root = (!context.is_at(now, entry.root)).then_some(entry.root);
        let walker = Walker {
            memory,
            context,
            nested: context,
            globals: false,
            formats,
            by_space: false,
            sets_bits: false,
            rng,
            steps,
            budget,
            words,
            turns,
        };
        let tlb = device.has_ats.then_some(&device.tlb);
        search(&mut DeviceWalker { walker, tlb, own_root })
    }
}

/// One search for a device's translation.
struct DeviceWalker<'a> {
    /// With what the IOMMU may hold.
    walker: Walker<'a>,
    /// What the device may hold.
    tlb: Option<&'a super::cache::Context>,
    /// The table to begin with, if it is none that the domain has.
    own_root: Option<u64>,
}

impl DeviceWalker<'_> {
    /// A translation that the device may use now.
    fn translate(&mut self, gpa: u64) -> Result<Nested, Fault> {
        let Self { walker, tlb, own_root } = self;
        let now = walker.memory.now();
        if let Some(root) = *own_root {
            return walker.nested_walk_by(now, gpa, root);
        }
        walker.look_back(|walker| drop(walker.nested_walk(now, gpa, false)));
        if let Some(tlb) = *tlb {
            // Until then the IOMMU gave another answer.
            walker.turns.extend(walker.nested.last_invalidations());
            let held = walker.earlier(tlb, now, |walker, loaded| {
                let found = walker.nested(loaded, gpa, false)?;
                Ok((found, Item::NestedLeaf { gpa, level: found.level }))
            })?;
            if let Some(held) = held {
                return Ok(held);
            }
        }
        walker.nested(now, gpa, false)
    }

    fn walk(&mut self, now: u64, gpa: u64) -> Result<Nested, Fault> {
        match self.own_root {
            Some(root) => self.walker.nested_walk_by(now, gpa, root),
            None => self.walker.nested_walk(now, gpa, false),
        }
    }
}
