//! The virtual machine: what all its vCPUs share.

use alloc::boxed::Box;
use alloc::vec;
use alloc::vec::Vec;
use core::cell::UnsafeCell;
use core::fmt;
use core::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};

use coherence::{Notify, Target};
use hostlink::config::{BootCpu, Config, ConfigError, NestedPage, ResetPolicy};
use hostlink::counters::{BEACON_MAGIC, Beacon, Counter};
#[cfg(feature = "defects")]
use hostlink::defect::Defect;
use hostlink::{bundle, config};
use memslots::{Gpa, Memslots, PhysAddr, Slot, SlotFlags, SlotId};
use paging::Level;
use spin::{Mutex, Once};
use tar_no_std::TarArchiveRef;

pub(super) use super::flush::FlushScratch;
use super::flush::{CallServices, MemorySource};
use super::interrupts::VECTOR_KICK;
use super::memory::{self, FreeMemory, HeapTables};
use super::overlay::Overlays;
use super::percpu::PerCpu;
use super::rom::Rom;
use super::slot_memory::SlotMemory;
use super::space::Space;
use super::svm::state::{Permissions, VcpuState};
use super::svm::{cpuid, invalidate, msr};
use super::{apic, clock, console, control};
use crate::devices::acpi;
use crate::devices::apic_ids::Assignment;
use crate::devices::inbox::Inbox;
use crate::devices::lapic::TimerClock;
use crate::devices::message::{Message, MessageKind, Trigger};
use crate::devices::pci::rom_device::RomLen;
use crate::devices::platform::{Platform, PortSize, SerialPort};
use crate::devices::power;
use crate::hyperv::{self, CrashReport, Partition};
use crate::loader::{self, LoadError, MemoryLayout, layout};
use crate::sched::{Line, Nudge, Policy, Scheduler, VcpuIndex};
use crate::tlb::{self, Measured};

/// Rate of the guest's APIC timer. A power of ten makes the guest's calibration exact.
const APIC_HZ: u64 = 1_000_000_000;
const PAGE: u64 = 4096;
const GIB: u64 = 1 << 30;
/// See [`Machine::tick_max`].
const TICK_MAX_US: u64 = 20_000;
/// Bytes of a crash message that are printed.
const CRASH_TEXT_MAX: usize = 4096;

/// Where the host tool finds the counters.
#[unsafe(no_mangle)]
static QUELL_BEACON: Beacon = Beacon::new();

static MACHINE: Once<Machine> = Once::new();

/// Bits of [`Machine::attention`].
pub(super) mod attention {
    /// A reset is under way.
    pub(in super::super) const RESET: u32 = 1 << 0;
    /// Somebody outside has a request, or one is being served.
    pub(in super::super) const REQUESTS: u32 = 1 << 1;
}

/// The counters of one vCPU, as `hostlink::counters` lays them out.
pub(super) type CounterRow = [AtomicU64; Counter::COUNT];

/// One virtual CPU.
pub(super) struct Vcpu {
    /// Index in the machine; also its VP index.
    pub(super) index: VcpuIndex,
    /// As the flush engine sees it. Its owner is the one who may touch `state`.
    pub(super) target: Target,
    /// Interrupts that others post.
    pub(super) inbox: Inbox,
    state: UnsafeCell<VcpuState>,
}

// SAFETY: `state` is reached only through `state()`, whose caller owns the target; the rest is atomic.
unsafe impl Sync for Vcpu {}

impl Vcpu {
    /// The private state.
    ///
    /// # Safety
    ///
    /// The caller holds the target's `Owner`, and no reference from an earlier call is alive.
    #[expect(clippy::mut_from_ref, reason = "ownership is proved by the target's token")]
    pub(super) unsafe fn state(&self) -> &mut VcpuState {
        // SAFETY: the token is exclusive, so there is no other reference.
        unsafe { &mut *self.state.get() }
    }
}

