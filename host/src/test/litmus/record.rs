//! What Quell's code for Arm emits, recorded: it runs here on tables of its own, and on a processor
//! that only writes down. What each step is in the image is read from the image's source.

use crate::test::prelude::*;
use coherence::shootdown::{
    AddressSpace as KernelSpace, Broadcast, ByBroadcast, ByInterrupt, Concurrent, CpuSlot, Cpus, Flush,
    LocalCpu, PageRange, Pinned, RangeCell, Spaces, Tag, Tlb,
};
use coherence::tlbi::{self, Errata, Features, Granule, Limits, Setup, Stage2Tlb};
use coherence::vmid::{Home, LocalMaintenance, Residents, VmidAllocator, VmidSlot};
use coherence::{CpuId, Hardware, Ledger, NoDevices, Scope, Target, TargetSet, Targets, Walkers, issue};
use paging::{Arm64Stage2, Entries, FlushRange, Level, Permissions, PhysAddr, TableMemory};
use stay::Mistakes;
use stay::broadcast::{self, AddressSpace, CpuStage2};
use std::array;
use std::cell::{Cell, RefCell};
use std::ops::ControlFlow;
use std::sync::atomic::{AtomicU64, Ordering};

/// The watched entry becomes invalid, or valid again with another value.
pub(super) const BREAK: &str = "STR invalid";
pub(super) const MAKE: &str = "STR valid";
/// VTTBR_EL2 gets the watched machine's value, or another's.
pub(super) const OURS: &str = "MSR VTTBR_EL2,ours";
pub(super) const THEIRS: &str = "MSR VTTBR_EL2,theirs";

/// Where the instructions of the image are.
const IMAGE: &str = "hypervisor/src/arch/aarch64/memory/flush.rs";

pub(super) const PAGES: Setup = Setup {
    granule: Granule::Size4K,
    features: Features { range: false, ttl: true, forces_write_back: true, instructions_by_vmid: false },
    errata: Errata { repeat_tlbi: false, speculative_at: false },
    limits: Limits { pages_max: 512, ranges_max: 4 },
};
pub(super) const RANGES: Setup = Setup { features: Features { range: true, ..PAGES.features }, ..PAGES };
pub(super) const WHOLE: Setup = Setup { limits: Limits { pages_max: 0, ranges_max: 0 }, ..PAGES };
pub(super) const REPEATS: Setup = Setup { errata: Errata { repeat_tlbi: true, ..PAGES.errata }, ..PAGES };

const CPU: CpuId = CpuId(0);
const TABLES_MAX: usize = 8;
/// The memory behind what is watched, and another machine's VTTBR_EL2.
const FRAME: u64 = 1 << 30;
const OTHER: u64 = 9 << 48 | 0x9_0000;

type PageTable<'r> = paging::PageTable<Arm64Stage2<3, true>, &'r Recorder>;

/// A processor, its memory for tables, and the machine that they are of.
pub(super) struct Recorder {
    steps: RefCell<Vec<&'static str>>,
    tables: Vec<Entries>,
    used: Cell<usize>,
    /// Table and index of the watched entry, and whether it was valid at the last look.
    watched: Cell<Option<(usize, usize, bool)>>,
    vttbr: Cell<u64>,
    root: Cell<u64>,
    setup: Setup,
    vmids: VmidAllocator<1>,
    vmid: VmidSlot,
    residents: Residents<1>,
}

impl Recorder {
    fn new(setup: Setup) -> Self {
        let tables = (0..TABLES_MAX).map(|_| array::from_fn(|_| AtomicU64::new(0))).collect();
        Self {
            steps: RefCell::default(),
            tables,
            used: Cell::new(0),
            watched: Cell::new(None),
            vttbr: Cell::new(OTHER),
            root: Cell::new(0),
            setup,
            vmids: VmidAllocator::new(8, 1).expect("one CPU has VMIDs"),
            vmid: VmidSlot::new(),
            residents: Residents::new(),
        }
    }

