//! The loop that each CPU runs forever: take a vCPU, run it until it gives up the CPU, take the
//! next.
//!
//! A vCPU is in one of these states. Each arrow is labelled with the function or value that moves
//! it:
//!
//! ```text
//!               switch_once, wait_for_turn            Blocked (HLT, WFI, waits for start-up)
//!   in a queue ───────────────────────────▶ on a CPU ──────────────────────────────▶ blocked
//!       ▲  ▲                                 │    │                                    │
//!       │  └──── PutBack (preempted, ────────┘    │ Parked (reset)                     │
//!       │         yielded, passive)               ▼                                    │
//!       │                                       parked                                 │
//!       │     start, after the reset              │                  wake              │
//!       └─────────────────────────────────────────┴────────────────────────────────────┘
//! ```
//!
//! While a vCPU is on a CPU, that CPU loops. Each check returns `None` to go on, or the reason why
//! the vCPU leaves:
//!
//! ```text
//!   check_on_arrival ◀──────────────────────────────────────────┐
//!     │ None                                                     │
//!     ▼                                                          │
//!   step ◀───────────────────────────────────────┐               │
//!     │ an event was posted       check_events    │               │
//!     │ this CPU's queue changed  check_queue     │               │
//!     │ enter the guest, handle its exit          │               │
//!     ▼ after_exit (after HLT, WFI it switches)   │ None          │
//!   Option<Leave> ────────────────────────────────┘               │
//!     │ Leave                                                     │
//!     ▼                                                           │
//!   switch_vcpu: switch_once saves it, puts it where it belongs ──┘
//!                and takes the next; wait_for_turn if there is none
//! ```
//!
//! | check | looks at |
//! |---|---|
//! | `check_on_arrival` | everything, whether or not an event was posted |
//! | `check_events` | the same, because an event was posted or a timer was changed; many turns without an entry open a window for interrupts |
//! | `check_all` | a reset, requests from the host, a change of memory in progress (`serve_vm`), signals, timers, whether it runs at all; then `share_cpu` |
//! | `share_cpu` | whether another vCPU wants the CPU: make room, or set the timer for the next check |
//! | `check_queue` | the same alone, because this CPU put a vCPU into its own queue |
//! | `check_spinning` | whether the vCPU only waits for memory to change |

use alloc::boxed::Box;
use hostlink::counters::Counter;
use hostlink::defect::Defect;
use hostlink::exit::ExitCode;
use hostlink::trace::Event;
use paging::Progress;

use super::arch::{Arch, Cpus, State};
use super::context::{Context, Next};
use super::host::Host;
use super::percpu::{self, PerCpu};
use super::switch::Leave;
use super::{GUEST, control, counting, defects};
use crate::sched::notify::{self, Taken};
use crate::sched::spinning::Look;
use crate::sched::{CpuIndex, PutBack, Turn};
use crate::stopping;

/// Lets all CPUs begin. Call on the boot CPU when the guests exist.
pub fn start<A: Arch>(host: &Host<A>) {
    host.guests.lock().iter().flatten().for_each(|guest| host.start(guest.vm()));
    host.begin();
    let me = A::this_cpu();
    percpu::online::<A>().filter(|cpu| cpu.index != me.index).for_each(A::kick);
}

/// Reports that a CPU is ready. A CPU that is no longer awaited stops here for good.
pub fn come_online<A: Cpus>(cpu: &PerCpu<A>) {
    while cpu.index == CpuIndex(1) && defects::makes(Defect::LateCpu) && !cpu.presence.is_settled() {
        core::hint::spin_loop();
    }
    if !cpu.presence.come_online() {
        A::stop();
    }
}

/// Waits until the boot CPU calls [`start`].
pub fn wait_for_start<A: Arch>() -> &'static Host<A> {
    loop {
        if let Some(host) = A::host().filter(|host| host.has_begun()) {
            return host;
        }
        A::wait_for_interrupt();
    }
}