/// The one virtual machine.
pub(super) struct Machine {
    pub(super) vcpus: Vec<Vcpu>,
    apic_ids: Assignment,
    /// Its memory.
    pub(super) space: Space,
    /// The memory behind slots that come and go.
    pub(super) memory_of_slots: Mutex<SlotMemory>,
    /// Bits of CR4 that the guest may set.
    pub(super) cr4_mask: u64,
    pub(super) sched: Scheduler,
    /// What flushing costs here.
    pub(super) flush_cost: tlb::Cost,
    /// Longest time in TSC ticks that a CPU goes without a timer interrupt; `u64::MAX` where no interrupt is ever
    /// lost, which is everywhere but in QEMU's multi-threaded emulation (`docs/qemu.md`).
    pub(super) tick_max: u64,
    pub(super) partition: Partition,
    pub(super) platform: Mutex<Platform>,
    pub(super) overlays: Mutex<Overlays>,
    pub(super) rom: Mutex<Rom>,
    counters: Vec<CounterRow>,
    layout: MemoryLayout,
    files: Files,
    /// What every CPU has to look at: bits of [`attention`].
    attention: AtomicU32,
    /// Whether a request from outside waits for its turn to change guest memory: vCPUs let it go first.
    pub(super) turn_wanted: AtomicBool,
    /// How many vCPUs have stopped for a reset.
    parked: AtomicU32,
}

/// What the bundle holds.
struct Files {
    kernel: &'static [u8],
    initrd: Option<&'static [u8]>,
    config: Config<'static>,
}

/// Why there is no machine.
pub(super) enum CreateError {
    /// The bundle is no tar archive.
    NotABundle,
    /// The bundle lacks this member.
    Missing(&'static str),
    /// The configuration is not text.
    ConfigNotText,
    /// The configuration is wrong.
    Config(ConfigError<'static>),
    /// The guest's files cannot be loaded.
    Load(LoadError),
    /// There is not this much memory in one piece.
    NoMemory(u64),
    /// The boot CPU is to run no vCPUs, and it is the only one.
    NoCpu,
    /// A processor too slow for a reference clock.
    Clock,
    /// Defects are not built in.
    NoDefects,
}

impl fmt::Display for CreateError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NotABundle => f.write_str("the boot module is no tar archive"),
            Self::Missing(name) => write!(f, "the bundle has no member '{name}'"),
            Self::ConfigNotText => f.write_str("the bundle's configuration is not UTF-8"),
            Self::Config(error) => write!(f, "{error}"),
            Self::Load(error) => write!(f, "{error}"),
            Self::NoMemory(size) => write!(
                f,
                "no {} MiB of free memory in one piece for the guest: give the machine more, or the guest less",
                size >> 20
            ),
            Self::NoCpu => f.write_str("boot_cpu=serve needs a second CPU to run the guest"),
            Self::Clock => f.write_str("the TSC is too slow for the guest's reference clock"),
            Self::NoDefects => f.write_str("this image has no defects: it was built without that feature"),
        }
    }
}

/// The machine.
pub(super) fn machine() -> &'static Machine {
    MACHINE.get().expect("the machine is created before any vCPU runs")
}

/// The machine, if it is there already.
pub(super) fn try_machine() -> Option<&'static Machine> {
    MACHINE.get()
}

impl Files {
    fn read(bytes: &'static [u8]) -> Result<Self, CreateError> {
        let archive = TarArchiveRef::new(bytes).map_err(|_| CreateError::NotABundle)?;
        let member = |name: &str| {
            let mut entries = archive.entries();
            entries.find(|entry| entry.filename().as_str() == Ok(name)).map(|entry| entry.data())
        };
        if let Some(symbols) = member(bundle::SYMBOLS) {
            super::panic::set_symbols(symbols);
        }
        let text = member(bundle::CONFIG).ok_or(CreateError::Missing(bundle::CONFIG))?;
        let text = core::str::from_utf8(text).map_err(|_| CreateError::ConfigNotText)?;
        Ok(Self {
            kernel: member(bundle::KERNEL).ok_or(CreateError::Missing(bundle::KERNEL))?,
            initrd: member(bundle::INITRD),
            config: Config::parse(text).map_err(CreateError::Config)?,
        })
    }
}

