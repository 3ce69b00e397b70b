//! A device that acts between two accesses to its registers, for mocks of them.

use alloc::boxed::Box;
use spin::Mutex;

type Act = Box<dyn FnOnce() + Send>;

/// What a device does before one of the next accesses.
#[derive(Default)]
pub(crate) struct Moment(Mutex<Option<(u32, Act)>>);

impl Moment {
    /// The device does this before access `at`, counted from now on and from 0.
    pub(crate) fn set(&self, at: u32, act: impl FnOnce() + Send + 'static) {
        *self.0.lock() = Some((at, Box::new(act)));
    }

    /// Each access begins with this.
    pub(crate) fn pass(&self) {
        let mut next = self.0.lock();
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

    pub(crate) fn has_come(&self) -> bool {
        self.0.lock().is_none()
    }
}

/// Runs a test for each moment, until it says that there were fewer accesses.
pub(crate) fn each_moment(mut test: impl FnMut(u32) -> bool) {
    let count = (0..).take_while(|&at| test(at)).count();
    assert!(count > 2, "a test of {count} accesses");
}