/// The loop. Interrupts are off except right after an exit and while idling.
pub fn cpu_loop<A: Arch>(host: &'static Host<A>) -> ! {
    let cpu = A::this_cpu();
    cpu.tick_max.set(host.tick_max);
    host.attach_trace(cpu);
    while !host.sched.has_cpu(cpu.index) {
        // This CPU only takes interrupts and serves requests.
        match control::serve(host, cpu) {
            Progress::Done => A::wait_for_interrupt(),
            _ => A::take_interrupts(),
        }
    }
    let mut workspace = Box::new(A::new_workspace(cpu));
    let turn = wait_for_turn(host, cpu, &mut workspace);
    let mut context = Context::new(host, cpu, &turn, &mut workspace);
    let now = A::now();
    cpu.used_until.set(now);
    let mut leave = context.check_on_arrival(now);
    loop {
        if let Some(leave) = leave {
            context.switch_vcpu(leave, A::now());
        }
        leave = context.step();
    }
}

/// Waits until a vCPU may run here.
#[inline(never)] // Kept apart from the switch from one vCPU to another.
pub(super) fn wait_for_turn<A: Arch>(
    host: &'static Host<A>,
    cpu: &PerCpu<A>,
    workspace: &mut A::Workspace,
) -> Turn {
    cpu.note_current(None);
    let mut by_tick = false;
    loop {
        if let Some(turn) = host.sched.next(cpu.index, A::now()) {
            if by_tick {
                counting::count_rare::<A>(turn.vcpu, Counter::KickMissing);
            }
            return turn;
        }
        by_tick = false;
        if !wake_expired(host, cpu) {
            let has_more = control::serve(host, cpu) == Progress::More;
            if host.is_leaving() {
                A::leave_space(&host.common, cpu, workspace);
            }
            by_tick = idle(host, cpu, has_more);
        } else if cpu.turns.is_window_due() {
            A::take_interrupts();
        }
    }
}

/// Asks for a vCPU that runs elsewhere, and waits for an interrupt, unless requests are served at
/// once. Returns whether that was the tick, without a kick.
fn idle<A: Arch>(host: &Host<A>, cpu: &PerCpu<A>, serves: bool) -> bool {
    let now = A::now();
    host.nudge(host.sched.ask_for_running(cpu.index, now));
    if serves {
        A::take_interrupts();
        return false;
    }
    cpu.set_timer_and_tick(host.sched.next_event(cpu.index), now);
    let is_for_tick = cpu.tick_due().is_some();
    cpu.was_kicked.set(false);
    cpu.trace_idle(Event::IdleBegins);
    A::wait_for_interrupt();
    cpu.trace_idle(Event::IdleEnds);
    is_for_tick && cpu.timer_due() == u64::MAX && !cpu.was_kicked.get()
}

/// Wakes the vCPUs that block on this CPU and whose timers have expired; returns whether there were
/// any.
fn wake_expired<A: Arch>(host: &Host<A>, cpu: &PerCpu<A>) -> bool {
    let now = A::now();
    let mut any = false;
    while let Some(row) = host.sched.pop_expired(cpu.index, now) {
        host.notify_expired(row);
        any = true;
    }
    any
}

impl<'a, A: Arch> Context<'a, A> {
    /// Checks everything before the vCPU goes on, which covers what was posted earlier.
    #[inline(always)]
    pub(super) fn check_on_arrival(&mut self, now: u64) -> Option<Leave> {
        let taken = notify::take_events(&mut self.owner).unwrap_or(Taken::NONE);
        self.check_all(now, taken)
    }

    /// The vCPU gives up the CPU without having entered the guest since its turn began, or since
    /// interrupts were last taken. After many such turns, takes interrupts and checks once more.
    #[inline]
    pub(super) fn count_turn(&mut self, leave: Leave) -> Option<Leave> {
        if self.cpu.turns.is_window_due() { self.check_after_window(leave) } else { Some(leave) }
    }

