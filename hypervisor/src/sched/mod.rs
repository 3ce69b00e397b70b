//! The scheduler: many vCPUs on few CPUs.
//!
//! Each CPU has a [queue](queue::RunQueue) of its own, ordered by the time that its vCPUs have had
//! (a virtual clock, as in Linux' CFS). The rules:
//!
//! * The one that has had least runs next, for at most a slice while others wait, without limit
//!   otherwise.
//! * A vCPU that waits for an interrupt is in no queue. When it wakes it goes to an idle CPU if
//!   there is one, to its last CPU otherwise, and preempts a vCPU that has run for longer than a
//!   small margin.
//! * A vCPU that nothing but its timer wakes waits in a line of its own, which shares the CPU with
//!   those that have work (see [`queue`]).
//! * A vCPU that spins goes behind all that wait. One that waits for a word in memory is passed
//!   over until that has changed.
//! * A CPU without work takes it from the longest queue; a queue that has two more than the
//!   shortest gives one up when one of its vCPUs is put back.
//!
//! A vCPU's state is saved before it appears in any queue, and it is in at most one: under the lock
//! of the queue it blocks on, and of the queue that it is put into, one after the other, never
//! both.

#[cfg(all(test, loom))]
mod model;
pub mod notify;
pub mod queue;
pub mod spinning;
#[cfg(all(test, not(loom)))]
mod tests;
mod turns;

use alloc::vec::Vec;

use crate::sync::{AtomicU32, AtomicU64, AtomicUsize, Mutex, Ordering};

pub use queue::{Line, Policy, PutBack, RunQueue, Standing, VcpuIndex};
pub use turns::{TURNS_MAX, Turns};

/// Index of a physical CPU.
pub type CpuIndex = u32;

/// What must be done after a vCPU was put into a queue.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Nudge {
    /// Nothing: it runs when its turn comes.
    Nothing,
    /// The CPU idles: interrupt it.
    Idle(CpuIndex),
    /// The vCPU that runs there should be looked at again: post it an event.
    Running(VcpuIndex),
}

/// Where a vCPU that is in no queue belongs.
#[derive(Debug, Default)]
struct Home {
    /// Queue it ran on last, which holds its timer.
    cpu: AtomicU32,
    /// Its virtual time there when it left.
    virtual_time: AtomicU64,
    /// Since when it has been in a queue. Written by the CPU that puts it there, before it does.
    ready_since: AtomicU64,
    /// CPU in whose timer line it waits, plus one; 0 if in none. Written under that queue's lock;
    /// to those that read it without, a hint.
    timer_line: AtomicU32,
}

/// What a CPU has to reckon with while a vCPU runs on it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct QueueState {
    /// The vCPU should make room for another.
    pub should_switch: bool,
    /// Others wait for the CPU.
    pub has_waiting: bool,
    /// A vCPU that blocks here is to be woken.
    pub timer_expired: bool,
    /// When to look again: the end of the slice or the next timer; `u64::MAX` for never.
    pub next_event: u64,
}

/// A vCPU's turn on a CPU.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Turn {
    /// Whose turn it is.
    pub vcpu: VcpuIndex,
    /// It ran on another CPU before.
    pub migrated: bool,
    /// For how long it could have run and did not.
    pub waited: u64,
}

/// What came of an attempt to block.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Block {
    /// There is something to do: the vCPU runs on.
    Refused,
    /// It blocks, and the next one has the CPU; `None` if nobody waits here.
    Next(Option<Turn>),
}

/// One CPU's queue under its lock, with what others may read without it.
#[derive(Debug)]
struct Place {
    queue: Mutex<RunQueue>,
    /// [`RunQueue::load`] as of the last release of the lock. It may be out of date when it is read
    /// without.
    load: AtomicUsize,
    /// [`RunQueue::next_timer`], likewise.
    next_timer: AtomicU64,
}

