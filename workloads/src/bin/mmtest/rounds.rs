//! Rounds that all threads begin together and whose end the main thread awaits.

use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};

#[derive(Default)]
struct State {
    /// Rounds that have begun.
    begun: u64,
    /// Threads that have finished the last one.
    through: u64,
    is_over: bool,
}

/// Where threads wait for a round to begin, and the main thread for its end. Unlike a barrier it
/// can be closed at any time, however many threads have arrived.
#[derive(Default)]
pub(crate) struct Rounds {
    state: Mutex<State>,
    changed: Condvar,
}

impl Rounds {
    pub(crate) fn begin(&self) {
        let mut state = self.lock();
        state.begun += 1;
        state.through = 0;
        drop(state);
        self.changed.notify_all();
    }

    pub(crate) fn wait_for_all(&self, threads: u64) {
        let through = self.changed.wait_while(self.lock(), |state| state.through < threads);
        drop(through.unwrap_or_else(PoisonError::into_inner));
    }

    /// Does `work` once in each round that begins, until there are no more rounds.
    pub(crate) fn take_part(&self, mut work: impl FnMut()) {
        let mut done = 0;
        loop {
            let waited = self.changed.wait_while(self.lock(), |state| state.begun == done && !state.is_over);
            let state = waited.unwrap_or_else(PoisonError::into_inner);
            if state.begun == done {
                return;
            }
            drop(state);
            work();
            done += 1;
            self.lock().through += 1;
            self.changed.notify_all();
        }
    }

    pub(crate) fn close(&self) {
        self.lock().is_over = true;
        self.changed.notify_all();
    }

    /// A thread that panics leaves the numbers unchanged.
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
    use std::thread;

    #[test]
    fn every_thread_works_once_in_each_round() {
        let (rounds, worked) = (Rounds::default(), AtomicU64::new(0));
        thread::scope(|scope| {
            for _ in 0..3 {
                scope.spawn(|| rounds.take_part(|| _ = worked.fetch_add(1, Relaxed)));
            }
            for round in 1..=50 {
                rounds.begin();
                rounds.wait_for_all(3);
                assert_eq!(worked.load(Relaxed), 3 * round);
            }
            rounds.close();
        });
        assert_eq!(worked.load(Relaxed), 150);
    }

    #[test]
    fn closing_ends_threads_that_never_had_a_round() {
        let rounds = Rounds::default();
        thread::scope(|scope| {
            scope.spawn(|| rounds.take_part(|| panic!("no round was begun")));
            rounds.close();
        });
    }
}
