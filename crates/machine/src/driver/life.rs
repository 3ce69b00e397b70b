//! Guests that come and go: one is destroyed, and another one created in its place.
//!
//! ```text
//! destroyer                                             a CPU
//! A  no new vCPU; an event to each                      P  finds the event, and removes the vCPU that it has, or
//! B  removes those that no CPU has; waits for P            only gives it up, if its target is used again
//! C  the slots are removed by jobs, each with a
//!    receipt: memory is returned; before that or
//!    after it, the devices are taken away
//! D  nobody has a reference to the guest any more
//! E  asks each CPU to leave its address space (Arm64),  Q  loads a VTTBR_EL2 of no machine, drops what it has by
//!    or to let go of its root (Intel64)                    the root
//! F  waits for Q, returns the tables, drops the tags
//! ```
//!
//! After B nobody enters the guest. TLBs still hold its entries, under tags that nobody uses before
//! they are handed out again: in a generation before which everything was dropped. The root, which
//! is a tag on Intel64, is handed out after F.

use std::cell::{Cell, RefCell};
use std::rc::Rc;

use coherence::{Owner, Target};
use memslots::{Gpa, Memslots, Numbers, PhysAddr, Slot, SlotFlags, SlotId};
use paging::NeverWalked;

use super::device::Behind;
use super::vm::{Activity, Architecture, Heritage, Vm};
use crate::bug::Bug;
use crate::hw::memory::REGION_SIZE;
use crate::layout::{AREA_SIZE, PAGE_SIZE, PHYSICAL_BITS, TABLE_FRAMES, area};
use crate::machine::AbstractMachine;
use crate::program::Backing;

/// Pages from the start of a region to the memory of a slot with shifted backing.
const SHIFT_PAGES: u64 = 5;

/// The place of a virtual machine. It is empty while one is destroyed.
pub(crate) struct Row<'m, F: Architecture> {
    machine: &'m AbstractMachine,
    behind: Behind<'m>,
    index: usize,
    current: RefCell<Option<Rc<Vm<'m, F>>>>,
    /// Guests that were destroyed here.
    ended: Cell<u64>,
}

impl<'m, F: Architecture> Row<'m, F> {
    pub(crate) fn new(behind: Behind<'m>, index: usize, heritage: Heritage) -> Self {
        let machine = behind.machine;
        let vm = Rc::new(Vm::new(behind, index, heritage, first_slots(machine)));
        vm.load();
        Self { machine, behind, index, current: RefCell::new(Some(vm)), ended: Cell::new(0) }
    }

    /// The guest that is here gets the devices.
    pub(crate) fn attach_devices(&self) {
        if let Some(vm) = self.vm() {
            vm.fill_mirror_up();
            self.behind.attach(vm.device_root());
        }
    }

    pub(crate) fn vm(&self) -> Option<Rc<Vm<'m, F>>> {
        self.current.borrow().clone()
    }

    /// Whether no vCPU has operations left.
    pub(crate) fn is_over(&self) -> bool {
        let is_over = |vm: &Vm<'m, F>| vm.activity.iter().all(|activity| activity.get() == Activity::Over);
        self.current.borrow().as_deref().is_some_and(is_over)
    }

    /// Destroys the guest, and creates another one, which continues its operations: with slots of
    /// its own, or with those of a guest that came from elsewhere. `fill` fills its memory.
    pub(crate) fn recreate(&self, slots: Option<&[Slot]>, fill: impl FnOnce(&Vm<'m, F>)) {
        let Some(former) = self.current.take() else { return };
        let heritage = former.destroy();
        self.ended.set(self.ended.get() + 1);
        let machine = self.machine;
        machine.note(|| format!("guest {} of machine {} is gone", self.ended.get(), self.index));
        let time = machine.now();
        machine.oracle.borrow_mut().begin_vm(self.index, time);
        machine.ending[self.index].set(false);
        let slots = slots.map_or_else(|| first_slots(machine), |slots| moved_slots(machine, slots));
        let vm = Vm::new(self.behind, self.index, heritage, slots);
        fill(&vm);
        *self.current.borrow_mut() = Some(Rc::new(vm));
        self.attach_devices();
    }
}

