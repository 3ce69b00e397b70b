//! A virtual machine.

use std::cell::{Cell, RefCell};
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use coherence::asid::AsidSlot;
use coherence::vmid::Home;
use coherence::{Members, Target, Targets, Walkers};
use memslots::space::GuestSpace;
use memslots::{Gpa, Memslots, MmioCache};
use paging::{Amd64Nested, Arm64Stage2, Ept, Format as TableFormat, Level, Stamp};
use stay::tagged::{TranslationControls, Walks};
use stay::{MMIO_PAGES, Mistake, Mistakes};

use super::device::{Behind, DeviceFlush};
use super::guest::{ALL_PAGES, PendingCall};
use super::mirror::GuestMirror;
use super::processor::Vmcb;
use crate::bug::Bug;
use crate::hw::cpu::Roots;
use crate::hw::format::{Arch, Format};
use crate::layout::{AREA_SIZE, LAST_TABLES, PAGE_SIZE, PAGES, SPACES, WINDOWS, area, table};
use crate::machine::{AbstractMachine, TablePool};
use crate::program::{GuestOp, Program};

/// The contents of a log after it was returned.
const RETIRED: u64 = 0x0ddb_a110_0ddb_a110;

/// The state of a vCPU.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Activity {
    Ready,
    Halted,
    /// It has no operations left.
    Over,
}

/// The contents of an entry for a window.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Window {
    Nothing,
    Large,
    Table(usize),
}

/// The guest kernel's knowledge of its tables.
#[derive(Clone, Debug)]
pub(crate) struct GuestTables {
    /// The middle table of each space that is in use.
    pub(crate) middle: [usize; SPACES],
    pub(crate) windows: [[[Window; WINDOWS]; 2]; SPACES],
}

/// An architecture, by the format of its nested tables.
pub(crate) trait Architecture: TableFormat {
    const ARCH: Arch;
}

impl Architecture for Amd64Nested {
    const ARCH: Arch = Arch::Amd64;
}

impl Architecture for Ept {
    const ARCH: Arch = Arch::Intel64;
}

impl Architecture for Arm64Stage2<4> {
    const ARCH: Arch = Arch::Arm64;
}

/// The tags of a vCPU's translations, and where they are valid. Only the CPU that runs the vCPU
/// accesses it.
#[derive(Debug)]
pub(crate) struct Tags {
    /// For AMD64.
    pub(crate) asid: AsidSlot,
    /// For Arm64.
    pub(crate) home: Home,
}

/// State of a vCPU that only the CPU which runs it accesses.
#[derive(Debug)]
pub(crate) struct Vcpu {
    pub(crate) ops: Vec<GuestOp>,
    /// Index of the next operation.
    pub(crate) next: usize,
    /// Instructions for which it continues to spin.
    pub(crate) spin: u16,
    /// Nested faults that the current operation has taken.
    pub(crate) tries: u32,
    pub(crate) call: Option<PendingCall>,
    pub(crate) space: usize,
    pub(crate) vmcb: Vmcb,
    /// For Intel64.
    pub(crate) nested_debt: Cell<bool>,
    pub(crate) mmio: MmioCache<MMIO_PAGES>,
    /// Pages that its processor has listed, and that are not marked yet.
    pub(crate) listed: Vec<u64>,
    /// Walks to its code, by root.
    pub(crate) walks: Walks<u64>,
}

/// A virtual machine whose nested tables have the format `F`.
#[derive(Debug)]
pub(crate) struct Vm<'m, F: Architecture> {
    pub(crate) machine: &'m AbstractMachine,
    pub(crate) behind: Behind<'m>,
    pub(crate) index: usize,
    pub(crate) space: GuestSpace<F, TablePool<'m>>,
    /// The tables by which its devices translate, where they are behind an SMMU.
    pub(super) mirror: Option<GuestMirror<'m>>,
    /// By VP index: vCPUs that never run precede the first that does.
    pub(crate) targets: Vec<Target>,
    pub(crate) vcpus: Vec<RefCell<Vcpu>>,
    pub(crate) tags: Vec<RefCell<Tags>>,
    pub(crate) activity: Vec<Cell<Activity>>,
    pub(crate) tables: RefCell<GuestTables>,
    /// Number of slot updates that became visible.
    pub(crate) updates: Cell<u64>,
    /// Dirty logs, kept to the end: nothing may write to a returned one.
    pub(crate) logs: RefCell<Vec<Log>>,
    /// The host is changing slots, or fetching a log.
    pub(crate) is_changing: Cell<bool>,
    /// It is being destroyed: its vCPUs are removed.
    pub(crate) is_dying: Cell<bool>,
    /// It stands still for the last round of a migration: its vCPUs are not entered.
    pub(crate) is_still: Cell<bool>,
}