/// Creates the machine that `bundle` describes. Its boot vCPU is ready to run.
pub(super) fn create(bundle: &'static [u8], free: &mut FreeMemory) -> Result<(), CreateError> {
    let files = Files::read(bundle)?;
    let config = &files.config;
    if config.switches.defect.is_some() && !cfg!(feature = "defects") {
        return Err(CreateError::NoDefects);
    }
    let layout = MemoryLayout::new(config.memory).map_err(CreateError::Load)?;
    let memslots = back_memory(&layout, free)?;
    let largest = match config.switches.nested_page {
        NestedPage::Small => Level::Page4K,
        NestedPage::Huge if cpuid::host_has_1g_pages() => Level::Page1G,
        NestedPage::Large | NestedPage::Huge => Level::Page2M,
    };
    let space = Space::new(memslots, HeapTables, largest).expect("the heap has room for a table");
    let space = space.zapping_everything(config.switches.zap == config::Zap::Everything);
    let platform = hyperv::Platform {
        flush_hypercall: config.flush == config::FlushMode::Hypercall,
        invariant_tsc: cpuid::host_has_invariant_tsc(),
        nested_paging: true,
        tsc_hz: clock::tsc_hz(),
        apic_hz: APIC_HZ,
        gpa_bits: cpuid::physical_address_bits() as u8,
    };
    let permissions = Permissions {
        io: permission_map(3, |map| map.fill(0xff)),
        msr: permission_map(msr::PERMISSION_MAP_PAGES, msr::fill_permission_map),
        nested_root: space.root().0,
    };
    let timer_clock = TimerClock { tsc_hz: clock::tsc_hz(), apic_hz: APIC_HZ };
    let apic_ids = Assignment::new(config.vcpus, config.switches.apic_ids);
    let vcpu = |index| Vcpu {
        index,
        target: Target::new(),
        inbox: Inbox::new(),
        state: UnsafeCell::new(VcpuState::new(
            index,
            cpuid::View {
                apic_id: apic_ids.translate(index),
                vcpus: config.vcpus,
                osxsave: false,
                invariant_tsc: false,
            },
            timer_clock,
            &permissions,
        )),
    };
    let first_cpu = match config.boot_cpu {
        BootCpu::Run => 0,
        BootCpu::Serve => 1,
    };
    let cpus = first_cpu..PerCpu::all().count() as u32;
    if cpus.is_empty() {
        return Err(CreateError::NoCpu);
    }
    let policy = Policy::new(clock::ticks_of_us(config.slice_us.into()));
    let counters = (0..config.vcpus).map(|_| [const { AtomicU64::new(0) }; Counter::COUNT]).collect();
    let machine = Machine {
        vcpus: (0..config.vcpus).map(vcpu).collect(),
        apic_ids,
        space,
        memory_of_slots: Mutex::new(SlotMemory::new(core::mem::take(free))),
        cr4_mask: cpuid::guest_cr4_mask(),
        sched: Scheduler::new(cpus, config.vcpus, policy),
        flush_cost: measure_flushes(config.switches.flush_pages),
        tick_max: match config.boot_cpu {
            BootCpu::Run => u64::MAX,
            BootCpu::Serve => clock::ticks_of_us(TICK_MAX_US),
        },
        partition: Partition::new(platform, clock::now()).ok_or(CreateError::Clock)?,
        platform: Mutex::new(Platform::new()),
        overlays: Mutex::new(Overlays::default()),
        rom: Mutex::new(Rom::new(RomLen::default())),
        counters,
        layout,
        files,
        attention: AtomicU32::new(0),
        turn_wanted: AtomicBool::new(false),
        parked: AtomicU32::new(0),
    };
    machine.load_guest().map_err(CreateError::Load)?;
    machine.publish_counters();
    MACHINE.call_once(|| machine);
    Ok(())
}

