//! The machine that a program runs on: hardware, scheduler, oracle, and the hooks that connect them
//! to the crates under test.

use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
use std::rc::Rc;

use paging::{Entries, FlushRange, PhysAddr, TableMemory};
use stay::tagged::two_flushes::{Invept, Roots};
use stay::{Mistake, Mistakes};

use crate::bug::Bug;
use crate::driver::all_devices;
use crate::hw::bytes::Bytes;
use crate::hw::cpu::Hw;
use crate::hw::format::Arch;
use crate::hw::iommu::Iommu;
use crate::hw::lives::Presence;
use crate::hw::memory::Memory;
use crate::oracle::Oracle;
use crate::program::Config;
use crate::rng::Rng;
use crate::sched::Scheduler;
use crate::stage2::Stage2;

/// Frames for page tables.
const TABLES: usize = 96;
/// Regions that back slots.
const REGIONS: usize = 32;
/// Tables to which an actor may hold a reference and write later.
const HANDED_MAX: usize = 6;
/// The most instructions of a guest before an interrupt takes effect.
const LATENCY_MAX: u32 = 6;
/// Lines of a trace.
const TRACE_MAX: usize = 60;
/// Points of a run per operation, after which it counts as endless.
const POINTS_PER_OPERATION: u64 = 40_000;

/// The state that all actors share.
#[derive(Debug)]
pub(crate) struct AbstractMachine {
    /// Processors and memory. Borrowed only for the duration of one access.
    pub(crate) hw: RefCell<Hw>,
    pub(crate) oracle: RefCell<Oracle>,
    pub(crate) sched: Scheduler,
    pub(crate) config: Config,
    pub(crate) bug: Option<Bug>,
    /// For Arm64.
    pub(crate) stage2: Stage2,
    /// For Intel64: those by which each CPU may hold translations.
    pub(crate) roots: Vec<Roots>,
    bytes: Rc<Bytes>,
    pub(crate) failure: RefCell<Option<String>>,
    trace: Option<RefCell<VecDeque<String>>>,
    /// By actor: tables to which the software has references.
    handed: RefCell<Vec<VecDeque<u64>>>,
    /// Operations that were done.
    pub(crate) done: Cell<u64>,
    /// By CPU: instructions of a guest that it may still execute before it must have left for a
    /// kick.
    latency: RefCell<Vec<Option<u32>>>,
    /// By virtual machine: how many nested tables it has.
    pub(crate) tables: Vec<Cell<usize>>,
    /// By virtual machine: it is being destroyed.
    pub(crate) ending: Vec<Cell<bool>>,
    /// By virtual machine: root of the tables by which its devices may translate; `None` when they
    /// must not translate any more.
    pub(crate) dma_roots: Vec<Cell<Option<u64>>>,
    /// CPUs and hosts that have not ended.
    busy: Cell<usize>,
}

impl AbstractMachine {
    /// A machine for a program of `operations` operations. With `traced`, it records events.
    pub(crate) fn new(config: Config, seed: u64, operations: usize, bug: Option<Bug>, traced: bool) -> Self {
        let mut memory = Memory::new(TABLES, REGIONS).reusing(config.reuses_at_once);
        let nowhere = memory.allocate_table().ok().flatten().expect("all tables are free");
        let points_max = (operations as u64 + 10) * POINTS_PER_OPERATION;
        let (bytes, rng) = (memory.bytes(), Rng::new(seed ^ 0x11));
        let mut hw = Hw::new(config.arch, config.cpus, memory, rng);
        (hw.pcid, hw.globals, hw.has_vpids) = (config.pcid, config.globals, config.vpids);
        hw.iommu = Iommu::new(all_devices(&config));
        let actors = config.cpus + config.vms;
        Self {
            bytes,
            hw: RefCell::new(hw),
            oracle: RefCell::new(Oracle::new(config.vms, config.vcpus)),
            sched: Scheduler::new(Rng::new(seed ^ 0x22), points_max),
            config,
            bug,
            stage2: Stage2::new(&config, nowhere),
            roots: (0..config.cpus).map(|_| Roots::with_room_for(config.roots)).collect(),
            failure: RefCell::new(None),
            trace: traced.then(RefCell::default),
            handed: RefCell::new(vec![VecDeque::new(); actors]),
            done: Cell::new(0),
            latency: RefCell::new(vec![None; config.cpus]),
            tables: vec![Cell::new(0); config.vms],
            ending: vec![Cell::new(false); config.vms],
            dma_roots: vec![Cell::new(None); config.vms],
            busy: Cell::new(actors),
        }
    }

    pub(crate) fn has(&self, bug: Bug) -> bool {
        self.bug == Some(bug)
    }