impl Place {
    /// Runs `act` with the lock held.
    #[inline]
    fn with<R>(&self, act: impl FnOnce(&mut RunQueue) -> R) -> R {
        let mut queue = self.queue.lock();
        let result = act(&mut queue);
        // Relaxed, but in the lock, so that the newest is stored last. See the table of hints in
        // `notify`.
        self.load.store(queue.load(), Ordering::Relaxed);
        self.next_timer.store(queue.next_timer(), Ordering::Relaxed);
        result
    }

    fn load(&self) -> usize {
        self.load.load(Ordering::Relaxed)
    }
}

/// All queues.
#[derive(Debug)]
pub struct Scheduler {
    /// The CPUs that run vCPUs.
    cpus: Vec<CpuIndex>,
    /// By CPU. Those that run none have a queue, too, in which nothing ever is.
    places: Vec<Place>,
    homes: Vec<Home>,
    policy: Policy,
    /// Whether a vCPU that waits for memory to change may go on.
    may_go: fn(VcpuIndex) -> bool,
}

impl Scheduler {
    /// Queues for these CPUs, at least one, and `vcpus` vCPUs, spread over the CPUs in turn; none
    /// is runnable yet. There may be gaps between the CPUs.
    ///
    /// # Panics
    ///
    /// If there is no CPU.
    pub fn new(cpus: Vec<CpuIndex>, vcpus: u32, policy: Policy) -> Self {
        let last = *cpus.iter().max().expect("a CPU runs vCPUs");
        let home = |vcpu: u32| cpus[vcpu as usize % cpus.len()];
        let homes =
            (0..vcpus).map(|vcpu| Home { cpu: AtomicU32::new(home(vcpu)), ..Home::default() }).collect();
        let place = |cpu| {
            let capacity = if cpus.contains(&cpu) { vcpus as usize } else { 0 };
            Place {
                queue: Mutex::new(RunQueue::with_capacity(capacity)),
                load: AtomicUsize::new(0),
                next_timer: AtomicU64::new(u64::MAX),
            }
        };
        Self { places: (0..=last).map(place).collect(), homes, policy, cpus, may_go: |_| true }
    }

    /// Asks this whether a vCPU that waits for memory to change may go on. It is called with a
    /// queue's lock held, for many vCPUs in a row.
    #[must_use]
    pub fn asking(self, may_go: fn(VcpuIndex) -> bool) -> Self {
        Self { may_go, ..self }
    }

    #[inline]
    fn place(&self, cpu: CpuIndex) -> &Place {
        &self.places[cpu as usize]
    }

    /// The lengths of time that it goes by.
    #[inline]
    pub const fn policy(&self) -> &Policy {
        &self.policy
    }

    /// Whether `cpu` runs vCPUs.
    pub fn has_cpu(&self, cpu: CpuIndex) -> bool {
        self.cpus.contains(&cpu)
    }

    /// How many CPUs run vCPUs.
    pub fn cpu_count(&self) -> u32 {
        self.cpus.len() as u32
    }

    fn others(&self, cpu: CpuIndex) -> impl Iterator<Item = CpuIndex> {
        self.cpus.iter().copied().filter(move |&other| other != cpu)
    }

    /// Lets `cpu` run the vCPU that has most right to: its own, or one of the longest queue.
    /// `None`: it may idle; a CPU that gives it work later finds it idle and nudges it.
    pub fn next(&self, cpu: CpuIndex, now: u64) -> Option<Turn> {
        if let Some(turn) = self.place(cpu).with(|own| self.start(cpu, own, now)) {
            return Some(turn);
        }
        let (vcpu, standing) = self.steal_for(cpu)?;
        self.place(cpu).with(|own| {
            let _nobody_runs = own.enqueue(vcpu, standing, &self.policy);
            self.start(cpu, own, now)
        })
    }

    #[inline(always)] // As `RunQueue::pick`.
    fn start(&self, cpu: CpuIndex, queue: &mut RunQueue, now: u64) -> Option<Turn> {
        let vcpu = queue.pick(now, |vcpu| (self.may_go)(vcpu))?;
        // Only the holder of the vCPU writes its home; wakers read it after the next release of
        // this lock.
        let home = &self.homes[vcpu as usize];
        home.timer_line.store(0, Ordering::Relaxed);
        let migrated = home.cpu.load(Ordering::Relaxed) != cpu;
        if migrated {
            home.cpu.store(cpu, Ordering::Relaxed);
        }
        // Another CPU's clock may be a little ahead.
        let waited = now.saturating_sub(home.ready_since.load(Ordering::Relaxed));
        Some(Turn { vcpu, migrated, waited })
    }

