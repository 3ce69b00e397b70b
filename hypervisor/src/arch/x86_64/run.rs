//! The loop that each CPU runs for ever: take a vCPU, run it until it gives the CPU up, take the next.

use core::sync::atomic::{AtomicBool, Ordering};

use alloc::boxed::Box;
use coherence::Owner;
use hostlink::config::ResetPolicy;
use hostlink::counters::Counter;
use hostlink::exit::ExitCode;
use tlfs::InputPage;
use x86_64::instructions::interrupts;

use super::machine::{self, FlushScratch, Machine, Vcpu};
use super::percpu::PerCpu;
use super::svm::exits::{Context, Next};
use super::svm::state::{Activity, note_current};
use super::{clock, panic};
use crate::devices::message::Trigger;
use crate::sched::{Block, Outlook, PutBack, Turn};

/// Set when the machine is ready to run.
static STARTED: AtomicBool = AtomicBool::new(false);

/// Why a vCPU gives up its CPU.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Leave {
    /// It waits for an interrupt; at the latest until this TSC value.
    Blocked(u64),
    /// Another vCPU is to run.
    PutBack(PutBack),
    /// The machine resets.
    Parked,
}

/// What a CPU needs besides its vCPU; allocated once.
struct Workspace {
    scratch: FlushScratch,
    page: InputPage,
}

/// Lets all CPUs begin. Call on the boot CPU when the machine is there.
pub(super) fn start() {
    let vm = machine::machine();
    for vcpu in &vm.vcpus {
        // All of them, not just the boot vCPU: the others find that they wait for start-up, and block.
        let _no_cpu_runs_yet = vm.sched.wake(vcpu.index);
    }
    STARTED.store(true, Ordering::Release);
    let me = PerCpu::current();
    PerCpu::all().filter(|cpu| cpu.index != me.index).for_each(|cpu| machine::kick(cpu.index));
}

/// Waits until the boot CPU says [`start`].
pub(super) fn wait_for_start() {
    while !STARTED.load(Ordering::Acquire) {
        interrupts::enable_and_hlt();
        interrupts::disable();
    }
}

/// The timer went off: whoever runs here looks at the time before it goes on.
pub(super) fn request_attention() {
    let Some(vm) = machine::try_machine() else { return };
    let vcpu = PerCpu::current().current_vcpu.load(Ordering::Relaxed);
    // A vCPU that has just blocked may be woken by this, for nothing; it blocks again.
    if let Some(vcpu) = vcpu.checked_sub(1).and_then(|index| vm.vcpus.get(index as usize)) {
        vm.notify(vcpu);
    }
}

/// The real console has received something.
pub(super) fn on_serial_interrupt() {
    if let Some(vm) = machine::try_machine() {
        vm.receive_console();
    }
}

/// The loop. Interrupts are off but right after an exit and while idling.
pub(super) fn cpu_loop() -> ! {
    let vm = machine::machine();
    let cpu = PerCpu::current();
    while !vm.sched.has_cpu(cpu.index) {
        // This CPU only takes interrupts.
        interrupts::enable_and_hlt();
        interrupts::disable();
    }
    let mut workspace = Box::new(Workspace { scratch: FlushScratch::new(), page: InputPage::new() });
    let mut turn = None;
    loop {
        turn = match turn.or_else(|| vm.sched.next(cpu.index, clock::now())) {
            Some(turn) => run_turn(vm, cpu, &turn, &mut workspace),
            None => {
                if !wake_expired(vm, cpu) {
                    idle(vm, cpu);
                }
                None
            }
        }
    }
}

/// Waits for an interrupt.
fn idle(vm: &Machine, cpu: &PerCpu) {
    let now = clock::now();
    let deadline = vm.sched.next_event(cpu.index).min(now.saturating_add(vm.tick_max));
    clock::set_timer(cpu, deadline, now);
    // STI takes effect after HLT has begun, so an interrupt that pends wakes it.
    interrupts::enable_and_hlt();
    interrupts::disable();
}