/// Finds out what flushing costs on this machine; `limit` is preferred to the limit that follows from it.
fn measure_flushes(limit: Option<u32>) -> tlb::Cost {
    // No vCPU has run yet, so nobody uses any tag.
    let cost = invalidate::measure(1).limited_to(limit);
    let Measured { page, miss, entries, .. } = cost.measured();
    log::info!(
        "INVLPGA takes {page} ticks, a TLB miss {miss}, {entries} entries: up to {} pages are flushed one by one",
        cost.page_limit()
    );
    cost
}

/// Takes memory for the guest and makes slots of it.
fn back_memory(layout: &MemoryLayout, free: &mut FreeMemory) -> Result<Memslots, CreateError> {
    let mut memslots = Memslots::new(cpuid::physical_address_bits());
    for (id, range) in layout.slots().into_iter().enumerate() {
        let size = range.end - range.start;
        // Aligned to the largest page that the slot can hold, if there is such a place.
        let host = (size >= GIB).then(|| free.take(size, GIB, u64::MAX)).flatten();
        let host = host.or_else(|| free.take(size, 2 << 20, u64::MAX)).ok_or(CreateError::NoMemory(size))?;
        let slot = Slot {
            id: SlotId(id as u16),
            gpa: Gpa(range.start),
            size,
            host: PhysAddr(host),
            flags: SlotFlags::empty(),
        };
        // SAFETY: the memory was taken from the free RAM, is mapped one to one, and is never given back.
        unsafe { memslots.add(slot) }.expect("the layout's ranges are valid slots");
    }
    Ok(memslots)
}

/// Allocates a permission map and fills it in; returns its physical address.
fn permission_map(pages: usize, fill: impl FnOnce(&mut [u8])) -> u64 {
    let address = memory::allocate_pages(pages);
    // SAFETY: the pages were just allocated for this.
    fill(unsafe { core::slice::from_raw_parts_mut(address as *mut u8, pages * PAGE as usize) });
    address
}

impl Machine {
    /// Number of vCPUs.
    pub(super) fn vcpu_count(&self) -> u32 {
        self.vcpus.len() as u32
    }

    /// Whether flushes end their targets' stay in guest mode; they do, but in tests that have to notice.
    pub(super) fn has_kicks(&self) -> bool {
        self.files.config.switches.kick
    }

    /// The ROM is not decoded after a reset. No vCPU runs.
    fn reset_rom(&self, cpu: &PerCpu) {
        let mut scratch = Box::new(FlushScratch::new());
        // A request from outside may just be changing the slots. It goes on on the CPU that serves requests, and that may
        // be this one.
        while self.rom.lock().follow(self, None, &mut scratch).is_err() {
            if !control::serve(cpu) {
                core::hint::spin_loop();
            }
        }
    }

    /// What is wrong with flush hypercalls on purpose.
    #[cfg(feature = "defects")]
    pub(super) fn defect(&self) -> Option<Defect> {
        self.files.config.switches.defect
    }

    /// Whether the nested page table is compared with the slots after each change.
    pub(super) fn is_paranoid(&self) -> bool {
        self.files.config.switches.paranoid
    }

    /// What a guest's reset does.
    pub(super) fn reset_policy(&self) -> ResetPolicy {
        self.files.config.reset
    }