    fn space(&self) -> AddressSpace<'_, 1> {
        let Self { vmids, vmid, residents, root, setup, .. } = self;
        AddressSpace { vmids, vmid, residents, root: root.get(), setup }
    }

    /// Stores are seen by their effect, before the next step.
    fn look(&self) {
        let Some((table, index, was_valid)) = self.watched.get() else { return };
        let is_valid = self.tables[table][index].load(Ordering::Relaxed) & 1 != 0;
        if is_valid != was_valid {
            self.watched.set(Some((table, index, is_valid)));
            self.steps.borrow_mut().push(if is_valid { MAKE } else { BREAK });
        }
    }

    fn step(&self, what: &'static str) {
        self.look();
        self.steps.borrow_mut().push(what);
    }

    /// Records from here on; the entry that leads to [`FRAME`] is watched.
    fn begin(&self) {
        let leads = |entry: &AtomicU64| entry.load(Ordering::Relaxed) & 0xffff_ffff_f001 == FRAME | 1;
        let mut tables = self.tables.iter().enumerate();
        let found = tables.find_map(|(at, table)| Some((at, table.iter().position(leads)?, true)));
        self.watched.set(found);
        self.steps.take();
    }

    fn end(&self) -> Vec<&'static str> {
        self.look();
        self.steps.take()
    }

    /// A vCPU that has been here before, or a new one, enters the machine's address space.
    fn enter(&self, place: &mut CpuStage2, home: &mut Home) {
        place.arrive(&self.space(), home, CPU, LocalMaintenance::Broadcast, self);
        let _loaded = broadcast::enter_address_space(self, CPU, place, &self.space(), || ());
    }

    /// Another machine's vCPU runs here.
    fn visit(&self, place: &mut CpuStage2) {
        let (vmid, residents) = (VmidSlot::new(), Residents::new());
        let space = AddressSpace { vmid: &vmid, residents: &residents, root: OTHER, ..self.space() };
        let _loaded = broadcast::enter_address_space(self, CPU, place, &space, || ());
    }
}

// SAFETY: tables are zero, used once, and as old as the recorder; no processor walks them.
unsafe impl TableMemory for &Recorder {
    fn allocate(&self) -> Option<PhysAddr> {
        let index = self.used.replace(self.used.get() + 1);
        (index < TABLES_MAX).then_some(PhysAddr((index as u64 + 1) * PAGE))
    }

    unsafe fn free(&self, _: PhysAddr) {}

    unsafe fn entries(&self, table: PhysAddr) -> &Entries {
        &self.tables[(table.0 / PAGE) as usize - 1]
    }

    fn publish(&self) {
        self.order_stores();
    }

    fn break_before_make(&self, range: FlushRange) {
        broadcast::break_before_make(*self, &self.space(), &range);
    }
}

macro_rules! recorded {
    ($($name:ident($($operand:ident)?))*) => {
        $(fn $name(&self $(, $operand: u64)?) {
            self.step(stringify!($name));
        })*
    };
}

impl Stage2Tlb for Recorder {
    recorded! {
        order_stores() complete() complete_local() complete_caches() context_sync() page(_operand) range(_operand)
        combined() everything() all_vms() local_combined() local_all_vms() instruction_cache()
        local_instruction_cache()
    }

    fn clean(&self, _: Range<u64>) {
        self.step("clean");
    }

    fn vttbr(&self) -> u64 {
        self.vttbr.get()
    }

    fn set_vttbr(&self, value: u64) {
        self.vttbr.set(value);
        let is_ours = value & 0xffff_ffff_fffe == self.root.get();
        self.step(if is_ours { OURS } else { THEIRS });
    }

    fn forbid_stage1_walks(&self) -> u64 {
        0
    }

    fn restore_stage1_walks(&self, _: u64) {}
}

impl Mistakes for Recorder {}

impl Hardware for Recorder {
    fn kick(&self, _: CpuId) {}

    fn relax(&self, _: u64) -> ControlFlow<()> {
        ControlFlow::Break(())
    }
}

/// The machine's one vCPU.
struct Vcpu<'r>(Target, &'r PageTable<'r>);

impl Targets for Vcpu<'_> {
    fn target(&self, index: usize) -> Option<&Target> {
        (index == 0).then_some(&self.0)
    }
}