/// Wakes the vCPUs that block on this CPU and whose timers have expired; whether there were any.
fn wake_expired(vm: &Machine, cpu: &PerCpu) -> bool {
    let now = clock::now();
    let mut any = false;
    while let Some(vcpu) = vm.sched.pop_expired(cpu.index, now) {
        vm.notify(&vm.vcpus[vcpu as usize]);
        any = true;
    }
    any
}

/// Runs a vCPU until it gives up the CPU, and puts it where it belongs then. Returns whose turn it is next, if that
/// is known already.
fn run_turn(vm: &Machine, cpu: &PerCpu, turn: &Turn, workspace: &mut Workspace) -> Option<Turn> {
    let vcpu = &vm.vcpus[turn.vcpu as usize];
    vm.count(vcpu.index, Counter::SchedIn, 1);
    if turn.migrated {
        vm.count(vcpu.index, Counter::SchedMigrated, 1);
    }
    note_current(cpu, Some(vcpu.index));
    let next = run_vcpu(vm, cpu, vcpu, turn.outlook, workspace);
    note_current(cpu, None);
    next
}

fn run_vcpu(
    vm: &Machine,
    cpu: &PerCpu,
    vcpu: &Vcpu,
    mut outlook: Outlook,
    workspace: &mut Workspace,
) -> Option<Turn> {
    // The scheduler gives a vCPU to one CPU at a time; two owners would be its failure.
    let mut owner = vcpu.target.owner().expect("the vCPU runs on another CPU");
    loop {
        // SAFETY: the owner is held; the reference ends with this turn.
        let state = unsafe { vcpu.state() };
        state.load();
        let Workspace { scratch, page } = workspace;
        let mut context = Context { vm, cpu, vcpu, owner: &mut owner, state, scratch, page };
        let leave = context.run(outlook);
        // Saved before anybody else can find the vCPU.
        context.state.save();
        let now = clock::now();
        match leave {
            Leave::Blocked(deadline) => {
                let mut owner_cell = Some(owner);
                let block = vm.sched.block(cpu.index, now, deadline, || {
                    let halted = owner_cell.as_mut().is_some_and(Owner::try_halt);
                    if halted {
                        owner_cell = None;
                    }
                    halted
                });
                if let Block::Next(next) = block {
                    vm.count(vcpu.index, Counter::SchedHalt, 1);
                    return next;
                }
                // Something came in meanwhile: go on.
                owner = owner_cell?;
                outlook = vm.sched.outlook(cpu.index, now);
            }
            Leave::PutBack(why) => {
                let counter = match why {
                    PutBack::Preempted => Counter::SchedPreempted,
                    PutBack::Yielded => Counter::SchedYield,
                };
                vm.count(vcpu.index, counter, 1);
                drop(owner);
                let (next, nudge) = vm.sched.switch(cpu.index, now, why);
                vm.nudge(nudge);
                return next;
            }
            Leave::Parked => {
                drop(owner);
                let Block::Next(next) = vm.sched.block(cpu.index, now, u64::MAX, || true) else {
                    unreachable!("a vCPU that runs can always stop")
                };
                vm.park();
                return next;
            }
        }
    }
}

impl Context<'_, '_> {
    /// Runs the vCPU on this CPU until it is to leave it.
    fn run(&mut self, outlook: Outlook) -> Leave {
        // What was posted before is looked at in any case.
        let _posted_before = self.owner.take_events();
        if let Some(leave) = self.attend(Some(outlook)) {
            return leave;
        }
        loop {
            if self.owner.take_events()
                && let Some(leave) = self.attend(None)
            {
                return leave;
            }
            if self.cpu.replan.take()
                && let Some(leave) = self.plan(None, clock::now(), None)
            {
                return leave;
            }
            if !self.enter() {
                continue;
            }
            let next = self.handle_exit();
            if let Some(leave) = self.go_on(next) {
                return leave;
            }
        }
    }

