//! The core's traits, implemented by this architecture.

use super::vcpu::{Activity, Exit, TIMER, Vcpu};
use super::{DEVICE, Holders, Inbox, MockArch, Op, PAGE, PLACED, PROGRAMS, Programs, Shared, placed_byte};
use crate::devices::region::Region;
use crate::loader::{LoadError, Placement};
use crate::sched::notify::Published;
use crate::sched::{CpuIndex, Turn};
use crate::stopping;
use crate::vm::arch::{Arch, Clock, Cpus};
use crate::vm::awaited::Word;
use crate::vm::dma::{DmaFlush, NotFlushed};
use crate::vm::load::Plan;
use crate::vm::memory::NestedTables;
use crate::vm::mock::board_impl;
use crate::vm::space::{FlushScratch, Flushed, VmMemory};
use crate::vm::{Access, Context, CreateError, FaultOutcome, Files, Next, PerCpu, Vm, VpIndex, percpu};
use alloc::vec;
use alloc::vec::Vec;

use coherence::{CpuId, Hardware, NoDevices};
use core::ops::{ControlFlow, Range};
use core::sync::atomic::Ordering;
use hostlink::architecture::Architecture;
use hostlink::config::Config;
use hostlink::counters::Counter;
use memslots::space::LogWay;
use memslots::{Gpa, SlotError};
use migration::{Archive, Described, Flaw};
use paging::{Amd64Nested, Invalidation, Level};

/// The flusher: it uses kicks.
struct Kicks<'a>(&'a Vm<MockArch>);

impl Hardware for Kicks<'_> {
    fn kick(&self, cpu: CpuId) {
        MockArch::kick(MockArch::cpu(CpuIndex(cpu.0)).expect("a CPU that a vCPU is on"));
    }

    fn relax(&self, _: u64) -> ControlFlow<()> {
        if self.0.guest.stalls.load(Ordering::Relaxed) {
            return ControlFlow::Break(());
        }
        board_impl::pass::<MockArch>();
        ControlFlow::Continue(())
    }
}

// SAFETY: `enter` runs programs between `try_enter` and `leave`; `take_flush` clears the vCPU's TLB
// before it completes; `flush_space` reaches all vCPUs.
unsafe impl Arch for MockArch {
    type Nested = Amd64Nested;
    type Tables = NestedTables;
    type Common = Programs;
    type Entry = ();
    type Claim = ();
    type Shared = Shared;
    type Inbox = Inbox;
    type State = Vcpu;
    type Workspace = ();
    type Devices = NoDevices;

    const MACHINE: Architecture = Architecture::Arm64;
    const COUNTS_SECTIONS: bool = false;

    fn check(_: &Config<'_>) -> Result<(), CreateError> {
        Ok(())
    }

    fn ram(config: &Config<'_>) -> Result<Vec<Range<u64>>, LoadError> {
        let size = config.memory;
        // With a hole, as real machines have.
        Ok(vec![0..size / 2, 1 << 32..(1 << 32) + size / 2])
    }

    fn physical_address_bits() -> u32 {
        40
    }

    fn largest_page() -> Level {
        Level::Page1G
    }

    fn log_way() -> LogWay {
        LogWay::DirtyBits
    }

    fn tables(pool: NestedTables) -> NestedTables {
        pool
    }

    fn common(_: &Config<'_>) -> Result<Programs, CreateError> {
        Ok(PROGRAMS.take())
    }

    fn claim(_: &Config<'static>, _: &'static Programs) -> Result<(), CreateError> {
        Ok(())
    }

    fn share(
        config: &Config<'_>,
        programs: &'static Programs,
        space: &VmMemory<Self>,
        (): (),
    ) -> Result<Shared, CreateError> {
        let programs = programs.get(&config.name).cloned().unwrap_or_default();
        Ok(Shared { programs, root: space.root().0, ..Shared::default() })
    }

    fn new_vcpu(shared: &Shared, index: VpIndex, _: u32) -> Vcpu {
        Vcpu::new(index, shared.programs.get(index.place()).cloned().unwrap_or_else(|| vec![Op::Done]))
    }

    fn new_workspace(_: &PerCpu<Self>) {}

    fn plan(shared: &Shared, files: &Files, _: u32) -> Result<Plan<()>, LoadError> {
        // So many times in all.
        let most = files.config.cmdline.strip_prefix("plans=").and_then(|most| most.parse().ok());
        let before = shared.planned.fetch_add(1, Ordering::Relaxed);
        if most.is_some_and(|most: u32| before >= most) {
            return Err(LoadError::BigEndian);
        }
        let placements = PLACED.iter().filter(|_| files.config.cmdline == "placed");
        let placed = |&(gpa, len)| Placement { gpa, bytes: (0..len).map(placed_byte).collect() };
        Ok(Plan { placements: placements.map(placed).collect(), entry: () })
    }