    /// Another actor may run here. The current actor holds no reference to a table.
    pub(crate) fn point(&self) {
        self.sync();
        self.let_go();
        self.sched.point();
    }

    /// Another actor runs here: the current one waits for something.
    pub(crate) fn give_way(&self) {
        self.sync();
        self.let_go();
        self.sched.give_way();
    }

    /// Another actor may run here, in the middle of a crate's operation.
    pub(crate) fn hook(&self) {
        self.sync();
        self.sched.point_inside();
    }

    /// Another actor runs here: the current one waits in the middle of a crate's operation.
    pub(crate) fn give_way_inside(&self) {
        self.sync();
        self.sched.give_way();
    }

    /// Reads what the current actor has written to tables.
    fn sync(&self) {
        let Some(actor) = self.sched.current() else { return };
        let handed = self.handed.borrow();
        // The IOMMU and devices have no references.
        if let Some(handed) = handed.get(actor).filter(|handed| !handed.is_empty()) {
            self.hw.borrow_mut().memory.sync(handed.iter().copied());
        }
    }

    fn let_go(&self) {
        let handed = &mut self.handed.borrow_mut();
        if let Some(handed) = self.sched.current().and_then(|actor| handed.get_mut(actor)) {
            handed.clear();
        }
    }

    fn hand_out(&self, table: u64) {
        let Some(actor) = self.sched.current() else { return };
        let handed = &mut self.handed.borrow_mut()[actor];
        if handed.back() != Some(&table) {
            handed.retain(|&other| other != table);
            if handed.len() == HANDED_MAX {
                handed.pop_front();
            }
            handed.push_back(table);
        }
    }

    pub(crate) fn now(&self) -> u64 {
        self.hw.borrow().memory.now()
    }

    pub(crate) fn below(&self, end: usize) -> usize {
        self.hw.borrow_mut().rng.below(end)
    }

    pub(crate) fn note(&self, what: impl FnOnce() -> String) {
        let Some(trace) = &self.trace else { return };
        let mut trace = trace.borrow_mut();
        if trace.len() == TRACE_MAX {
            trace.pop_front();
        }
        let actor = match self.sched.current() {
            Some(actor) if actor < self.config.cpus => format!("CPU {actor}"),
            Some(actor) if actor < self.busy_max() => format!("host {}", actor - self.config.cpus),
            Some(actor) if actor == self.busy_max() => "IOMMU".into(),
            Some(_) => "device".into(),
            None => "end".into(),
        };
        trace.push_back(format!("{:>8}  {actor:<7} {}", self.now(), what()));
    }

    /// Reports an error. The run ends.
    pub(crate) fn fail(&self, what: impl FnOnce() -> String) {
        if self.failure.borrow().is_none() {
            let what = what();
            self.note(|| format!("FAILED: {what}"));
            *self.failure.borrow_mut() = Some(what);
        }
        self.sched.stop();
        self.sched.give_way();
    }

    /// Fails unless `result` is `Ok`.
    pub(crate) fn demand(&self, result: Result<(), String>) {
        if let Err(what) = result {
            self.fail(|| what);
        }
    }

    /// Sends an interrupt that makes a CPU leave guest mode.
    pub(crate) fn kick(&self, cpu: usize) {
        self.latency.borrow_mut()[cpu].get_or_insert(LATENCY_MAX);
        if !self.has(Bug::LostKick) {
            self.hw.borrow_mut().interrupt(cpu);
        }
    }

    /// Whether the guest on a CPU leaves guest mode for an interrupt before its next instruction.
    /// That may take several instructions.
    pub(crate) fn is_due(&self, cpu: usize) -> bool {
        let Some(left) = self.latency.borrow_mut()[cpu].as_mut().map(|left| {
            *left = left.saturating_sub(1);
            *left
        }) else {
            return false;
        };
        let is_interrupted = self.hw.borrow().is_interrupted(cpu);
        if left == 0 && !is_interrupted {
            self.fail(|| format!("G5: CPU {cpu} was kicked and is still in guest mode"));
        }
        is_interrupted && (left <= 1 || self.below(2) == 0)
    }

    /// A CPU that is out of guest mode takes the pending interrupt.
    pub(crate) fn take_interrupt(&self, cpu: usize) {
        self.latency.borrow_mut()[cpu] = None;
        self.hw.borrow_mut().take_interrupt(cpu);
    }

    /// INVEPT.
    pub(crate) fn invept(&self, cpu: usize, named: Invept) {
        self.note(|| format!("INVEPT: {named:x?}"));
        self.hw.borrow_mut().invept(cpu, named);
    }