    #[cold]
    fn check_after_window(&mut self, leave: Leave) -> Option<Leave> {
        A::open_window(self);
        if leave == Leave::Parked {
            return Some(leave); // It has arrived at its stop, and must not arrive again.
        }
        self.check_on_arrival(A::now())
    }

    /// One entry into the guest and the handling of its exit.
    #[inline(always)] // The body of the loop over exits.
    fn step(&mut self) -> Option<Leave> {
        if let Some(taken) = notify::take_events(&mut self.owner)
            && let Some(leave) = self.check_events(taken)
        {
            return Some(leave);
        }
        if self.cpu.check_queue.get()
            && let Some(leave) = self.check_queue()
        {
            return Some(leave);
        }
        self.cpu.trace(Event::Enter, self.vcpu.row);
        if !A::enter(self) {
            self.cpu.trace(Event::EntryCancelled, self.vcpu.row);
            return None;
        }
        let next = A::handle_exit(self);
        self.after_exit(next)
    }

    /// Checks everything that may have happened: interrupts, timers, a reset, and what
    /// [`share_cpu`](Self::share_cpu) checks.
    #[inline(always)] // It has two callers, each of which does little else.
    fn check_all(&mut self, mut now: u64, _: Taken) -> Option<Leave> {
        if self.vm.attention() != 0 {
            if let Some(leave) = self.serve_vm() {
                return Some(leave);
            }
            // That may have taken a while, which must not be charged to the vCPU.
            now = A::now();
        }
        A::take_signals(self);
        let mut deadline = self.state.next_deadline(now);
        if deadline <= now {
            A::expire_timers(self, now);
            deadline = self.state.next_deadline(now);
        }
        self.publish_used(now);
        self.state.update_activity();
        if !self.state.is_running() {
            return Some(Leave::Blocked(deadline));
        }
        self.share_cpu(now, deadline)
    }

    /// Serves work besides the vCPU: a reset, a request from the host, or a change of memory. A
    /// change that this vCPU caused is stepped until it is over, and everything else is checked
    /// between two steps. The vCPU leaves if the change is blocked while other vCPUs wait for the
    /// CPU.
    #[cold]
    fn serve_vm(&mut self) -> Option<Leave> {
        loop {
            if self.vm.attention() & stopping::STOP != 0
                && let Some(leave) = self.stop()
            {
                return Some(leave);
            }
            control::serve(self.host, self.cpu);
            match self.vm.step_change(Some(self.vcpu.index)) {
                Progress::Done => return None,
                Progress::Waiting if self.host.sched.has_waiting(self.cpu.index) => {
                    return Some(Leave::PutBack(PutBack::Yielded));
                }
                _ => A::open_window(self),
            }
        }
    }

    /// An event was posted, or a timer was changed.
    #[inline(never)]
    pub(super) fn check_events(&mut self, taken: Taken) -> Option<Leave> {
        let leave = self.check_all(A::now(), taken)?;
        self.count_turn(leave)
    }

    /// This CPU has put another vCPU into its own queue, or a change of memory is in progress.
    #[inline(never)]
    fn check_queue(&mut self) -> Option<Leave> {
        self.cpu.check_queue.set(false);
        if self.vm.is_changing() {
            return self.check_events(Taken::NONE);
        }
        let now = A::now();
        if self.cpu.timer_due() <= now {
            // The timer is about to fire. Setting it for the queue alone would lose its original
            // purpose.
            return self.check_events(Taken::NONE);
        }
        let queue_state = self.host.sched.queue_state_after_wake(self.cpu.index, now);
        if queue_state.should_switch {
            let why = self.why_preempted(now);
            return self.count_turn(Leave::PutBack(why));
        }
        // The timer covers all that was known before, and the other timers have not changed.
        self.state.intercept_pause(queue_state.has_waiting);
        let mut deadline = queue_state.next_event;
        if queue_state.has_waiting {
            match self.check_spinning(now) {
                Ok(later) => deadline = deadline.min(later),
                Err(why) => return Some(Leave::PutBack(why)),
            }
        }
        self.cpu.set_timer(deadline, now);
        None
    }