    fn begin(_: &Shared, (): (), (_, state): (&Inbox, &mut Vcpu)) {
        state.activity = Activity::Running;
    }

    /// Called again until no change is in progress.
    fn reset_slots(vm: &'static Vm<Self>, _: &PerCpu<Self>) -> bool {
        assert!(!vm.is_changing(), "it is over before devices are asked");
        true
    }

    fn reset_devices(vm: &Vm<Self>) {
        vm.guest.resets.fetch_add(1, Ordering::Relaxed);
        vm.guest.done.store(0, Ordering::Relaxed);
        let owned = vm.vcpus.iter().filter(|vcpu| vcpu.target.owner().is_none());
        assert!(owned.count() <= 1, "no vCPU but the one that carries out the reset is on a CPU");
    }

    fn show_generation(vm: &Vm<Self>, is_new: bool) {
        vm.guest.shown.lock().unwrap().push((*vm.generation.lock(), is_new));
    }

    fn describe_shared(vm: &Vm<Self>, archive: &mut Archive<'_>) -> Result<(), Flaw> {
        (&vm.guest.done).describe(archive)
    }

    fn describe_vcpu(
        vm: &Vm<Self>,
        state: &mut Vcpu,
        inbox: &Inbox,
        archive: &mut Archive<'_>,
    ) -> Result<(), Flaw> {
        (&inbox.interrupts).describe(archive)?;
        (&inbox.start).describe(archive)?;
        // The machine's time, and the guest's on the way.
        let by = |base: u64, time: u64| if time == u64::MAX { time } else { time.wrapping_add(base) };
        let base = vm.clock.base();
        let back = |time| Some(by(base.wrapping_neg(), time));
        archive.through(&mut state.timer, |timer| by(base, *timer), back)?;
        state.describe(archive)
    }

    fn device_regions(_: &Vm<Self>) -> impl IntoIterator<Item = Region> {
        [Region { name: "the device", range: DEVICE..DEVICE + PAGE }]
    }

    fn type_in(vm: &Vm<Self>, port: u16, bytes: &[u8]) -> Option<usize> {
        if port != 0 {
            return None;
        }
        vm.guest.console.lock().unwrap().extend(bytes);
        Some(bytes.len())
    }

    fn wake(vm: &Vm<Self>) {
        vm.guest.console.lock().unwrap().extend(b", woken");
    }

    fn receive_console(vm: Option<&Vm<Self>>) {
        while let Some(byte) = board_impl::receive_console::<Self>() {
            vm.into_iter().for_each(|vm| vm.guest.console.lock().unwrap().push(byte));
        }
    }

    fn flush_space(
        vm: &Vm<Self>,
        _: Invalidation<'_>,
        devices: &DmaFlush<'_, Self>,
        scratch: &mut FlushScratch,
    ) -> Result<Flushed, NotFlushed<Self>> {
        coherence::flush_space(vm, devices, scratch, &Kicks(vm))
    }

    fn load_state(context: &mut Context<'_, Self>, _: &Turn) {
        board_impl::begin_turn::<Self>();
        assert_eq!(context.state.loaded.replace(context.cpu.index), None, "loaded twice");
        let name = context.vcpu.row.0 + 1;
        let named = percpu::online::<Self>().filter(|cpu| cpu.current_vcpu.load(Ordering::Relaxed) == name);
        assert!(named.map(|cpu| cpu.index).eq([context.cpu.index]), "another CPU takes it for its own");
        Holders::load(context.cpu.index, Some(context.vm));
    }

    fn holds_space(vm: &Vm<Self>, cpu: &PerCpu<Self>) -> bool {
        vm.guest.holders.cpus.load(Ordering::Relaxed) >> cpu.index.0 & 1 != 0
    }

    fn leave_space(_: &Programs, cpu: &PerCpu<Self>, (): &mut ()) {
        Holders::load(cpu.index, None);
    }

    fn reload_state(context: &mut Context<'_, Self>) {
        assert_eq!(context.state.loaded.replace(context.cpu.index), None, "loaded twice");
    }

    fn save_state(context: &mut Context<'_, Self>) {
        assert_eq!(context.state.loaded.take(), Some(context.cpu.index), "saved elsewhere");
        let meets_change = stopping::CHANGE | stopping::RESET;
        if context.vm.attention() & meets_change == meets_change {
            context.vm.guest.taken_over.fetch_add(1, Ordering::Relaxed);
        }
        // During a step of the reset it is locked.
        let reset = context.vm.reset.try_lock();
        let resets =
            reset.is_some_and(|all| all.as_ref().is_some_and(|reset| reset.by == context.vcpu.index));
        if resets && context.vm.attention() & stopping::PAUSE != 0 {
            context.vm.guest.paused_amid.fetch_add(1, Ordering::Relaxed);
        }
        board_impl::pass::<Self>();
    }

    fn open_window(_: &mut Context<'_, Self>) {
        Self::take_interrupts();
    }

