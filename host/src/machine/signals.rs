//! SIGHUP, SIGINT and SIGTERM: recorded, and handled where the machine is waited for.

use crate::prelude::*;
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
use std::sync::atomic::{AtomicUsize, Ordering};

/// Records termination signals. The default records none, and they have their default effect.
#[derive(Clone, Default)]
pub(crate) struct Signals {
    caught: Arc<AtomicUsize>,
}

impl Signals {
    /// From now on SIGHUP, SIGINT and SIGTERM are recorded. Call it once.
    pub(crate) fn install() -> Result<Self> {
        let caught = Arc::new(AtomicUsize::new(0));
        for signal in [SIGHUP, SIGINT, SIGTERM] {
            let number = usize::try_from(signal)?;
            signal_hook::flag::register_usize(signal, Arc::clone(&caught), number)
                .context("cannot install a signal handler")?;
        }
        Ok(Self { caught })
    }

    /// As if this one had come.
    pub(crate) fn catch(&self, signal: usize) {
        self.caught.store(signal, Ordering::Relaxed);
    }

    #[cfg(test)]
    pub(super) fn with_caught(signal: usize) -> Self {
        Self { caught: Arc::new(AtomicUsize::new(signal)) }
    }

    pub(crate) fn caught(&self) -> Option<i32> {
        match self.caught.load(Ordering::Relaxed) {
            0 => None,
            number => i32::try_from(number).ok(),
        }
    }
}
