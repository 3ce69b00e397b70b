//! A virtual machine: the state that its vCPUs share.

use alloc::boxed::Box;
use alloc::vec::Vec;
use coherence::{Notify, Target};
use core::ops::Range;
use core::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use hostlink::config::{self, Config, NestedPage, ResetPolicy};
use memslots::space::ZapWay;
use memslots::{Gpa, Memslots, PhysAddr, Slot, SlotFlags, SlotId};
use paging::{Format, Level, Progress};
use spin::Mutex;

use super::arch::Arch;
use super::change::OwnChange;
use super::clock::GuestClock;
use super::console::Rings;
use super::files::{Bundle, CreateError, Files};
use super::freed::Exists;
use super::generation;
use super::host::Host;
use super::load::Load;
use super::memory::{FreeMemory, NestedTables};
use super::percpu::{self, PerCpu};
use super::reset::Reset;
use super::shown::ShownMemory;
use super::slot_memory::SlotMemory;
use super::space::VmMemory;
pub use super::vcpu::Vcpu;
pub use crate::index::VpIndex;
use crate::loader::LoadError;
use crate::page_pool::PagePool;
use crate::sched::notify::{self, Published};
use crate::sched::{CpuIndex, QueueClass, VcpuIndex};
use crate::stopping::{REQUESTS, Stopping};

/// A virtual machine.
pub struct Vm<A: Arch> {
    /// What it shares with the others.
    pub host: &'static Host<A>,
    /// Its number.
    pub number: u32,
    /// By index. Their rows are adjacent.
    pub vcpus: Vec<Vcpu<A>>,
    /// By index: the flush engine's view of each.
    pub targets: &'static [Target],
    /// Its memory.
    pub space: VmMemory<A>,
    /// The memory behind slots that are added and removed at run time.
    pub memory_of_slots: Mutex<SlotMemory>,
    /// The hypervisor's own memory that the guest may read.
    pub shown: Option<ShownMemory>,
    /// The architecture-specific shared state.
    pub guest: A::Shared,
    /// The files it was created from.
    pub files: Files,
    /// Its clock.
    pub clock: GuestClock,
    /// Its generation id, which a guest that arrives gets anew.
    pub generation: Mutex<u128>,
    /// The session in which it was given to another machine: meaningful while its state says so.
    pub(super) given: AtomicU64,
    /// Whether it has paused since it ran last: meaningful while it is sent.
    pub(super) pauses: AtomicBool,
    /// A change of memory that a vCPU's access has caused.
    pub(super) change: OwnChange<A>,
    /// Pending work that each of its vCPUs must check, and how many have stopped.
    pub(super) stopping: Stopping,
    /// How often its translations were audited.
    #[cfg(test)]
    pub(crate) audits: AtomicU64,
    /// Whether a request from the host waits for its turn to change guest memory: vCPUs let it go
    /// first.
    pub turn_wanted: AtomicBool,
    /// Where it writes what it sends to its serial ports; `None` if it has the machine's own.
    pub(super) rings: Option<Rings>,
    /// Memory for its nested page table.
    pub(crate) tables: NestedTables,
    pub(super) reset: Mutex<Option<Reset<A>>>,
    /// Under test: whether it has been freed.
    pub(super) exists: Exists,
}

/// The memory of a new machine.
struct Taken {
    /// In a box, because stacks are small.
    memslots: Box<Memslots>,
    /// The slots whose memory was free before.
    own: Vec<SlotId>,
    shown: Option<ShownMemory>,
    tables: NestedTables,
    rings: Option<Rings>,
}

/// Takes memory for a machine with this configuration. Nothing is taken if there is not enough.
#[inline(never)] // What it needs on the stack is free again when it returns.
fn take_memory<A: Arch>(host: &Host<A>, config: &Config<'_>, devices: u64) -> Result<Taken, CreateError> {
    let ram = A::ram(config).map_err(CreateError::Load)?;
    let mut free = host.free.lock();
    let before = copied(&free);
    let taken = take_from::<A>(&mut free, (&ram, devices), config, &host.bundle);
    if taken.is_err() {
        *free = *before;
    }
    taken
}

#[inline(never)] // What it needs on the stack is free again when it returns.
fn copied(free: &FreeMemory) -> Box<FreeMemory> {
    Box::new(free.clone())
}

#[inline(never)] // What it needs on the stack is free again when it returns.
fn no_slots<A: Arch>() -> Box<Memslots> {
    Box::new(Memslots::new(A::physical_address_bits()))
}

