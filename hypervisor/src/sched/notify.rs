//! Notifying a vCPU, or an idle CPU, of new work.
//!
//! Notifications to a vCPU go through one word, [`coherence::Target`]'s. Which vCPU runs where
//! is decided under the queues' locks. Values read without them are hints, and so are the
//! guests' accounts, which all CPUs change. The models beside this module run all of it under
//! loom, with the mistakes that would break it.
//!
//! | term | meaning | recipient |
//! |---|---|---|
//! | notify | something is in its inbox | a vCPU, wherever it is |
//! | wake | it no longer blocks | a vCPU that has halted; the scheduler puts it into a queue |
//! | promote | it has work, not just a timer | a vCPU that waits in the timer class; its queue moves it |
//! | nudge | its queue has changed: check again which vCPU is to run | a CPU, as the scheduler decides ([`Nudge`]) |
//! | kick | leave guest mode, or stop idling | a CPU, by an interrupt that carries no data |
//!
//! ```text
//! poster: notify                               the CPU that runs the vCPU
//! A  the payload, into an inbox                E  takes the notify word: take_events
//!                                                 (RMW, Acquire)
//! B  the notify word: post_event               F  checks inbox and queue
//!    (RMW, Release)
//! C  kick, wake, promote or nothing, as        G  the notify word: try_enter, or, under the
//!    B returns                                    lock, try_halt  (RMW)
//! D  nudge, as C's wake returns                H  timer set, next vCPU taken; end of the lock
//!
//! A before B, E before F before G: if E sees B, F sees A
//! B before G   G fails, and E is repeated
//! G before B   B finds the vCPU in guest mode and kicks its CPU, or finds it halted and is the one
//!              that wakes it
//! H before C   a wake takes the lock in which G was: the vCPU is off its CPU, and its timer is
//!              there to be removed
//!
//! waker: wake                                  a CPU without work: next, then it idles
//! I  the queue: puts the vCPU in  (lock)       K  the queue: finds no vCPU  (lock)
//! J  no vCPU runs there: kicks the CPU         L  waits for an interrupt: a pending one ends the
//!                                                 wait at once
//!
//! I before K   K finds the vCPU
//! K before I   J kicks, and the interrupt pends until L: no interrupts are taken between K and L
//!
//! waker: wake                                  the CPU that runs another vCPU
//! I  the queue, and its load beside it (lock)  E  takes the notify word of its vCPU
//!                                                 (RMW, Acquire)
//! M  that vCPU's notify word  (RMW, Release)   F  queue_state: the load, without the lock
//!
//! I before M, E before F: if E sees M, F sees I. An out-of-date load costs a check that finds no
//! vCPU, and M follows
//!
//! a CPU that puts its vCPU back: switch        the same CPU, later in the switch
//! N  marks that no vCPU is here any more       Q  nudge: is the vCPU to be told here?
//! O  the queue: puts the vCPU back  (lock)
//!
//! N before O   another CPU may run the vCPU from O on. Q finds it elsewhere, and tells it by its
//!              word
//!
//! a CPU that finds guests held by their caps   another CPU
//! R  the queue: those that wait are held       T  charges the guest, or finds it free again
//!    (lock)
//! S  next_event: when they are free, from
//!    the account; sets its timer for that
//!
//! T before S   S finds what T has charged
//! S before T   the guest is free later than S found: the CPU wakes, and looks again. It is never
//!              free earlier. S does not ask whether the guest is held, which T may have changed
//! ```
//!
//! | hint | written | effect of an out-of-date value |
//! |---|---|---|
//! | `CpuQueue::load` | under the queue's lock | a vCPU is in a longer queue than necessary, until the next vCPU is put back. In a queue_state: none, M follows |
//! | `CpuQueue::next_timer` | under the queue's lock; only its own CPU adds timers | an interrupt for a timer that was removed. It is never later than the next timer |
//! | `Home::cpu`, `Home::virtual_time` | by the CPU that runs the vCPU, before G or in its lock | none: read by its waker, after B |
//! | `Home::ready_since` | by its waker, or the CPU that puts it back, before it is in a queue | none: read under that queue's lock |
//! | `Home::used` | by the CPU that the vCPU leaves, in its lock | the counters are behind by what the vCPU has had on the CPU to which it has just gone |
//! | `Group::virtual_time` | by any CPU that charges or looks, by read-modify-write | a guest is taken to be ahead or behind by a turn more than it is, until the next pick |
//! | `Ledger::average`, `Ledger::floor`, `Group::wanting_at`, `Group::catches_up_to` | by CPUs that look, every quarter of a slice; the last one also at the end of a turn | a guest that wakes is owed a little more or less |
//! | `Group::runnable` | under the locks of the queues that have its vCPUs | an average without a guest that has just come, or with one that has just gone |
//! | `Seat::group`, `Seat::charged` | by the CPU when a turn begins and ends; `charged` by any CPU that charges the turn | none to the account: `charged` moves by read-modify-write only, so that each tick is charged once. A vCPU is given to a CPU whose turn has just changed: it is in a longer queue than necessary. A vCPU that an idle CPU could run stays until its turn ends |
//! | `Seat::held` | under the queue's lock | a vCPU goes to another CPU than the least loaded one |
//! | `Cap::spent_until` | by any CPU that charges | a turn begins that had to wait: it is paid back. See R to T |
//! | `Cap::is_held` | by any CPU that looks | a guest is let go with less than half a burst, or held for that |
//! | `Group::first_until` | by the CPU that serves a request or finds that a stop is over; by any CPU that looks, by an exchange | the guest is held or waits, or not, until the CPU looks again: the request has it kicked. What it uses is in its accounts in any case |
//! | `Home::timer_line` | under the lock of the queue that it names | a vCPU with work waits among those that only tick: it is late, not lost |