    /// Whether a virtual machine is being destroyed by a driver with this mistake.
    pub(crate) fn ends_by(&self, bug: Bug, vm: usize) -> bool {
        self.has(bug) && self.ending[vm].get()
    }

    const fn busy_max(&self) -> usize {
        self.config.cpus + self.config.vms
    }

    /// Whether a CPU or host has not ended: the IOMMU and the devices go on until then.
    pub(crate) fn is_busy(&self) -> bool {
        self.busy.get() != 0
    }

    pub(crate) fn end_actor(&self) {
        self.busy.set(self.busy.get() - 1);
    }

    pub(crate) fn is_on(&self, cpu: usize) -> bool {
        self.sched.current() == Some(cpu)
    }

    /// Counts an operation that was done.
    pub(crate) fn count(&self) {
        self.done.set(self.done.get() + 1);
    }

    pub(crate) fn trace(&self) -> Vec<String> {
        self.trace.as_ref().map(|trace| trace.borrow().iter().cloned().collect()).unwrap_or_default()
    }
}

/// The allocator of nested tables for one virtual machine, or of tables for its devices alone.
#[derive(Clone, Copy, Debug)]
pub(crate) struct TablePool<'m> {
    machine: &'m AbstractMachine,
    vm: usize,
    is_of_devices: bool,
}

impl<'m> TablePool<'m> {
    pub(crate) fn new(machine: &'m AbstractMachine, vm: usize) -> Self {
        Self { machine, vm, is_of_devices: false }
    }

    /// The same for tables by which no processor translates.
    pub(crate) fn of_devices(self) -> Self {
        Self { is_of_devices: true, ..self }
    }
}

// SAFETY: a table is allocated only while it is free, and zero; its words are accessed by atomics,
// and they live as long as the machine. A violation of the contract by a caller is detected and
// ends the run.
unsafe impl TableMemory for TablePool<'_> {
    fn allocate(&self) -> Option<PhysAddr> {
        self.machine.hook();
        let table = self.machine.hw.borrow_mut().memory.allocate_table();
        let table = match table {
            Ok(table) => table?,
            Err(what) => {
                self.machine.fail(|| what);
                return None;
            }
        };
        self.machine.hand_out(table);
        let count = &self.machine.tables[self.vm];
        count.set(count.get() + 1);
        Some(PhysAddr(table))
    }

    unsafe fn free(&self, table: PhysAddr) {
        self.machine.hook();
        self.machine.sync();
        let is_zero = self.machine.bytes.entries(table.0).is_some_and(|entries| {
            entries.iter().all(|entry| entry.load(core::sync::atomic::Ordering::Relaxed) == 0)
        });
        if !is_zero {
            self.machine.fail(|| format!("table {table} is freed with entries in it"));
        }
        let walker = self.machine.hw.borrow().walker_of(table.0);
        if let Some(cpu) = walker {
            self.machine.fail(|| format!("the root {table} is freed, and CPU {cpu} may walk from it"));
        }
        let holder = self.machine.hw.borrow().holder_of(table.0);
        if let Some(cpu) = holder {
            self.machine.fail(|| format!("the root {table} is freed, and CPU {cpu} may hold what it tags"));
        }
        let was_used = self.machine.hw.borrow_mut().memory.free_table(table.0);
        if !was_used {
            self.machine.fail(|| format!("table {table} is freed twice"));
        }
        let count = &self.machine.tables[self.vm];
        count.set(count.get().saturating_sub(1));
        self.machine.note(|| format!("frees {}", self.machine.hw.borrow().memory.name(table.0)));
    }

    unsafe fn entries(&self, table: PhysAddr) -> &Entries {
        self.machine.hook();
        let is_alive = {
            let memory = &self.machine.hw.borrow().memory;
            matches!(memory.presence(table.0, memory.now()), Presence::Alive(_))
                && memory.entries(table.0).is_some()
        };
        if !is_alive {
            self.machine.fail(|| {
                format!("software walks {}, which is free", self.machine.hw.borrow().memory.name(table.0))
            });
        }
        self.machine.hand_out(table.0);
        self.machine.bytes.entries(table.0).expect("a table lies in memory")
    }

    fn publish(&self) {
        self.machine.hook();
    }

    fn break_before_make(&self, range: FlushRange) {
        if self.is_of_devices {
            return;
        }
        self.machine.sync();
        if self.machine.config.arch == Arch::Arm64 && !self.machine.ends_by(Bug::TagHandedOn, self.vm) {
            self.machine.break_before_make(self.vm, &range);
        }
        self.machine.hook();
    }
}

impl Mistakes for AbstractMachine {
    fn makes(&self, mistake: Mistake) -> bool {
        self.hook();
        self.has(Bug::Step(mistake))
    }
}
