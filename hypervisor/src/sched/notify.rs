//! Telling a vCPU, or a CPU that idles, that there is something for it.
//!
//! What a vCPU is told goes through one word, [`coherence::Target`]'s; who runs where is decided
//! under the queues' locks. What is read without them is a hint. The models beside this module run
//! all of it under loom, with the mistakes that would break it.
//!
//! | word | what is told | to whom |
//! |---|---|---|
//! | notify | something is in its inbox | a vCPU, wherever it is |
//! | wake | it does not block any longer | a vCPU that has halted; the scheduler puts it into a queue |
//! | promote | it has work, not just a timer | a vCPU that waits in the line of timers; its queue moves it |
//! | nudge | its queue has changed: look again who is to run | a CPU, as the scheduler says ([`Nudge`]) |
//! | kick | leave guest mode, or stop idling | a CPU, by an interrupt that carries nothing |
//!
//! ```text
//! poster: notify                                   the CPU that runs the vCPU
//! A  what it is about, in an inbox                 E  takes the notify word: take_events  (RMW, Acquire)
//! B  the notify word: post_event  (RMW, Release)   F  looks at inbox and queue
//! C  as B says: kick, wake, promote, or nothing    G  the notify word: try_enter, or, under the lock, try_halt  (RMW)
//! D  as C's wake says: nudge                       H  timer set, next vCPU taken; end of the lock
//!
//! A before B, E before F before G: if E sees B, F sees A
//! B before G   G fails, and E comes again
//! G before B   B finds the vCPU in guest mode and kicks its CPU, or halted and is the one that wakes it
//! H before C   a wake takes the lock in which G was: the vCPU is off its CPU, and its timer is there to be removed
//!
//! waker: wake                                      a CPU without work: next, then it idles
//! I  the queue: puts the vCPU in  (lock)           K  the queue: finds nobody  (lock)
//! J  nobody runs there: kicks the CPU              L  waits for an interrupt: one that pends ends it at once
//!
//! I before K   K finds the vCPU
//! K before I   J kicks, and the interrupt pends until L: nothing takes interrupts between K and L
//!
//! waker: wake                                      the CPU that runs another vCPU
//! I  the queue, and its load beside it  (lock)     E  takes the notify word of its vCPU  (RMW, Acquire)
//! M  that vCPU's notify word  (RMW, Release)       F  queue_state: the load, without the lock
//!
//! I before M, E before F: if E sees M, F sees I. A load that is out of date costs a look that finds nobody, and M follows
//!
//! a CPU that puts its vCPU back: switch            the same CPU, later in the switch
//! N  no vCPU is here any more                      Q  nudge: is the vCPU to be told here?
//! O  the queue: puts the vCPU back  (lock)
//!
//! N before O   another CPU may run the vCPU from O on. Q finds it elsewhere, and tells it by its word
//! ```
//!
//! | hint | written | what it costs when it is out of date |
//! |---|---|---|
//! | `Place::load` | under the queue's lock | a vCPU in a longer queue than need be, until somebody puts a vCPU back. In a queue_state: nothing, M follows |
//! | `Place::next_timer` | under the queue's lock; only its own CPU adds timers | an interrupt for a timer that was removed. It is never later than the next timer |
//! | `Home::cpu`, `Home::virtual_time` | by the CPU that runs the vCPU, before G or in its lock | nothing: read by its waker, after B |
//! | `Home::ready_since` | by its waker, or the CPU that puts it back, before it is in a queue | nothing: read under that queue's lock |
//! | `Home::timer_line` | under the lock of the queue that it names | a vCPU with work waits among those that only tick: it is late, not lost |

use coherence::{Notify, Target};

use super::{CpuIndex, Line, Nudge, Scheduler, VcpuIndex};

/// What the calling CPU reaches, and how.
pub trait Reach {
    /// Its queues.
    fn scheduler(&self) -> &Scheduler;

    /// The time by its clock.
    fn now(&self) -> u64;

    /// A vCPU's side of the notify word; `None` if there is no such vCPU.
    fn target(&self, vcpu: VcpuIndex) -> Option<&Target>;

    /// Whether the vCPU is on the calling CPU, out of guest mode. That ends before anybody else may
    /// find the vCPU in a queue (N before O).
    fn is_here(&self, vcpu: VcpuIndex) -> bool;

    /// Has the calling CPU see who is to run before its vCPU enters the guest.
    fn check_queue(&self);

    /// Interrupts a CPU that idles.
    fn kick_idle(&self, cpu: CpuIndex);

    /// Interrupts the CPU that a vCPU is in guest mode on.
    fn kick_guest(&self, vcpu: VcpuIndex, cpu: CpuIndex);
}

/// B to D: tells a vCPU that something was posted to it (A). A vCPU that blocks goes into `line`.
#[inline]
pub fn notify(here: &impl Reach, vcpu: VcpuIndex, target: &Target, line: Line) {
    match target.post_event() {
        Notify::None if line == Line::Work => match here.scheduler().promote(vcpu) {
            Nudge::Nothing => {}
            due => nudge(here, due),
        },
        Notify::None => {}
        Notify::Kick(cpu) => here.kick_guest(vcpu, cpu.0),
        Notify::Wake => nudge(here, here.scheduler().wake(vcpu, line, here.now())),
    }
}

/// D: carries out what the scheduler asks for.
#[inline]
pub fn nudge(here: &impl Reach, nudge: Nudge) {
    match nudge {
        Nudge::Nothing => {}
        // Q. It need not be told by way of its target.
        Nudge::Running(vcpu) if here.is_here(vcpu) => here.check_queue(),
        _ => nudge_other(here, nudge),
    }
}

#[inline(never)]
fn nudge_other(here: &impl Reach, mut nudge: Nudge) {
    // Goes on only if the vCPU to be told has blocked meanwhile, and is thereby woken: once for
    // each vCPU at most until it has run again.
    while let Nudge::Running(vcpu) = nudge {
        let Some(target) = here.target(vcpu) else { return };
        match target.post_event() {
            Notify::None => return,
            Notify::Kick(cpu) => return here.kick_guest(vcpu, cpu.0),
            Notify::Wake => nudge = here.scheduler().wake(vcpu, Line::Work, here.now()),
        }
    }
    if let Nudge::Idle(cpu) = nudge {
        here.kick_idle(cpu);
    }
}