use coherence::{Notify, Owner, Target};

use super::{CpuIndex, Nudge, PutBack, QueueClass, Released, Scheduler, Turn, VcpuIndex};

/// A has happened: what is posted was stored. Whatever posts makes this, behind its last store, and
/// B cannot be before, because [`notify`] takes it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[must_use = "the vCPU is not told of it"]
pub struct Published(());

impl Published {
    /// Time has passed, or the caller owns the vCPU: there is nothing that another CPU has stored.
    pub const NOTHING: Self = Self(());

    /// To be called where something was posted, and nowhere else.
    pub(crate) const fn here() -> Self {
        Self(())
    }
}

/// E has happened: F may look. A look that comes first would miss what the event announced.
#[derive(Debug)]
#[must_use = "what the event has announced is to be looked at"]
pub struct Taken(());

impl Taken {
    /// No event is taken. One that pends refuses the next entry.
    pub const NONE: Self = Self(());
}

/// E: takes the notify word.
#[inline(always)] // Part of each turn of the loop.
pub fn take_events(owner: &mut Owner<'_>) -> Option<Taken> {
    owner.take_events().then_some(Taken(()))
}

/// The calling CPU's interface for the notifying code.
pub trait Reach {
    /// The scheduler.
    fn scheduler(&self) -> &Scheduler;
    /// The time by its clock.
    fn now(&self) -> u64;
    /// A vCPU's side of the notify word; `None` if there is no such vCPU.
    fn target(&self, vcpu: VcpuIndex) -> Option<&Target>;

    /// Whether the vCPU is on the calling CPU, out of guest mode. This becomes false before any
    /// other CPU may find the vCPU in a queue (N before O).
    fn is_here(&self, vcpu: VcpuIndex) -> bool;

    /// Makes the calling CPU check which vCPU is to run before its vCPU enters the guest.
    fn check_queue(&self);
    /// Interrupts an idle CPU.
    fn kick_idle(&self, cpu: CpuIndex);
    /// Interrupts the CPU on which a vCPU is in guest mode.
    fn kick_guest(&self, vcpu: VcpuIndex, cpu: CpuIndex);
}

/// B to D: tells a vCPU that something was posted to it (A). A blocked vCPU goes into `class`.
#[inline]
pub fn notify(here: &impl Reach, vcpu: VcpuIndex, target: &Target, class: QueueClass, _: Published) {
    notified(here, vcpu, target.post_event(), class);
}

/// C and D, as B has returned.
#[inline(always)] // As a part of the above.
pub fn notified(here: &impl Reach, vcpu: VcpuIndex, note: Notify, class: QueueClass) {
    match note {
        Notify::None if class == QueueClass::Work => match here.scheduler().promote(vcpu) {
            Nudge::Nothing => {}
            due => nudge(here, due),
        },
        Notify::None => {}
        Notify::Kick(cpu) => here.kick_guest(vcpu, CpuIndex(cpu.0)),
        Notify::Wake => nudge(here, here.scheduler().wake(vcpu, class, here.now())),
    }
}

/// N, O and Q: puts the vCPU back that has run on `cpu`, the calling one, and returns the next one.
/// `leave` marks that it is not here any more.
#[inline(always)] // A part of the switch.
pub fn put_back(
    here: &impl Reach,
    (cpu, now): (CpuIndex, u64),
    why: PutBack,
    released: Released,
    leave: impl FnOnce(),
) -> Option<Turn> {
    leave();
    let (next, due) = here.scheduler().switch(cpu, now, why, released);
    nudge(here, due);
    next
}

/// D: carries out the nudge that the scheduler returned.
#[inline]
pub fn nudge(here: &impl Reach, nudge: Nudge) {
    match nudge {
        Nudge::Nothing => {}
        // Q. It need not be told through its target.
        Nudge::Running(vcpu) if here.is_here(vcpu) => here.check_queue(),
        _ => nudge_other(here, nudge),
    }
}

#[inline(never)]
fn nudge_other(here: &impl Reach, mut nudge: Nudge) {
    // Loops only if the vCPU to be told has blocked meanwhile and is woken by this: at most once
    // for each vCPU until it has run again.
    while let Nudge::Running(vcpu) = nudge {
        let Some(target) = here.target(vcpu) else { return };
        match target.post_event() {
            Notify::None => return,
            Notify::Kick(cpu) => return here.kick_guest(vcpu, CpuIndex(cpu.0)),
            Notify::Wake => nudge = here.scheduler().wake(vcpu, QueueClass::Work, here.now()),
        }
    }
    if let Nudge::Idle(cpu) = nudge {
        here.kick_idle(cpu);
    }
}