// SAFETY: nobody walks the tables.
unsafe impl Walkers for Vcpu<'_> {
    type Stamp = paging::Stamp;
    type Devices<'a> = NoDevices;

    fn stamp(&self) -> paging::Stamp {
        self.1.stamp()
    }

    fn count(&self) -> usize {
        1
    }
}

/// A machine with 2 MiB of memory in pages of `level`, which has run on this CPU.
fn running(recorder: &Recorder, level: Level) -> Result<(PageTable<'_>, CpuStage2, Home)> {
    let mut table = PageTable::new(recorder).map_err(|error| anyhow!("{error:?}"))?;
    recorder.root.set(table.root().0);
    let mapped = table.map(0..2 * MIB, PhysAddr(FRAME), Permissions::READ | Permissions::WRITE, level);
    mapped.map_err(|error| anyhow!("{error:?}"))?;
    let (mut place, mut home) = (CpuStage2::new(), Home::new());
    recorder.enter(&mut place, &mut home);
    Ok((table, place, home))
}

/// Memory of so many pages is removed, by a CPU that the machine runs on, or not.
pub(super) fn removal(setup: Setup, pages: u64, runs_here: bool) -> Result<Vec<&'static str>> {
    let recorder = Recorder::new(setup);
    let (mut table, mut place, _) = running(&recorder, Level::Page4K)?;
    if !runs_here {
        recorder.visit(&mut place);
    }
    recorder.begin();
    let gather = table.unmap(0..pages * PAGE).map_err(|error| anyhow!("{error:?}"))?;
    let (vcpu, mut ledger) = (Vcpu(Target::new(), &table), Ledger::<1>::new());
    let (space, stale) = (recorder.space(), gather.invalidation());
    let flushed = broadcast::flush_space(&vcpu, &NoDevices, &recorder, &space, stale, &mut ledger, &recorder);
    let receipt = flushed.map_err(|_| anyhow!("the flush does not end"))?;
    ensure!(gather.release(&receipt).is_ok(), "the receipt does not cover the change");
    Ok(recorder.end())
}

/// A block becomes a table of pages.
pub(super) fn split() -> Result<Vec<&'static str>> {
    let recorder = Recorder::new(PAGES);
    let (table, ..) = running(&recorder, Level::Page2M)?;
    recorder.begin();
    let editor = table.edit().context("nobody else edits")?;
    let _not_released = editor.split(0..2 * MIB, Level::Page4K).finish();
    Ok(recorder.end())
}

/// The machine enters for the first time on a CPU where others have run.
pub(super) fn new_vmid() -> Result<Vec<&'static str>> {
    let (recorder, mut place) = (Recorder::new(PAGES), CpuStage2::new());
    recorder.visit(&mut place);
    recorder.root.set(PAGE);
    recorder.begin();
    recorder.enter(&mut place, &mut Home::new());
    Ok(recorder.end())
}

/// And where a generation of VMIDs begins.
pub(super) fn new_generation() -> Result<Vec<&'static str>> {
    let recorder = Recorder::new(PAGES);
    recorder.root.set(PAGE);
    recorder.enter(&mut CpuStage2::new(), &mut Home::new());
    Ok(recorder.end())
}

/// A vCPU arrives where another one of its machine ran; another machine did in between, or not.
pub(super) fn arrival(is_visited: bool) -> Result<Vec<&'static str>> {
    let recorder = Recorder::new(PAGES);
    let (_table, mut place, _) = running(&recorder, Level::Page2M)?;
    if is_visited {
        recorder.visit(&mut place);
    }
    recorder.begin();
    recorder.enter(&mut place, &mut Home::new());
    Ok(recorder.end())
}

/// A processor takes a request that was sent to it alone.
pub(super) fn request() -> Result<Vec<&'static str>> {
    let (recorder, targets, mut ledger) = (Recorder::new(PAGES), [Target::new()], Ledger::<1>::new());
    let _nobody_waits = issue(&targets[..], &TargetSet::<1>::first(1), Scope::All, &mut ledger);
    let mut owner = targets[0].owner().context("nobody else owns it")?;
    broadcast::take_flush(&recorder, &mut owner);
    Ok(recorder.end())
}

/// The back end of a kernel's shootdown. Quell has none for Arm: the instructions are those that
/// the traits ask for, and when they are executed is the engine's.
struct Kernel<'r>(&'r Recorder);

