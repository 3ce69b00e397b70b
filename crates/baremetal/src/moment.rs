//! A device that acts between two accesses to its registers, for mocks of them.

use std::boxed::Box;
use std::sync::{Mutex, MutexGuard, PoisonError};

type Act = Box<dyn FnOnce() + Send>;

/// What a device does before one of the next accesses.
#[derive(Default)]
pub struct Moment(Mutex<Option<(u32, Act)>>);

impl Moment {
    fn lock(&self) -> MutexGuard<'_, Option<(u32, Act)>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The device does this before access `at`, counted from now on and from 0.
    pub fn set(&self, at: u32, act: impl FnOnce() + Send + 'static) {
        *self.lock() = Some((at, Box::new(act)));
    }

    /// Each access begins with this.
    pub fn pass(&self) {
        let mut next = self.lock();
        if let Some((left, act)) = next.take() {
            match left.checked_sub(1) {
                Some(left) => *next = Some((left, act)),
                None => {
                    drop(next);
                    act();
                }
            }
        }
    }

    /// Whether the device has done it.
    pub fn has_come(&self) -> bool {
        self.lock().is_none()
    }
}

impl core::fmt::Debug for Moment {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        write!(f, "Moment({:?})", self.lock().as_ref().map(|(left, _)| left))
    }
}

/// Runs a test for each moment, until it says that there were fewer accesses.
///
/// # Panics
///
/// There were too few for a test.
pub fn each_moment(mut test: impl FnMut(u32) -> bool) {
    let count = (0..).take_while(|&at| test(at)).count();
    assert!(count > 1, "a test of {count} accesses");
}