    fn steal_for(&self, thief: CpuIndex) -> Option<(VcpuIndex, Standing)> {
        let (load, victim) = self.others(thief).map(|cpu| (self.place(cpu).load(), cpu)).max()?;
        if load < 2 {
            return None;
        }
        self.place(victim).with(RunQueue::steal)
    }

    /// Puts the vCPU that runs on `cpu` back among those that wait, here or on a CPU that has less
    /// to do, and lets the next one run.
    pub fn switch(&self, cpu: CpuIndex, now: u64, why: PutBack) -> (Option<Turn>, Nudge) {
        let (turn, surplus) = self.place(cpu).with(|own| {
            if let Some(vcpu) = own.running() {
                self.homes[vcpu as usize].ready_since.store(now, Ordering::Relaxed);
            }
            own.put_back(now, why, &self.policy);
            let emptier = self.emptier_than(cpu, own.load());
            let surplus = emptier.and_then(|emptier| own.steal().map(|stolen| (emptier, stolen)));
            (self.start(cpu, own, now), surplus)
        });
        let nudge = match surplus {
            Some((emptier, (vcpu, standing))) => self.enqueue(emptier, vcpu, standing),
            None => Nudge::Nothing,
        };
        (turn, nudge)
    }

    /// A CPU that has at least two vCPUs fewer than `load`.
    #[inline]
    fn emptier_than(&self, cpu: CpuIndex, load: usize) -> Option<CpuIndex> {
        if load < 2 || self.cpus.len() == 1 { None } else { self.search_emptier_than(cpu, load) }
    }

    #[inline(never)]
    fn search_emptier_than(&self, cpu: CpuIndex, load: usize) -> Option<CpuIndex> {
        let (least, other) = self.others(cpu).map(|other| (self.place(other).load(), other)).min()?;
        (least + 2 <= load).then_some(other)
    }

    /// Takes the vCPU that runs on `cpu` off it, if `commit` says that it may block, and lets the
    /// next one run; `deadline` is when it wants to be woken at the latest, `u64::MAX` for never.
    ///
    /// `commit` runs under the queue's lock: a waker that sees the vCPU blocked waits for that
    /// lock, so it finds the timer set and the vCPU off the CPU.
    pub fn block(&self, cpu: CpuIndex, now: u64, deadline: u64, commit: impl FnOnce() -> bool) -> Block {
        self.place(cpu).with(|own| {
            let Some(vcpu) = own.running() else { return Block::Refused };
            if !commit() {
                return Block::Refused;
            }
            let virtual_time = own.take_off(now);
            self.homes[vcpu as usize].virtual_time.store(virtual_time, Ordering::Relaxed);
            if deadline != u64::MAX {
                own.add_timer(deadline, vcpu);
            }
            Block::Next(self.start(cpu, own, now))
        })
    }

    /// Makes a vCPU runnable that is in no queue: it was blocked, and the caller is the one that
    /// may wake it. It waits in `line`, from `now` on.
    pub fn wake(&self, vcpu: VcpuIndex, line: Line, now: u64) -> Nudge {
        let home = &self.homes[vcpu as usize];
        // Relaxed: read under the lock of the queue that it is put into below.
        home.ready_since.store(now, Ordering::Relaxed);
        // Relaxed: the notify word orders it, by which the caller knows that it may wake.
        let cpu = home.cpu.load(Ordering::Relaxed);
        let placed = self.place(cpu).with(|own| {
            own.remove_timer(vcpu);
            let standing = own.standing(home.virtual_time.load(Ordering::Relaxed), line);
            // To go to an emptier CPU only one lock is held at a time.
            match self.emptier_than(cpu, own.load().wrapping_add(1)) {
                Some(emptier) => Err((emptier, standing)),
                None => Ok(self.enqueue_in(own, cpu, vcpu, standing)),
            }
        });
        placed.unwrap_or_else(|(emptier, standing)| self.enqueue(emptier, vcpu, standing))
    }