    /// Zeroes guest memory and puts kernel, initial RAM disk and tables there; the boot vCPU begins at the entry.
    ///
    /// Nobody owns a vCPU meanwhile.
    fn load_guest(&self) -> Result<(), LoadError> {
        // In order of the ids, which need not be that of the vCPUs.
        let apic_ids: Vec<u32> = (0..self.vcpu_count()).collect();
        let tables = acpi::build(&apic_ids, layout::ACPI.start);
        let plan = loader::plan(
            self.files.kernel,
            self.files.initrd,
            self.files.config.cmdline,
            &self.layout,
            tables.rsdp,
        )?;
        self.zero_memory();
        let guest = self.space.slots().memory();
        let acpi = (tables.base, &tables.bytes[..]);
        let files = plan.placements.iter().map(|place| (place.gpa, &place.bytes[..]));
        let reset = (power::RESET_VECTOR, &power::RESET_CODE[..]);
        for (gpa, bytes) in files.chain([acpi, reset]) {
            guest.write(Gpa(gpa), bytes).expect("the plan stays within memory");
        }
        let boot = &self.vcpus[0];
        let owner = boot.target.owner().expect("nobody runs the boot vCPU while memory is loaded");
        // SAFETY: the owner was just taken.
        unsafe { boot.state() }.start_kernel(&plan.entry);
        drop(owner);
        Ok(())
    }

    fn zero_memory(&self) {
        let memory = self.space.slots().memory();
        memory.for_each(|slot| {
            if slot.is_read_only() {
                return;
            }
            // SAFETY: the slot's memory is the guest's alone, and no vCPU runs. Words are zeroed one by one: a
            // byte-wise string store is many times slower in emulation.
            let words = unsafe {
                core::slice::from_raw_parts_mut(slot.host.0 as *mut [u64; 8], (slot.size / 64) as usize)
            };
            words.fill([0; 8]);
            // Not by way of `memory`, so its log has to be told.
            memory.mark_dirty(slot.range());
        });
    }

    fn publish_counters(&self) {
        QUELL_BEACON.counters.store(self.counters.as_ptr().addr() as u64, Ordering::Relaxed);
        QUELL_BEACON.tsc_hz.store(clock::tsc_hz(), Ordering::Relaxed);
        QUELL_BEACON.vcpu_count.store(self.vcpu_count(), Ordering::Relaxed);
        QUELL_BEACON.counter_count.store(Counter::COUNT as u32, Ordering::Relaxed);
        QUELL_BEACON.cpu_count.store(self.sched.cpu_count(), Ordering::Relaxed);
        QUELL_BEACON.magic.store(BEACON_MAGIC, Ordering::Release);
    }

    /// The counters of a vCPU.
    pub(super) fn counters_of(&self, vcpu: &Vcpu) -> &CounterRow {
        &self.counters[vcpu.index as usize]
    }

    /// Delivers an interrupt message; returns to how many vCPUs.
    #[inline]
    pub(super) fn deliver(&self, message: Message, sender: u32) -> u64 {
        match (message.kind, message.destination.single(sender)) {
            (MessageKind::Lowest(_), _) | (_, None) => self.deliver_by_search(message, sender),
            (_, Some(id)) => self.post(id, message),
        }
    }

    #[inline(never)]
    fn deliver_by_search(&self, message: Message, sender: u32) -> u64 {
        let ids = 0..self.vcpu_count();
        if let MessageKind::Lowest(vector) = message.kind {
            let target = message.destination.arbitrate(vector, ids, sender);
            return target.map_or(0, |id| self.post(id, message));
        }
        ids.filter(|&id| message.destination.matches(id, sender)).map(|id| self.post(id, message)).sum()
    }

    #[inline]
    fn vcpu_with_apic_id(&self, apic_id: u32) -> Option<&Vcpu> {
        self.vcpus.get(self.apic_ids.translate(apic_id) as usize)
    }

    /// Delivers a fixed, edge-triggered interrupt to one vCPU; returns to how many, which is 0 if there is no such one.
    pub(super) fn post_fixed(&self, apic_id: u32, vector: u8) -> u64 {
        let Some(vcpu) = self.vcpu_with_apic_id(apic_id) else { return 0 };
        self.post_fixed_to(vcpu, vector);
        1
    }

    /// The same to a vCPU that is known.
    #[inline]
    pub(super) fn post_fixed_to(&self, vcpu: &Vcpu, vector: u8) {
        vcpu.inbox.post_fixed(vector, Trigger::Edge);
        self.notify(vcpu);
    }