impl<F: Architecture> Vm<'_, F> {
    /// Steps A to F: returns all memory, and the operations that are left.
    fn destroy(self: Rc<Self>) -> Heritage {
        let machine = self.machine;
        machine.ending[self.index].set(true);
        let is_early = machine.has(Bug::MemoryHandedOnEarly);
        if is_early {
            self.remove_all_slots();
        }
        self.stop();
        // Before the slots are removed, or after that.
        let is_detached_first = machine.below(2) == 0;
        if is_detached_first {
            self.behind.detach();
        }
        if !is_early {
            self.remove_all_slots();
        }
        if !is_detached_first {
            self.behind.detach();
        }
        machine.demand(self.check_logs());
        let mut shared = self;
        let vm = loop {
            match Rc::try_unwrap(shared) {
                Ok(vm) => break vm,
                Err(still_shared) => shared = still_shared,
            }
            machine.give_way();
        };
        if !machine.has(Bug::TablesHandedOnEarly) {
            machine.wait_until_all_have_left(vm.space.root().0);
        }
        vm.take_down()
    }

    /// A and B: all vCPUs stop.
    fn stop(&self) {
        self.is_dying.set(true);
        (0..self.vcpus.len()).for_each(|vcpu| self.post_event(vcpu));
        while !self.have_all_stopped() {
            self.machine.give_way();
        }
    }

    /// All vCPUs stop, and stay: no CPU has one any more, and whoever gets one puts it back.
    pub(super) fn stand_still(&self) {
        self.is_still.set(true);
        (0..self.vcpus.len()).for_each(|vcpu| self.post_event(vcpu));
        while !self.targets.iter().all(|target| target.owner().is_some()) {
            self.machine.give_way();
        }
    }

    /// Whether no CPU has a vCPU of the guest; removes vCPUs that none has. From then on none does:
    /// whoever gets one finds that the guest is being destroyed.
    fn have_all_stopped(&self) -> bool {
        if self.machine.config.reuses_targets {
            return self.targets.iter().all(|target| target.owner().is_some());
        }
        for owner in self.targets.iter().filter_map(Target::owner) {
            owner.remove();
            self.machine.point();
        }
        self.targets.iter().all(Target::is_absent)
    }

    /// A CPU gives up a vCPU of a guest that is being destroyed.
    pub(super) fn give_up(&self, owner: Owner<'_>) {
        if self.machine.config.reuses_targets { drop(owner) } else { owner.remove() }
    }

    /// C.
    fn remove_all_slots(&self) {
        let mut ids: Vec<SlotId> = Vec::new();
        self.space.slots().memory().for_each(|slot| ids.push(slot.id));
        for id in ids {
            let removed = self.remove(id.0);
            self.machine.demand(removed.map_err(|error| format!("{id:?} is not removed: {error}")));
        }
    }

    /// F, for the tables.
    fn take_down(self) -> Heritage {
        let Self { machine, index, space, vcpus, tags, targets, mirror, .. } = self;
        // SAFETY: no vCPU is left, and no processor has the root loaded; the model's processors
        // detect it if one has.
        let nobody_walks = unsafe { NeverWalked::new() };
        if space.dismantle().release(&nobody_walks).is_err() {
            machine.fail(|| "a gather refuses the receipt of a space without walkers".into());
        }
        if let Some(mirror) = mirror {
            mirror.take_down(&nobody_walks);
        }
        let count = machine.tables[index].get();
        if count != 0 {
            machine.fail(|| format!("machine {index} is gone, and {count} of its tables are not returned"));
        }
        let ops = vcpus.into_iter().map(|vcpu| {
            let vcpu = vcpu.into_inner();
            (vcpu.ops, vcpu.next)
        });
        let asids = tags.into_iter().map(|tags| tags.into_inner().asid);
        Heritage {
            ops: ops.collect(),
            asids: matches!(machine.bug, Some(Bug::TagHandedOn | Bug::OwedLeftBehind))
                .then(|| asids.collect()),
            targets: machine.config.reuses_targets.then_some(targets),
        }
    }
}