    #[inline(never)] // To another CPU, mostly.
    fn enqueue(&self, cpu: CpuIndex, vcpu: VcpuIndex, standing: Standing) -> Nudge {
        self.place(cpu).with(|queue| self.enqueue_in(queue, cpu, vcpu, standing))
    }

    #[inline(always)] // Waking is half of a switch between two vCPUs.
    fn enqueue_in(&self, queue: &mut RunQueue, cpu: CpuIndex, vcpu: VcpuIndex, standing: Standing) -> Nudge {
        if standing.is_expired() {
            self.homes[vcpu as usize].timer_line.store(cpu + 1, Ordering::Relaxed);
        }
        let sooner = queue.enqueue(vcpu, standing, &self.policy);
        match queue.running() {
            Some(running) if sooner => Nudge::Running(running),
            Some(_) => Nudge::Nothing,
            None => Nudge::Idle(cpu),
        }
    }

    /// An interrupt was posted to a vCPU that need not be woken: if it waits in a timer line, it
    /// has work now.
    ///
    /// One that gets into the line at this moment may stay there: it is late then, not lost.
    #[inline]
    pub fn promote(&self, vcpu: VcpuIndex) -> Nudge {
        match self.homes[vcpu as usize].timer_line.load(Ordering::Relaxed).checked_sub(1) {
            None => Nudge::Nothing,
            Some(cpu) => self.promote_on(cpu, vcpu),
        }
    }

    #[cold]
    fn promote_on(&self, cpu: CpuIndex, vcpu: VcpuIndex) -> Nudge {
        self.place(cpu).with(|queue| {
            if !queue.promote(vcpu, &self.policy) {
                return Nudge::Nothing;
            }
            self.homes[vcpu as usize].timer_line.store(0, Ordering::Relaxed);
            queue.running().map_or(Nudge::Idle(cpu), Nudge::Running)
        })
    }

    /// What `cpu`, which asks, has to reckon with while its vCPU runs.
    ///
    /// A CPU that puts a vCPU into the queue afterwards, and so does not count here, posts the
    /// running one an event after that: it looks again before it next enters the guest.
    #[inline]
    pub fn queue_state(&self, cpu: CpuIndex, now: u64) -> QueueState {
        let place = self.place(cpu);
        if place.load() > 1 {
            return self.queue_state_among_others(place, now);
        }
        // Only this CPU adds timers.
        let timer = place.next_timer.load(Ordering::Relaxed);
        QueueState {
            should_switch: false,
            has_waiting: false,
            timer_expired: timer <= now,
            next_event: timer,
        }
    }

    #[inline(never)]
    fn queue_state_among_others(&self, place: &Place, now: u64) -> QueueState {
        place.queue.lock().queue_state(now, &self.policy)
    }

    /// The same after `cpu` has put a vCPU into its own queue, so that another waits there in all
    /// likelihood.
    #[inline(always)]
    pub fn queue_state_after_wake(&self, cpu: CpuIndex, now: u64) -> QueueState {
        self.place(cpu).queue.lock().queue_state(now, &self.policy)
    }

    /// Whether any vCPU waits for `cpu`, on which one runs. Asked without the lock.
    pub fn has_waiting(&self, cpu: CpuIndex) -> bool {
        self.place(cpu).load() > 1
    }

    /// When `cpu`, which idles, must look up again on the scheduler's account: the next timer.
    pub fn next_event(&self, cpu: CpuIndex) -> u64 {
        self.place(cpu).next_timer.load(Ordering::Relaxed)
    }

    /// Takes one vCPU that blocked on `cpu` and whose time has come; the caller posts it its event.
    pub fn pop_expired(&self, cpu: CpuIndex, now: u64) -> Option<VcpuIndex> {
        self.place(cpu).with(|own| own.pop_expired(now))
    }
}