    fn take_signals(context: &mut Context<'_, Self>) {
        board_impl::pass::<Self>();
        let inbox = &context.vcpu.inbox;
        if inbox.start.swap(0, Ordering::Acquire) != 0 && context.state.activity == Activity::Off {
            context.state.activity = Activity::Running;
        }
        context.state.got |= inbox.interrupts.swap(0, Ordering::Acquire);
        // Others post what this check does not find any more.
        board_impl::pass::<Self>();
    }

    fn expire_timers(context: &mut Context<'_, Self>, now: u64) {
        let state = &mut *context.state;
        assert!(state.timer <= now, "a timer expires before its time");
        context.vm.guest.latest.fetch_max(now - state.timer, Ordering::Relaxed);
        state.timer = u64::MAX;
        state.got |= TIMER;
    }

    fn awaited_word(context: &Context<'_, Self>) -> Option<Word> {
        let word = context.state.word?;
        (!word.has_changed(&context.vm.space.slots().memory())).then_some(word)
    }

    fn enter(context: &mut Context<'_, Self>) -> bool {
        let Context { owner, state, vm, cpu, vcpu, .. } = context;
        let Ok(guest) = owner.try_enter(CpuId(cpu.index.0)) else {
            Self::take_flush(context);
            return false;
        };
        assert_eq!(state.loaded, Some(cpu.index), "it runs on a CPU that its state is not loaded on");
        assert_eq!(state.activity, Activity::Running, "a vCPU that waits is entered");
        state.exit = loop {
            board_impl::pass::<Self>();
            if board_impl::is_interrupted::<Self>() && !vm.guest.stalls.load(Ordering::Relaxed) {
                break Exit::Interrupt;
            }
            if let Some(exit) = state.execute(vm, &vcpu.inbox) {
                break exit;
            }
        };
        guest.leave();
        board_impl::take_what_pends::<Self>();
        true
    }

    fn take_flush(context: &mut Context<'_, Self>) {
        let Some(work) = context.owner.take_flush() else { return };
        context.vcpu.inbox.tlb.lock().unwrap().clear();
        work.complete();
        context.count(Counter::FlushTaken);
    }

    fn handle_exit(context: &mut Context<'_, Self>) -> Next {
        let vm = context.vm;
        match context.state.exit {
            Exit::Interrupt => Next::Resume,
            Exit::Halt => {
                context.state.activity = Activity::Halted;
                Next::Halt
            }
            Exit::Sleep(ticks) => {
                context.state.timer = Self::now() + ticks;
                Next::Timers
            }
            Exit::Send(to) => {
                let to = &vm.vcpus[to as usize];
                to.inbox.interrupts.fetch_or(1 << context.vcpu.index.0, Ordering::Release);
                vm.notify(to, Published::here());
                Next::Resume
            }
            Exit::Start(vcpu) => {
                let vcpu = &vm.vcpus[vcpu as usize];
                vcpu.inbox.start.store(1, Ordering::Release);
                vm.notify(vcpu, Published::here());
                Next::Resume
            }
            Exit::Pause => Next::Yield,
            Exit::Fault { gpa, is_store, may_miss } => {
                match context.nested_fault(Gpa(gpa), Access::Data, is_store) {
                    FaultOutcome::Again => {}
                    FaultOutcome::Lost if may_miss => context.state.at += 1,
                    FaultOutcome::Lost => panic!("vCPU {} may not store to {gpa:#x}", context.vcpu.index),
                    FaultOutcome::Device if gpa == DEVICE || may_miss => context.state.at += 1,
                    FaultOutcome::Device => panic!("vCPU {} has no memory at {gpa:#x}", context.vcpu.index),
                    FaultOutcome::WalkRefused | FaultOutcome::FetchRefused => {
                        unreachable!("it was an access to data")
                    }
                }
                Next::Resume
            }
            Exit::Move(_) if vm.is_changing() => Next::Again,
            Exit::Move(gpa) => {
                let mut last = None;
                vm.space.slots().memory().for_each(|slot| last = last.max(Some(slot.id)));
                match vm.space.move_to(last.expect("there is memory"), Gpa(gpa)) {
                    Ok(job) => {
                        context.state.at += 1;
                        vm.begin_change(context.cpu, context.vcpu.index, job);
                        Next::Resume
                    }
                    Err(SlotError::Busy) => Next::Again,
                    Err(error) => panic!("{error}"),
                }
            }
            Exit::Walk(ticks) => {
                let until = Self::now() + ticks;
                let _in_use = vm.space.slots().memory();
                while Self::now() < until {
                    board_impl::advance::<Self>(10_000);
                    board_impl::pass::<Self>();
                }
                Next::Resume
            }
            Exit::Reset => Next::Reset,
            Exit::PowerOff => Next::PowerOff,
            Exit::Shutdown => Next::Shutdown,
            Exit::Crash => Next::Dead,
        }
    }
}