/// A guest's vCPUs: the operations of each, and the next one; with tags that it must not use, for
/// mistakes.
#[derive(Debug)]
pub(crate) struct Heritage {
    pub(crate) ops: Vec<(Vec<GuestOp>, usize)>,
    pub(crate) asids: Option<Vec<AsidSlot>>,
    /// The targets of the place, if they are used again.
    pub(crate) targets: Option<Vec<Target>>,
}

impl Heritage {
    /// The operations of a program.
    pub(crate) fn of(program: &Program, vm: usize) -> Self {
        let count = program.config.vcpus;
        let ops = program.guests[vm * count..][..count].iter().map(|ops| (ops.clone(), 0)).collect();
        Self { ops, asids: None, targets: None }
    }
}

impl Tags {
    /// Of a vCPU that has never run.
    fn new() -> Self {
        Self { asid: AsidSlot::new(), home: Home::new() }
    }
}

impl Vcpu {
    /// A vCPU that has never run, with its operations and the next one.
    fn new(ops: Vec<GuestOp>, next: usize) -> Self {
        Self {
            ops,
            next,
            spin: 0,
            tries: 0,
            call: None,
            space: 0,
            vmcb: Vmcb::new(),
            listed: Vec::new(),
            nested_debt: Cell::new(false),
            mmio: MmioCache::new(),
            walks: Walks::default(),
        }
    }
}

impl AbstractMachine {
    pub(super) fn finish_op(&self, vcpu: &mut Vcpu) {
        vcpu.next += 1;
        vcpu.tries = 0;
        self.count();
    }
}

/// A dirty log.
#[derive(Debug)]
pub(crate) struct Log {
    pub(super) words: Box<[AtomicU64]>,
    /// It was returned.
    pub(super) is_retired: bool,
}

impl Log {
    /// It is returned: nothing may be stored to it any more.
    pub(super) fn retire(&mut self) {
        self.is_retired = true;
        self.words.iter().for_each(|word| word.store(RETIRED, Relaxed));
    }

    pub(super) fn is_as_it_was_left(&self) -> bool {
        !self.is_retired || self.words.iter().all(|word| word.load(Relaxed) == RETIRED)
    }
}

impl<'m, F: Architecture> Vm<'m, F> {
    /// A guest whose memory is not filled yet.
    pub(crate) fn new(behind: Behind<'m>, index: usize, heritage: Heritage, slots: Memslots) -> Self {
        let machine = behind.machine;
        let count = machine.config.vcpus;
        let pool = TablePool::new(machine, index);
        let mirror = GuestMirror::new(&behind, pool);
        let is_walked_by_vtd = F::ARCH == Arch::Intel64 && behind.has_devices();
        let space = GuestSpace::new(slots, pool, Level::Page2M)
            .expect("there are tables")
            .marking(!is_walked_by_vtd || machine.has(Bug::MarksForDevices));
        machine.begin_tag(index, space.root().0);
        let mut tags: Vec<_> = (0..count).map(|_| Tags::new()).collect();
        for (tags, asid) in tags.iter_mut().zip(heritage.asids.into_iter().flatten()) {
            tags.asid = asid;
        }
        let targets = heritage
            .targets
            .unwrap_or_else(|| (0..machine.config.first_vp + count).map(|_| Target::new()).collect());
        let activity = |(ops, next): &(Vec<_>, usize)| {
            Cell::new(if *next == ops.len() { Activity::Over } else { Activity::Ready })
        };
        Self {
            machine,
            behind,
            index,
            space,
            mirror,
            targets,
            tags: tags.into_iter().map(RefCell::new).collect(),
            activity: heritage.ops.iter().map(activity).collect(),
            vcpus: heritage.ops.into_iter().map(|(ops, next)| RefCell::new(Vcpu::new(ops, next))).collect(),
            tables: RefCell::new(GuestTables {
                middle: [0; SPACES],
                windows: [[[Window::Nothing; WINDOWS]; 2]; SPACES],
            }),
            updates: Cell::new(0),
            logs: RefCell::new(Vec::new()),
            is_changing: Cell::new(false),
            is_dying: Cell::new(false),
            is_still: Cell::new(false),
        }
    }