impl Broadcast for Kernel<'_> {
    fn invalidate(&mut self, _: &Flush<'_>, _: &Pinned) {
        self.0.order_stores();
        self.0.step("TLBI VAAE1IS");
    }

    fn synchronise(&mut self, _: &Pinned) {
        self.0.complete();
    }
}

impl Tlb for Kernel<'_> {
    fn load(&mut self, _: u64, _: Tag, _: bool) {}
    fn load_none(&mut self) {}
    fn flush_everything(&mut self) {}

    fn flush_range(&mut self, _: PageRange, _: bool) {
        self.0.step("TLBI VAAE1");
        self.0.complete_local();
        self.0.context_sync();
    }

    fn relax(&mut self, _: u64) -> ControlFlow<()> {
        ControlFlow::Break(())
    }
}

/// A kernel on two CPUs removes a page.
pub(super) fn shootdown() -> Result<Vec<&'static str>> {
    let recorder = Recorder::new(PAGES);
    let (spaces, slots, cells) =
        (Spaces::new(), [const { CpuSlot::new() }; 2], [const { RangeCell::new() }; 2]);
    let (space, cpus) = (spaces.create(PAGE), Cpus::new(&slots, &cells));
    let claim = |index| -> Option<LocalCpu<'_, &KernelSpace<1>, 1, 1>> { cpus.claim(index) };
    let (mut cpu, mut other) = claim(0).zip(claim(1)).context("each CPU once")?;
    cpu.switch_to(&space, &mut Kernel(&recorder));
    other.switch_to(&space, &mut Kernel(&recorder));
    let mut room = [PageRange::default()];
    let mut batch = space.batch(&mut room, ());
    recorder.step(BREAK);
    batch.add(PageRange::small(0, 1));
    let interrupts = ByInterrupt(|_: &TargetSet<1>| ());
    let mut remote = ByBroadcast::new(Kernel(&recorder), interrupts, TargetSet::first(2));
    let done = cpu.flush(batch, Concurrent, &mut remote, &mut Kernel(&recorder));
    ensure!(done.is_ok(), "the shootdown does not end");
    Ok(recorder.end())
}

/// Before the first machine: what firmware has left is as if it had just become invalid.
pub(super) fn start() -> Result<Vec<&'static str>> {
    let recorder = Recorder::new(PAGES);
    recorder.step(BREAK);
    let _done = tlbi::invalidate_all_vms(&recorder, &PAGES);
    Ok(recorder.end())
}

/// The instructions that the image has for what was recorded, as far as the model has them.
pub(super) fn instructions(recorded: &[&'static str]) -> Result<Vec<String>> {
    let path = workspace::root().join(IMAGE);
    let image = fs::read_to_string(&path).with_context(|| format!("cannot read {}", path.display()))?;
    let mut all: Vec<String> = Vec::new();
    // What follows gives back another machine's VTTBR_EL2, after all is proved.
    for name in recorded.iter().take_while(|name| **name != THEIRS) {
        let in_table = || image.split_once(&format!(" {name}: \""));
        let in_function = || image.split_once(&format!(" fn {name}("))?.1.split_once("asm!(\"");
        let text = match name.contains(' ') {
            true => *name,
            false => {
                let (_, rest) =
                    in_table().or_else(in_function).with_context(|| format!("{IMAGE} has no {name}"))?;
                rest.split(['"', '{']).next().unwrap_or_default()
            }
        };
        let text = text.trim_end_matches([',', ' ']).replace("sys #4, c8, c0, #2", "tlbi ripas2e1is");
        let text = if name.contains(' ') { text } else { text.to_uppercase() };
        // The model has no caches of instructions beside TLBs.
        if text.starts_with("IC ") {
            continue;
        }
        // Of two DSBs with nothing to order in between, one has no effect: paging makes its stores
        // known, and so does the flush that follows.
        if text.starts_with("DSB ") {
            let between = all.iter().rev().take_while(|step| step.starts_with("MSR ") || *step == "ISB");
            let at = all.len() - between.count();
            if at > 0 && all[at - 1] == text {
                all.remove(at - 1);
            }
        }
        all.push(text);
    }
    Ok(all)
}