fn take_from<A: Arch>(
    free: &mut FreeMemory,
    (ram, devices): (&[Range<u64>], u64),
    config: &Config<'_>,
    bundle: &Bundle,
) -> Result<Taken, CreateError> {
    // The only guest may be given all memory later.
    let covered = if bundle.console_is_the_machines() { free.total() } else { config.memory };
    let mut memslots = no_slots::<A>();
    back_memory(ram, free, &mut memslots)?;
    let mut own = Vec::new();
    memslots.memory().for_each(|slot| own.push(slot.id));
    let shown = A::shown_memory(config.vcpus);
    if let Some(shown) = &shown {
        shown.add_to(&mut memslots).map_err(|_| too_large(config.memory))?;
    }
    let rings = match bundle.console_is_the_machines() {
        true => None,
        false => Some(Rings::take(free).ok_or(CreateError::NoTables)?),
    };
    // Last, because it takes some of the heap as well.
    let shadows = config.vcpus.saturating_mul(shadow_tables(config));
    let tables = NestedTables::take(free, covered, devices, config.switches.tables, shadows);
    let (tables, count) = tables.ok_or(CreateError::NoTables)?;
    log::debug!("{count} pages for nested page tables");
    Ok(Taken { memslots, own, shown, tables, rings })
}

/// Tables that shadows of one vCPU may take: enough for all memory in small pages, up to 2 GiB; 0
/// if the guest may not have guests.
pub(crate) fn shadow_tables(config: &Config<'_>) -> u32 {
    if config.nested { (PagePool::needed_inside(config.memory) / 2).clamp(256, 1024) } else { 0 }
}

/// Creates the machine that `files` describe. Its boot vCPU is ready to run.
///
/// # Errors
///
/// What the machine lacks, or what is wrong with the files.
#[inline(never)] // What it needs on the stack is free again when it returns.
pub fn create<A: Arch>(
    host: &'static Host<A>,
    number: u32,
    first: VcpuIndex,
    files: Files,
) -> Result<Box<Vm<A>>, CreateError> {
    let config = &files.config;
    A::check(config)?;
    let claim = A::claim(config, &host.common)?;
    let taken = take_memory(host, config, A::device_memory(&claim))?;
    assemble(host, (number, first), files, claim, taken)
}

/// Creates it from what was taken.
#[inline(never)] // What is done before needs its stack no more.
fn assemble<A: Arch>(
    host: &'static Host<A>,
    (number, first): (u32, VcpuIndex),
    files: Files,
    claim: A::Claim,
    taken: Taken,
) -> Result<Box<Vm<A>>, CreateError> {
    let config = &files.config;
    let Taken { memslots, own, shown, tables, rings } = taken;
    let space = space_of::<A>(memslots, tables, config)?;
    let identity = host.take_identities(config.vcpus);
    let shared = A::share(config, &host.common, &space, claim)?;
    let targets = host.targets(first, config.vcpus);
    let vcpu = |(index, target)| {
        let state = A::new_vcpu(&shared, VpIndex(index), identity + index);
        Vcpu::new((VpIndex(index), VcpuIndex(first.0 + index)), target, state)
    };
    Ok(Box::new(Vm {
        host,
        number,
        vcpus: (0..).zip(targets).map(vcpu).collect(),
        targets,
        space,
        memory_of_slots: Mutex::new(SlotMemory::new(own)),
        shown,
        guest: shared,
        files,
        clock: GuestClock::default(),
        generation: Mutex::new(generation::of_start(host, identity)),
        given: AtomicU64::new(0),
        pauses: AtomicBool::new(false),
        change: OwnChange::none(),
        stopping: Stopping::default(),
        #[cfg(test)]
        audits: AtomicU64::new(0),
        turn_wanted: AtomicBool::new(false),
        rings,
        tables,
        reset: Mutex::new(None),
        exists: Exists::new(),
    }))
}

#[inline(never)] // What it needs on the stack is free again when it returns.
fn space_of<A: Arch>(
    memslots: Box<Memslots>,
    tables: NestedTables,
    config: &Config<'_>,
) -> Result<VmMemory<A>, CreateError> {
    let largest = match config.switches.nested_page {
        NestedPage::Small => Level::Page4K,
        NestedPage::Large => A::largest_page().min(Level::Page2M),
        NestedPage::Huge => A::largest_page(),
    };
    let space =
        VmMemory::<A>::new(*memslots, A::tables(tables), largest).map_err(|_| CreateError::NoTables)?;
    // An IOMMU follows what has any right.
    let space = space.marking(config.devices.is_empty() || A::Nested::MARK & 0b11 == 0);
    Ok(space.zapping(match (config.switches.zap, config.switches.stage2_unmap) {
        (config::Zap::Everything, _) => ZapWay::Everything,
        (config::Zap::Slot, config::Stage2Unmap::Page) => ZapWay::PageByPage,
        (config::Zap::Slot, config::Stage2Unmap::Range | config::Stage2Unmap::Whole) => ZapWay::Detach,
    }))
}

/// Takes memory for the guest and makes slots of it: one for each piece of memory, with neither
/// gaps nor overlaps within a range.
fn back_memory(
    ram: &[Range<u64>],
    free: &mut FreeMemory,
    memslots: &mut Memslots,
) -> Result<(), CreateError> {
    let mut id = 0;
    for range in ram {
        let size = range.end - range.start;
        let pieces = free.take_pieces(range).ok_or_else(|| CreateError::NoMemory(size, free.total()))?;
        for piece in pieces {
            let slot = Slot {
                id: SlotId(id),
                gpa: Gpa(piece.at),
                size: piece.size,
                host: PhysAddr(piece.host),
                flags: SlotFlags::empty(),
            };
            // SAFETY: the memory was taken from the free RAM, is mapped one to one, and has no
            // other user until the slot is handed back: `Vm::take_back` frees it, when the job that
            // removes the slot has its receipt.
            unsafe { memslots.add(slot) }.map_err(|_| too_large(size))?;
            id += 1;
        }
    }
    Ok(())
}