/// The slots of a new guest.
fn first_slots(machine: &AbstractMachine) -> Memslots {
    let mut slots = match machine.has(Bug::ShortGeneration) {
        true => Memslots::with_numbers(PHYSICAL_BITS, Numbers::of_bits_that_wrap(3)),
        false => Memslots::new(PHYSICAL_BITS),
    };
    let is_large = machine.config.large_only || machine.below(2) == 0;
    let (third, fourth) =
        if is_large { (Backing::Large, Backing::Large) } else { (Backing::Shifted, Backing::Small) };
    let backings = [Backing::Large, Backing::Large, third, fourth];
    for (id, backing) in (0..).zip(backings) {
        let slot = new_slot(machine, id, usize::from(id), backing, false).expect("there is memory");
        // SAFETY: the memory lives as long as the machine.
        unsafe { slots.add(slot) }.expect("areas do not overlap");
    }
    slots
}

/// A slot with new memory behind it.
pub(super) fn new_slot(
    machine: &AbstractMachine,
    id: u16,
    in_area: usize,
    backing: Backing,
    read_only: bool,
) -> Option<Slot> {
    let (offset, size) = match backing {
        Backing::Large => (0, AREA_SIZE),
        // The last pages would be in the next region.
        Backing::Shifted => (SHIFT_PAGES * PAGE_SIZE, AREA_SIZE - 8 * PAGE_SIZE),
        Backing::Small => (SHIFT_PAGES * PAGE_SIZE, 4 * PAGE_SIZE),
    };
    const { assert!(SHIFT_PAGES <= 8 && REGION_SIZE == AREA_SIZE) };
    let mut flags = SlotFlags::empty();
    flags.set(SlotFlags::READ_ONLY, read_only);
    let gpa = Gpa(area(in_area));
    backed_anew(machine, &Slot { id: SlotId(id), gpa, size, host: PhysAddr(offset), flags })
}

/// The slots of a guest that came from elsewhere, with new memory behind them.
fn moved_slots(machine: &AbstractMachine, former: &[Slot]) -> Memslots {
    let mut slots = Memslots::new(PHYSICAL_BITS);
    for slot in former {
        let slot = backed_anew(machine, slot).expect("there is memory");
        // SAFETY: the memory lives as long as the machine.
        unsafe { slots.add(slot) }.expect("areas do not overlap");
    }
    slots
}

/// The same slot, at the same place in another region.
fn backed_anew(machine: &AbstractMachine, slot: &Slot) -> Option<Slot> {
    let tracked: Vec<_> = TABLE_FRAMES.collect();
    let region = machine.hw.borrow_mut().memory.allocate_region(&tracked)?;
    Some(Slot { host: PhysAddr(region + slot.host.0 % REGION_SIZE), ..*slot })
}

/// Whether a run has ended correctly.
pub(crate) fn check_end<F: Architecture>(
    machine: &AbstractMachine,
    rows: &[Row<'_, F>],
) -> Result<(), String> {
    machine.hw.borrow().memory.check_free_tables()?;
    let mut slot_count = 0;
    for vm in rows.iter().filter_map(Row::vm) {
        vm.check_logs()?;
        vm.audit()?;
        vm.space.slots().memory().for_each(|_| slot_count += 1);
    }
    let region_count = machine.hw.borrow().memory.regions_in_use();
    match region_count == slot_count {
        true => Ok(()),
        false => Err(format!("{region_count} regions are in use, for {slot_count} slots")),
    }
}