    fn post(&self, apic_id: u32, message: Message) -> u64 {
        let Some(vcpu) = self.vcpu_with_apic_id(apic_id) else { return 0 };
        vcpu.inbox.post(message.kind, message.trigger);
        self.notify(vcpu);
        1
    }

    /// Tells a vCPU that something was posted to it.
    pub(super) fn notify(&self, vcpu: &Vcpu) {
        self.notify_in(vcpu, Line::Work);
    }

    /// Tells a vCPU that blocks that its timer has expired.
    pub(super) fn notify_expired(&self, vcpu: &Vcpu) {
        self.notify_in(vcpu, Line::Timer);
    }

    #[inline]
    fn notify_in(&self, vcpu: &Vcpu, line: Line) {
        match vcpu.target.post_event() {
            Notify::None if line == Line::Work => match self.sched.promote(vcpu.index) {
                Nudge::Nothing => {}
                nudge => self.nudge(nudge),
            },
            Notify::None => {}
            Notify::Kick(cpu) => self.kick_for(vcpu, cpu.0),
            Notify::Wake => self.nudge(self.sched.wake(vcpu.index, line)),
        }
    }

    /// Carries out what the scheduler asks for.
    #[inline]
    pub(super) fn nudge(&self, nudge: Nudge) {
        match nudge {
            Nudge::Nothing => {}
            Nudge::Running(vcpu) if PerCpu::current().current_vcpu.load(Ordering::Relaxed) == vcpu + 1 => {
                // It is on this CPU, out of guest mode: it need not be told by way of its target.
                PerCpu::current().replan.set(true);
            }
            _ => self.nudge_other(nudge),
        }
    }

    #[inline(never)]
    fn nudge_other(&self, mut nudge: Nudge) {
        // Goes on only if the vCPU to be told has blocked meanwhile, and is thereby woken: once for each vCPU at most
        // until it has run again.
        while let Nudge::Running(vcpu) = nudge {
            let Some(vcpu) = self.vcpus.get(vcpu as usize) else { return };
            match vcpu.target.post_event() {
                Notify::None => return,
                Notify::Kick(cpu) => return self.kick_for(vcpu, cpu.0),
                Notify::Wake => nudge = self.sched.wake(vcpu.index, Line::Work),
            }
        }
        if let Nudge::Idle(cpu) = nudge {
            kick(cpu);
        }
    }

    /// Kicks the CPU that a vCPU is in guest mode on.
    fn kick_for(&self, vcpu: &Vcpu, cpu: u32) {
        // Counted for the vCPU that is kicked, by whoever kicks it: the one counter that needs a locked add.
        self.counters_of(vcpu)[Counter::KickEvent as usize].fetch_add(1, Ordering::Relaxed);
        kick(cpu);
    }

    /// IN from a port, with what the real console has received meanwhile.
    pub(super) fn port_read(&self, port: u16, width: PortSize) -> u32 {
        let value = self.platform.lock().port_read(port, width);
        if port == SerialPort::Com1.base() {
            self.receive_console();
        }
        value
    }

    /// Passes on what the real console has received, as far as the guest's FIFO has room.
    pub(super) fn receive_console(&self) {
        let mut platform = self.platform.lock();
        while platform.can_receive(SerialPort::Com1) {
            let Some(byte) = console::receive() else { break };
            let (_, message) = platform.receive(SerialPort::Com1, &[byte]);
            if let Some(message) = message {
                self.deliver(message, u32::MAX);
            }
        }
    }