    /// Considers the other vCPUs that want the CPU: whether to make room, and when to check again.
    #[inline(always)] // It has one caller, which is inlined itself.
    fn share_cpu(&mut self, now: u64, deadline: u64) -> Option<Leave> {
        let mut queue_state = self.host.sched.queue_state(self.cpu.index, now);
        if queue_state.timer_expired && wake_expired(self.host, self.cpu) {
            queue_state = self.host.sched.queue_state(self.cpu.index, now);
        }
        if queue_state.should_switch {
            return Some(Leave::PutBack(self.why_preempted(now)));
        }
        // While no other vCPU waits, a spinning guest may as well spin: the exits would cost more
        // than they gain.
        self.state.intercept_pause(queue_state.has_waiting);
        let mut deadline = deadline.min(queue_state.next_event);
        if queue_state.has_waiting {
            match self.check_spinning(now) {
                Ok(later) => deadline = deadline.min(later),
                Err(why) => return Some(Leave::PutBack(why)),
            }
        }
        self.cpu.set_timer_and_tick(deadline, now);
        None
    }

    /// Checks whether the vCPU spins while others wait: returns how it yields, or when to check
    /// again.
    #[inline(always)] // A no-op where the processor reports it.
    fn check_spinning(&mut self, now: u64) -> Result<u64, PutBack> {
        if self.state.is_look_due(now) && self.waits_for_memory(now) {
            return Err(PutBack::Passive);
        }
        match self.state.check_spinning(now, self.host.sched.policy().spin_look()) {
            Look::Spins => Err(PutBack::Yielded),
            Look::Again(later) => Ok(later),
        }
    }

    /// How the vCPU waits after other vCPUs have ended its turn.
    #[inline(always)] // As above.
    fn why_preempted(&mut self, now: u64) -> PutBack {
        if self.waits_for_memory(now) { PutBack::Passive } else { PutBack::Preempted }
    }

    /// Whether the guest waits for a word in memory to change. If so, notes the word.
    #[inline(always)] // A no-op where the processor does not report it.
    fn waits_for_memory(&mut self, now: u64) -> bool {
        let Some(word) = A::awaited_word(self) else { return false };
        self.vcpu.awaited.note(word, now.saturating_add(self.host.sched.policy().passive_max()));
        true
    }

    /// The guest waits for an interrupt: it blocks unless there is one already.
    fn halt(&mut self) -> Option<Leave> {
        let now = A::now();
        let deadline = self.state.next_deadline(now);
        // Posted events need no check: with an event pending the scheduler refuses to block.
        if deadline <= now || self.state.wakes_from_halt() {
            return self.check_events(Taken::NONE);
        }
        // At once, for the time is at hand.
        self.switch_vcpu(Leave::Blocked(deadline), now);
        None
    }

    fn after_exit(&mut self, next: Next) -> Option<Leave> {
        match next {
            Next::Resume => None,
            Next::Timers => self.check_events(Taken::NONE),
            Next::Halt => self.halt(),
            Next::Yield if self.host.sched.has_waiting(self.cpu.index) && self.waits_for_memory(A::now()) => {
                Some(Leave::PutBack(PutBack::Passive))
            }
            Next::Yield | Next::Again if self.host.sched.has_waiting(self.cpu.index) => {
                Some(Leave::PutBack(PutBack::Yielded))
            }
            Next::Yield | Next::Again => None,
            Next::Reset => self.restart(),
            Next::Shutdown => {
                self.state.dump(self.vcpu.index, "shut down by triple fault");
                self.restart()
            }
            Next::PowerOff => {
                log::info!(target: GUEST, "the guest switched itself off");
                self.end(ExitCode::GuestPowerOff)
            }
            Next::Dead => {
                self.state.dump(self.vcpu.index, "is in a state that the processor refuses");
                self.end(ExitCode::GuestInvalid)
            }
        }
    }
}