/// There is no place, or no slot, for so much memory.
const fn too_large(memory: u64) -> CreateError {
    CreateError::Load(LoadError::MemoryTooLarge { memory })
}

impl<A: Arch> Vm<A> {
    /// Number of vCPUs.
    pub fn vcpu_count(&self) -> u32 {
        self.exists.check();
        self.vcpus.len() as u32
    }

    /// The rows of its vCPUs.
    pub fn rows(&self) -> Range<VcpuIndex> {
        let first = self.vcpus[0].row;
        first..VcpuIndex(first.0 + self.vcpu_count())
    }

    /// The CPUs that may run its vCPUs.
    pub fn cpus(&self) -> impl Iterator<Item = &'static PerCpu<A>> + '_ {
        percpu::online::<A>().filter(|cpu| self.may_use(cpu.index))
    }

    /// Whether a CPU may run its vCPUs.
    pub fn may_use(&self, cpu: CpuIndex) -> bool {
        self.files.config.cpus.contains(cpu.0) && self.host.sched.has_cpu(cpu)
    }

    /// The guest has sent a byte to this serial port. `to_machine` sends it to the machine's own.
    pub fn transmit(&self, port: usize, byte: u8, to_machine: impl FnOnce()) {
        match &self.rings {
            Some(rings) => rings.push(port, byte, || {
                if port == 0 && self.is_shown() {
                    A::show(&mut core::iter::once(byte), false);
                }
            }),
            None => to_machine(),
        }
    }

    /// Whether its console is on the machine's screen.
    fn is_shown(&self) -> bool {
        self.host.shown.load(Ordering::Relaxed) == self.number
    }

    /// Nanoseconds since the beginning of 1970.
    pub fn wall_ns(&self) -> u64 {
        self.clock.wall_ns(&self.host.wall, A::now())
    }

    /// What the machine's counter reads first at this time of the guest's date, or later.
    pub fn wall_ticks(&self, wall_ns: u64) -> u64 {
        self.clock.wall_ticks(&self.host.wall, wall_ns)
    }

    /// Whether the nested page table is compared with the slots after each change.
    pub fn is_paranoid(&self) -> bool {
        self.files.config.switches.paranoid
    }

    /// The action on a guest's reset.
    pub fn reset_policy(&self) -> ResetPolicy {
        self.files.config.reset
    }

    /// Loads the guest for its first run. No vCPU of it has ever run.
    pub(super) fn load_at_once(&self, mut load: Load<A>) {
        while load.step(self) != Progress::Done {}
        self.finish_load(load);
    }

    /// The guest's memory is ready: its boot vCPU begins at the kernel's entry. No vCPU runs.
    pub(super) fn finish_load(&self, load: Load<A>) {
        let boot = &self.vcpus[0];
        let _owner = boot.target.owner().expect("nobody runs the boot vCPU while memory is loaded");
        // SAFETY: the owner was just taken and is held meanwhile, so no other reference is alive.
        load.finish(self, unsafe { boot.state() });
    }

    /// Whether it gets what is typed on the machine: on its serial port if that is the guest's own,
    /// otherwise on its keyboard while its screen shows the guest's console.
    pub fn has_input(&self) -> bool {
        self.rings.is_none() || self.is_shown()
    }

    /// Cleans some of the freed memory; returns whether there is more.
    pub(super) fn clean_some(&self) -> bool {
        self.memory_of_slots.lock().clean_some::<A>(&mut self.host.free.lock())
    }

    pub(super) fn retire_memory(&self, slot: &Slot) {
        self.memory_of_slots.lock().retire_memory::<A>(&mut self.host.free.lock(), slot);
    }

    /// Tells a vCPU that something was posted to it.
    #[inline]
    pub fn notify(&self, vcpu: &Vcpu<A>, posted: Published) {
        self.exists.check();
        notify::notify(self.host, vcpu.row, vcpu.target, QueueClass::Work, posted);
    }

    /// The same, by the word that says so already.
    pub fn notified(&self, vcpu: &Vcpu<A>, note: Notify) {
        self.exists.check();
        notify::notified(self.host, vcpu.row, note, QueueClass::Work);
    }

    /// Pending work of all vCPUs: bits of [`stopping`](crate::stopping).
    #[inline]
    pub fn attention(&self) -> u32 {
        self.exists.check();
        self.stopping.attention()
    }

    /// Sets or clears the flag that makes its vCPUs look for requests.
    pub(super) fn set_requests_wait(&self, wait: bool) {
        self.exists.check();
        if wait { self.stopping.set(REQUESTS) } else { self.stopping.clear(REQUESTS) }
    }
}