    /// The vCPU has been removed, and another one is added, which continues its operations. It has
    /// tags and caches of its own.
    pub(crate) fn replace(&self, number: usize, vcpu: &mut Vcpu, tags: &mut Tags) {
        let machine = self.machine;
        *vcpu = Vcpu::new(core::mem::take(&mut vcpu.ops), vcpu.next);
        if !machine.has(Bug::VcpuTakenForFormer) {
            *tags = Tags::new();
        }
        machine.point();
        let time = machine.now();
        {
            let mut oracle = machine.oracle.borrow_mut();
            oracle.begin_vcpu(self.index, number, time);
            oracle.promise_guest(self.index, number, None, ALL_PAGES, time);
        }
        // A target that is used again is not left absent.
        if self.is_dying.get() && !machine.config.reuses_targets {
            return;
        }
        machine.note(|| format!("vCPU {}.{number} is another one", self.index));
        let added = self.target_of(number).add();
        if added.is_none() {
            machine.fail(|| format!("vCPU {}.{number} cannot be added", self.index));
        }
    }

    /// Puts the guest's tables into its memory, as a loader does. Every page that programs touch is
    /// mapped.
    pub(crate) fn load(&self) {
        let Some(slot) = self.space.slots().memory().find(Gpa(0)).filter(|slot| slot.size == AREA_SIZE)
        else {
            return;
        };
        let (arch, mut stores) = (self.machine.config.arch, Vec::new());
        let mut put = |gpa: u64, index: usize, entry: u64| {
            stores.push((slot.host.0 + gpa + index as u64 * 8, entry));
        };
        let mut tables = self.tables.borrow_mut();
        for space in 0..SPACES {
            put(table::root(space), 0, Format::guest_table(arch, table::upper(space)));
            put(table::upper(space), 1, Format::guest_table(arch, table::middle(space, 0)));
            tables.middle[space] = 0;
            for number in 0..2 {
                for window in 0..WINDOWS {
                    let last = (space * WINDOWS + window + number) % LAST_TABLES;
                    put(table::middle(space, number), window, Format::guest_table(arch, table::last(last)));
                    tables.windows[space][number][window] = Window::Table(last);
                }
            }
        }
        for last in 0..LAST_TABLES {
            for (index, page) in PAGES.into_iter().enumerate() {
                let gpa = area(1 + last % 2) + PAGES[(index + last) % PAGES.len()] * PAGE_SIZE;
                put(
                    table::last(last),
                    page as usize,
                    Format::guest_leaf(arch, gpa, Level::Page4K, true, false),
                );
            }
        }
        self.machine.hw.borrow_mut().memory.store_together(stores);
    }

    pub(crate) fn target_of(&self, vcpu: usize) -> &Target {
        &self.targets[self.machine.config.first_vp + vcpu]
    }

    pub(crate) fn roots(&self, space: usize) -> Roots {
        Roots { nested: self.space.root().0, guest: table::root(space) }
    }

    /// Registers of a vCPU in `space`. The flags of CR3 are not part of the address.
    pub(crate) fn translation_controls(&self, space: usize, mistakes: &impl Mistakes) -> TranslationControls {
        let pcid = self.machine.config.pcid && !mistakes.makes(Mistake::HaltInOneSpace);
        TranslationControls {
            cr3: table::root(space) | 0x18,
            cr4: 1 << 5 | u64::from(pcid) << 17,
            efer: 0x500,
            pat: 0,
        }
    }
}

/// The banks of a set, each in the place of the next.
struct NextBank<'s, S: ?Sized>(&'s S);

impl<S: Members + ?Sized> Members for NextBank<'_, S> {
    fn for_each_bank(&self, mut visit: impl FnMut(usize, u64)) {
        self.0.for_each_bank(|bank, bits| visit(bank + 1, bits));
    }
}

impl<F: Architecture> Targets for Vm<'_, F> {
    fn target(&self, index: usize) -> Option<&Target> {
        self.machine.point();
        self.targets.get(index)
    }

    fn for_each<S: Members + ?Sized>(&self, set: &S, mut act: impl FnMut(usize, &Target)) {
        let act = |index, target: &Target| {
            self.machine.point();
            act(index, target);
        };
        if self.machine.has(Bug::WrongBank) {
            stay::for_each_target(&self.targets, |target| target, &NextBank(set), act);
        } else {
            stay::for_each_target(&self.targets, |target| target, set, act);
        }
    }
}

// SAFETY: the model's processors run only for these targets, and an error of one of them ends the
// run.
unsafe impl<'m, F: Architecture> Walkers for Vm<'m, F> {
    type Stamp = Stamp;
    type Devices<'a> = DeviceFlush<'a, 'm>;

    fn stamp(&self) -> Stamp {
        self.space.stamp()
    }

    fn count(&self) -> usize {
        self.targets.len()
    }
}