    /// Looks at everything that may have come up: interrupts, timers, a reset, and what [`plan`](Self::plan) sees.
    fn attend(&mut self, outlook: Option<Outlook>) -> Option<Leave> {
        if self.vm.is_resetting() {
            return Some(Leave::Parked);
        }
        self.take_signals();
        let now = clock::now();
        let mut deadline = self.state.next_deadline(now);
        if deadline <= now {
            self.expire_timers(now);
            deadline = self.state.next_deadline(now);
        }
        self.state.update_activity();
        if self.state.activity != Activity::Running {
            return Some(Leave::Blocked(deadline));
        }
        self.plan(outlook, now, Some(deadline))
    }

    /// Looks at who else wants the CPU: whether to make room, and when to look again.
    fn plan(&mut self, outlook: Option<Outlook>, now: u64, deadline: Option<u64>) -> Option<Leave> {
        let mut outlook = outlook.unwrap_or_else(|| self.vm.sched.outlook(self.cpu.index, now));
        if outlook.timer_expired && wake_expired(self.vm, self.cpu) {
            outlook = self.vm.sched.outlook(self.cpu.index, now);
        }
        if outlook.should_switch {
            return Some(Leave::PutBack(PutBack::Preempted));
        }
        // While nobody waits a spinning guest may as well spin: the exits would cost more than they gain.
        self.state.intercept_pause(outlook.has_waiting);
        let deadline = deadline.unwrap_or_else(|| self.state.next_deadline(now)).min(outlook.next_event);
        clock::set_timer(self.cpu, deadline.min(now.saturating_add(self.vm.tick_max)), now);
        None
    }

    /// The guest executes HLT: it blocks unless there is something for it already.
    fn halt(&mut self) -> Option<Leave> {
        let now = clock::now();
        let deadline = self.state.next_deadline(now);
        // What others have posted need not be looked at: with an event pending blocking is refused.
        if deadline <= now || self.state.wakes_from_halt() {
            return self.attend(None);
        }
        Some(Leave::Blocked(deadline))
    }

    fn take_signals(&mut self) {
        let signals = self.vcpu.inbox.drain_into(&mut self.state.lapic);
        if signals.init {
            self.state.set_init_state();
            self.state.activity = Activity::WaitForStartup;
        }
        if let Some(page) = signals.startup
            && self.state.activity == Activity::WaitForStartup
        {
            self.state.start_up(page);
        }
        self.state.nmi.pending |= signals.nmi;
    }

    fn expire_timers(&mut self, now: u64) {
        let guest_now = now.wrapping_add(self.state.vmcb.tsc_offset);
        let mut expired = u64::from(self.state.lapic.expire(guest_now).is_some());
        if self.state.hyperv.next_deadline_tsc().is_some_and(|deadline| deadline <= now) {
            for vector in self.state.hyperv.expire(&self.vm.partition, now) {
                self.state.lapic.accept_fixed(vector, Trigger::Edge);
                expired += 1;
            }
        }
        if expired != 0 {
            self.vm.count(self.vcpu.index, Counter::IrqTimer, expired);
        }
    }

    fn go_on(&mut self, next: Next) -> Option<Leave> {
        match next {
            Next::Resume => None,
            Next::Timers => self.attend(None),
            Next::Halt => self.halt(),
            Next::Yield if self.vm.sched.has_waiting(self.cpu.index) => {
                Some(Leave::PutBack(PutBack::Yielded))
            }
            Next::Yield => None,
            Next::Reset => match self.vm.reset_policy() {
                ResetPolicy::Exit => panic::exit(ExitCode::GuestReset),
                ResetPolicy::Reboot => {
                    self.vm.begin_reset();
                    Some(Leave::Parked)
                }
            },
            Next::PowerOff => {
                log::info!("the guest switched itself off");
                panic::exit(ExitCode::GuestPowerOff)
            }
            Next::TripleFault => {
                self.state.dump(self.vcpu.index);
                panic::exit(ExitCode::GuestTripleFault)
            }
        }
    }
}