    /// Guest memory as the hypercall decoder reads it.
    pub(super) fn memory_source(&self) -> MemorySource<'_> {
        MemorySource { memslots: self.space.slots(), platform: self.partition.platform() }
    }

    /// What hypercalls of a vCPU ask for.
    pub(super) fn call_services<'a>(
        &'a self,
        caller: &'a Vcpu,
        scratch: &'a mut FlushScratch,
    ) -> CallServices<'a> {
        CallServices { vm: self, caller, scratch }
    }

    /// Prints what the guest says about its crash.
    pub(super) fn report_crash(&self, vcpu: VcpuIndex, report: &CrashReport) {
        log::error!("vCPU {vcpu}: the guest crashed: {:#x?}", report.parameters);
        let Some(message) = report.message else { return };
        let mut text = vec![0; CRASH_TEXT_MAX];
        let length = (message.len as usize).min(CRASH_TEXT_MAX);
        if self.space.slots().memory().read(Gpa(message.gpa), &mut text[..length]).is_ok() {
            for line in
                text[..length].split(|&byte| byte == b'\n' || byte == 0).filter(|line| !line.is_empty())
            {
                log::error!("  {}", line.escape_ascii());
            }
        }
    }

    /// Begins a reset: every vCPU stops at its next look at its events. Whoever comes first does this.
    pub(super) fn begin_reset(&self) {
        if self.attention.fetch_or(attention::RESET, Ordering::AcqRel) & attention::RESET == 0 {
            self.vcpus.iter().for_each(|vcpu| self.notify(vcpu));
        }
    }

    /// Whether there is anything that is looked at beside the vCPUs: bits of [`attention`].
    #[inline]
    pub(super) fn attention(&self) -> u32 {
        self.attention.load(Ordering::Acquire)
    }

    /// Whether there is a request from outside, or one is being served.
    pub(super) fn requests_wait(&self) -> bool {
        self.attention() & attention::REQUESTS != 0
    }

    /// Has the CPU that serves requests look at them, or no longer.
    pub(super) fn set_requests_wait(&self, wait: bool) {
        if wait {
            self.attention.fetch_or(attention::REQUESTS, Ordering::Release);
        } else {
            self.attention.fetch_and(!attention::REQUESTS, Ordering::Release);
        }
    }

    /// A vCPU has stopped for the reset: it is in no queue, and its owner is gone. The last one starts the
    /// guest again.
    ///
    /// ```text
    /// each vCPU                                the last vCPU
    /// A  state saved, owner dropped            C  parked = count (Acquire): all have done A
    /// B  parked += 1 (AcqRel)                  D  states and memory reset, RESET cleared, all woken
    /// ```
    /// B before C, so A before D.
    pub(super) fn park(&self, cpu: &PerCpu) {
        if self.parked.fetch_add(1, Ordering::AcqRel) + 1 < self.vcpu_count() {
            return;
        }
        log::info!("the guest resets");
        self.parked.store(0, Ordering::Relaxed);
        for vcpu in &self.vcpus {
            let mut owner = vcpu.target.owner().expect("all vCPUs are parked");
            // SAFETY: the owner was just taken.
            let state = unsafe { vcpu.state() };
            // What was posted before the reset is void.
            let _signals = vcpu.inbox.take_signals(&mut state.lapic);
            vcpu.inbox.drain_vectors(&mut state.lapic);
            let _event = owner.take_events();
            state.reset();
        }
        self.partition.reset();
        *self.overlays.lock() = Overlays::default();
        self.reset_rom(cpu);
        *self.platform.lock() = Platform::new();
        // The plan was made from the same files before.
        self.load_guest().unwrap_or_else(|error| panic!("the guest cannot be loaded again: {error}"));
        self.attention.fetch_and(!attention::RESET, Ordering::Release);
        for vcpu in &self.vcpus {
            self.nudge(self.sched.wake(vcpu.index, Line::Work));
        }
    }
}

/// Adds to a counter of a vCPU. Only the CPU that runs the vCPU does so, hence no locked instruction.
#[inline]
pub(super) fn increase(counter: &AtomicU64, amount: u64) {
    counter.store(counter.load(Ordering::Relaxed).wrapping_add(amount), Ordering::Relaxed);
}

/// Makes a CPU leave guest mode or idling soon.
pub(super) fn kick(cpu: u32) {
    if let Some(cpu) = PerCpu::get(cpu) {
        apic::send_fixed(cpu.apic_id, VECTOR_KICK);
    }
}
