//! Threads on all processors.

use crate::{Failure, maps};
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use workloads::options::cpus;

/// Runs a thread for each processor; the sum of what they return.
pub(crate) fn all(work: impl Fn(u32) -> Result<u64, Failure> + Sync) -> Result<u64, Failure> {
    let count = cpus() as u32;
    thread::scope(|scope| {
        let work = &work;
        let threads: Vec<_> = (0..count).map(|index| scope.spawn(move || work(index))).collect();
        let ends = threads.into_iter().map(|thread| thread.join().map_err(|_| "a thread panicked")?);
        ends.sum()
    })
}

/// Runs `act` while threads on all processors use mappings; what it returns, and their rounds.
pub(crate) fn during<T>(act: impl FnOnce() -> Result<T, Failure>) -> Result<(T, u64), Failure> {
    let is_over = AtomicBool::new(false);
    thread::scope(|scope| {
        let works = scope.spawn(|| {
            all(|index| {
                let mut rounds = 0;
                // Relaxed: nothing else is told by it.
                while rounds == 0 || !is_over.load(Ordering::Relaxed) {
                    maps::round(u64::from(index) << 32 | rounds)?;
                    rounds += 1;
                }
                Ok(rounds)
            })
        });
        let acted = act();
        is_over.store(true, Ordering::Relaxed);
        let rounds = works.join().map_err(|_| "a thread panicked")??;
        Ok((acted?, rounds))
    })
}
