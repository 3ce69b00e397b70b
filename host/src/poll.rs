//! A thread that looks at something again and again, until its owner has no more need of it.

use crate::prelude::*;
use std::sync::atomic::{AtomicBool, Ordering};

/// The thread, and what it has found in the end.
pub(crate) struct Poll<T> {
    is_over: Arc<AtomicBool>,
    thread: JoinHandle<Result<T>>,
}

impl<T: Send + 'static> Poll<T> {
    /// Looks once each period, and once more at the end; then returns what `found` makes of it.
    pub(crate) fn spawn<S: Send + 'static>(
        period: Duration,
        mut state: S,
        look: impl Fn(&mut S) -> Result<()> + Send + 'static,
        found: impl FnOnce(S) -> Result<T> + Send + 'static,
    ) -> Self {
        let is_over = Arc::new(AtomicBool::new(false));
        let ends = Arc::clone(&is_over);
        let thread = thread::spawn(move || {
            loop {
                // Loaded first, so that what was written before the end is seen in the last look.
                let is_last = ends.load(Ordering::Relaxed);
                look(&mut state)?;
                if is_last {
                    return found(state);
                }
                thread::sleep(period);
            }
        });
        Self { is_over, thread }
    }

    pub(crate) fn finish(self) -> Result<T> {
        self.is_over.store(true, Ordering::Relaxed); // Nothing else is published by it.
        self.thread.join().map_err(|_| anyhow!("a thread of this tool panicked"))?
    }
}
