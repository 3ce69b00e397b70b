//! Actors that take turns on one thread, at points of their own choosing, in an order determined by
//! a seed.
//!
//! Each actor is a coroutine, so that code unaware of this (the crates under test) can be suspended
//! in the middle, at any hook that it calls, and resumed later.

use std::any::Any;
use std::cell::{Cell, RefCell};
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};

use generator::{Gn, LocalGenerator};

use crate::rng::Rng;

/// Words of an actor's stack: 512 KiB, of which only the used part costs memory.
const STACK_WORDS: usize = 64 << 10;
/// The longest run of points at which the same actor continues.
const BURST_MAX: usize = 16;
/// One turn in this many is an actor's last for a while, so that the others advance far meanwhile;
/// more often if it was suspended in the middle of an operation.
const STALL_ONE_IN: usize = 24;
const STALL_INSIDE_ONE_IN: usize = 6;
/// The most turns that it misses.
const STALL_MAX: usize = 300;

/// The function of one actor.
pub(crate) type Actor<'a> = Box<dyn FnOnce() + 'a>;

/// Switches away from the current actor.
type Switch = *const dyn Fn();

/// Unwinds an actor whose run is over before it has ended.
struct Stopped;

/// The scheduler of the actors.
pub(crate) struct Scheduler {
    rng: RefCell<Rng>,
    /// The current actor, and how to switch away from it.
    current: Cell<Option<(usize, Option<Switch>)>>,
    burst: Cell<usize>,
    /// The last actor was suspended in the middle of an operation.
    is_inside: Cell<bool>,
    points: Cell<u64>,
    points_max: u64,
    is_stopping: Cell<bool>,
}

/// How a run ended, if not by the end of all actors.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Ended {
    /// [`Scheduler::stop`] was called.
    Stopped,
    Panicked(String),
    Endless,
}

impl Scheduler {
    /// A scheduler that gives up after `points_max` points.
    pub(crate) fn new(rng: Rng, points_max: u64) -> Self {
        Self {
            rng: RefCell::new(rng),
            current: Cell::new(None),
            burst: Cell::new(0),
            is_inside: Cell::new(false),
            points: Cell::new(0),
            points_max,
            is_stopping: Cell::new(false),
        }
    }

    /// The current actor; `None` outside of [`run`](Self::run).
    pub(crate) fn current(&self) -> Option<usize> {
        self.current.get().map(|(actor, _)| actor)
    }

    /// Another actor may run here, where the current one is in the middle of an operation.
    pub(crate) fn point_inside(&self) {
        self.is_inside.set(true);
        self.point();
        self.is_inside.set(false);
    }

    /// Another actor may run here.
    pub(crate) fn point(&self) {
        let burst = self.burst.get();
        if burst == 0 {
            self.give_way();
        } else {
            self.burst.set(burst - 1);
            self.points.set(self.points.get() + 1);
        }
    }

    /// The actor of the next turn runs here. Called by an actor that waits for others.
    pub(crate) fn give_way(&self) {
        let Some((_, Some(switch))) = self.current.get() else { return };
        if std::thread::panicking() {
            return;
        }
        // SAFETY: it belongs to the current actor, and is on that actor's stack as long as the
        // actor lives.
        unsafe { (*switch)() };
        if self.is_stopping.get() {
            resume_unwind(Box::new(Stopped));
        }
    }

    /// Ends the run: every actor is unwound at its next point.
    pub(crate) fn stop(&self) {
        self.is_stopping.set(true);
        self.burst.set(0);
    }

