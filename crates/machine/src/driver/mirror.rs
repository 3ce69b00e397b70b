//! Tables by which devices behind an SMMU translate: they follow a guest's slots.

use std::cell::{RefCell, RefMut};
use std::rc::Rc;

use iommu::Stuck;
use paging::{Invalidation, NeverWalked, Progress};
use stay::iommu::Begun;
use stay::iommu::mirror::{Mirror, Slots};

use super::device::Behind;
use super::vm::{Architecture, Vm};
use crate::bug::Bug;
use crate::hw::format::Arch;
use crate::machine::{AbstractMachine, TablePool};

/// What there is to wait for, and the time before which what was unmapped is gone then.
pub(super) type Awaited = Option<(Begun, u64)>;
type Tables<'m> = Mirror<TablePool<'m>, Awaited>;

/// The tables of one guest, under a lock.
#[derive(Clone)]
pub(crate) struct GuestMirror<'m> {
    machine: &'m AbstractMachine,
    tables: Rc<RefCell<Tables<'m>>>,
}

impl core::fmt::Debug for GuestMirror<'_> {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.debug_struct("GuestMirror").finish_non_exhaustive()
    }
}

impl<'m> GuestMirror<'m> {
    /// For a guest whose devices are behind an SMMU.
    pub(super) fn new(behind: &Behind<'m>, pool: TablePool<'m>) -> Option<Self> {
        let machine = behind.machine;
        if machine.config.arch != Arch::Arm64 || !behind.has_devices() {
            return None;
        }
        let tables = Mirror::new(pool.of_devices()).expect("there are tables");
        Some(Self { machine, tables: Rc::new(RefCell::new(tables)) })
    }

    fn lock(&self) -> RefMut<'_, Tables<'m>> {
        loop {
            match self.tables.try_borrow_mut() {
                Ok(tables) => return tables,
                Err(_) => self.machine.give_way_inside(),
            }
        }
    }

    fn root(&self) -> u64 {
        self.lock().root()
    }

    /// Unmaps what is in no slot any more, and has `tell` tell the SMMU.
    pub(super) fn follow(
        &self,
        look_up: &dyn Fn(&mut Slots),
        tell: impl FnOnce(Invalidation<'_>) -> Result<Begun, Stuck>,
    ) -> Result<Awaited, Stuck> {
        let machine = self.machine;
        // The commands are given with the lock held.
        self.lock().follow(look_up, machine, |invalidation| Ok(Some((tell(invalidation)?, machine.now()))))
    }

    /// Returns the tables. No device translates by them.
    pub(super) fn take_down(self, nobody_walks: &NeverWalked) {
        let tables = Rc::into_inner(self.tables).expect("no flush is in progress").into_inner();
        assert!(tables.dismantle().release(nobody_walks).is_ok(), "nobody walks");
    }
}

impl<F: Architecture> Vm<'_, F> {
    /// Adds the slots of memory.
    pub(super) fn look_up(&self, slots: &mut Slots) {
        self.space.slots().memory().for_each(|slot| slots.push(*slot));
    }

    /// Makes a step of mapping the guest's memory for its devices.
    pub(super) fn fill_mirror(&self) -> Progress {
        let Some(mirror) = &self.mirror else { return Progress::Done };
        let mut former = Slots::new();
        let is_former = self.machine.has(Bug::MirrorOfFormerSlots);
        if is_former {
            self.look_up(&mut former);
            self.machine.give_way();
        }
        let filled = mirror.lock().fill(|slots| match is_former {
            true => *slots = former,
            false => self.look_up(slots),
        });
        // The devices do not reach all memory then.
        filled.unwrap_or(Progress::Done)
    }

    /// Maps the guest's memory for its devices, as far as is possible.
    pub(super) fn fill_mirror_up(&self) {
        while self.fill_mirror() == Progress::More {
            self.machine.point();
        }
    }

    /// Root of the tables by which its devices translate.
    pub(super) fn device_root(&self) -> u64 {
        self.mirror.as_ref().map_or(self.space.root().0, GuestMirror::root)
    }
}