    /// Runs the actors until all have ended.
    ///
    /// # Errors
    ///
    /// [`Ended`]. All actors have ended then as well.
    pub(crate) fn run<'a>(&'a self, actors: Vec<Actor<'a>>) -> Result<(), Ended> {
        let panics = RefCell::new(None);
        let switches: Vec<_> = actors.iter().map(|_| Cell::new(None)).collect();
        let mut coroutines: Vec<_> = actors
            .into_iter()
            .zip(&switches)
            .map(|(actor, switch)| self.coroutine(actor, switch, &panics))
            .collect();
        let mut running: Vec<usize> = (0..coroutines.len()).collect();
        let (mut turn, mut stalled_until) = (0, vec![0; coroutines.len()]);
        while !running.is_empty() {
            turn += 1;
            let place = self.choose(&running, &stalled_until, turn);
            let actor = running[place];
            self.is_inside.set(false);
            self.burst.set(self.burst());
            self.points.set(self.points.get() + 1);
            self.current.set(Some((actor, switches[actor].get())));
            coroutines[actor].resume();
            self.current.set(None);
            if self.stalls() {
                stalled_until[actor] = turn + self.rng.borrow_mut().below(STALL_MAX);
            }
            if coroutines[actor].is_done() {
                running.swap_remove(place);
            }
            if self.points.get() > self.points_max || panics.borrow().is_some() {
                self.stop();
            }
        }
        drop(coroutines);
        match panics.into_inner() {
            Some(message) => Err(Ended::Panicked(message)),
            None if self.points.get() > self.points_max => Err(Ended::Endless),
            None if self.is_stopping.get() => Err(Ended::Stopped),
            None => Ok(()),
        }
    }

    /// The actor that has this turn, as an index into `running`.
    fn choose(&self, running: &[usize], stalled_until: &[usize], turn: usize) -> usize {
        let first = self.rng.borrow_mut().below(running.len());
        let in_turn = (0..running.len()).map(|offset| (first + offset) % running.len());
        in_turn.into_iter().find(|&place| stalled_until[running[place]] <= turn).unwrap_or(first)
    }

    /// Whether the last actor misses some turns.
    fn stalls(&self) -> bool {
        let one_in = if self.is_inside.get() { STALL_INSIDE_ONE_IN } else { STALL_ONE_IN };
        self.rng.borrow_mut().one_in(one_in)
    }

    fn burst(&self) -> usize {
        let mut rng = self.rng.borrow_mut();
        if self.is_stopping.get() || rng.one_in(2) { 0 } else { rng.below(BURST_MAX) }
    }

    fn coroutine<'a>(
        &'a self,
        actor: Actor<'a>,
        switch: &'a Cell<Option<Switch>>,
        panics: &'a RefCell<Option<String>>,
    ) -> LocalGenerator<'a, (), ()> {
        Gn::new_scoped_opt_local(STACK_WORDS, move |scope| {
            let scope = RefCell::new(scope);
            let leave = || scope.borrow_mut().yield_with(());
            let leave: &dyn Fn() = &leave;
            // SAFETY: only the lifetime changes. Only the actor calls it, which ends before this
            // function does.
            let leave = unsafe { core::mem::transmute::<*const dyn Fn(), Switch>(leave) };
            switch.set(Some(leave));
            self.current.set(self.current.get().map(|(index, _)| (index, Some(leave))));
            if self.is_stopping.get() {
                return;
            }
            if let Err(payload) = catch_unwind(AssertUnwindSafe(actor))
                && !payload.is::<Stopped>()
            {
                panics.borrow_mut().get_or_insert_with(|| message(payload.as_ref()));
            }
        })
    }
}

fn message(payload: &(dyn Any + Send)) -> String {
    let text = payload.downcast_ref::<&str>().map(|text| (*text).to_owned());
    text.or_else(|| payload.downcast_ref::<String>().cloned()).unwrap_or_else(|| "a panic".to_owned())
}

impl core::fmt::Debug for Scheduler {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.debug_struct("Scheduler").field("points", &self.points).finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn orders(seed: u64) -> Vec<usize> {
        let scheduler = Scheduler::new(Rng::new(seed), 1 << 20);
        let order = RefCell::new(Vec::new());
        let actor = |index| -> Actor<'_> {
            let (scheduler, order) = (&scheduler, &order);
            Box::new(move || {
                for _ in 0..8 {
                    order.borrow_mut().push(index);
                    scheduler.point();
                }
                assert_eq!(scheduler.current(), Some(index));
            })
        };
        scheduler.run((0..3).map(actor).collect()).unwrap();
        order.into_inner()
    }

    #[test]
    fn a_seed_determines_the_order_and_all_get_their_turns() {
        assert_eq!(orders(1), orders(1));
        assert_ne!(orders(1), orders(2));
        for index in 0..3 {
            assert_eq!(orders(1).iter().filter(|&&one| one == index).count(), 8);
        }
    }

    #[test]
    fn a_run_ends_by_a_stop_by_a_panic_and_when_it_is_endless() {
        let dropped = Cell::new(0);
        struct Count<'a>(&'a Cell<u32>);
        impl Drop for Count<'_> {
            fn drop(&mut self) {
                self.0.set(self.0.get() + 1);
            }
        }
        let forever = |scheduler: &Scheduler| {
            let _count = Count(&dropped);
            loop {
                scheduler.point();
            }
        };
        let run = |points, first: fn(&Scheduler)| {
            let scheduler = Scheduler::new(Rng::new(1), points);
            let actors: Vec<Actor<'_>> =
                vec![Box::new(|| first(&scheduler)), Box::new(|| forever(&scheduler))];
            scheduler.run(actors)
        };
        assert_eq!(run(1 << 20, Scheduler::stop), Err(Ended::Stopped));
        assert_eq!(run(1000, |_| {}), Err(Ended::Endless));
        std::panic::set_hook(Box::new(|_| {}));
        let panicked = run(1 << 20, |_| panic!("so it is"));
        let _ = std::panic::take_hook();
        assert_eq!(panicked, Err(Ended::Panicked("so it is".into())));
        assert!(dropped.get() >= 2, "stacks are unwound");
    }
}
