//! Connections that have not shown yet that they know the secret.

use crate::prelude::*;
use rustix::net::{Shutdown, shutdown};
use std::cell::Cell;
use std::collections::VecDeque;
use std::os::fd::OwnedFd;
use std::sync::MutexGuard;

/// So many are served at a time. The oldest one makes room for another.
const AT_A_TIME: usize = 32;
/// Between two of them, so that one with the secret has shown it before it is the oldest.
const PAUSE: Duration = Duration::from_millis(2);
/// There is one line at most about all that failed in this time.
const QUIET: Duration = Duration::from_secs(10);

#[derive(Default)]
pub(super) struct Greetings(Mutex<State>);

#[derive(Default)]
struct State {
    number: u64,
    waiting: VecDeque<(u64, OwnedFd)>,
    failed: u64,
    told: Option<Instant>,
}

impl Greetings {
    fn state(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// One more.
    pub(super) fn begin(&self, stream: &OwnedFd) -> Result<Greeting<'_>> {
        let stream = stream.try_clone()?;
        let mut state = self.state();
        state.number += 1;
        let number = state.number;
        state.waiting.push_back((number, stream));
        if state.waiting.len() > AT_A_TIME
            && let Some((_, oldest)) = state.waiting.pop_front()
        {
            // It may have gone.
            let _ = shutdown(&oldest, Shutdown::Both);
        }
        drop(state);
        thread::sleep(PAUSE);
        Ok(Greeting { all: self, number, is_known: Cell::new(false) })
    }
}

/// One of them.
pub(super) struct Greeting<'a> {
    all: &'a Greetings,
    number: u64,
    is_known: Cell<bool>,
}

impl Greeting<'_> {
    /// It has shown the secret.
    pub(super) fn is_over(&self) {
        self.is_known.set(true);
        self.leave();
    }

    fn leave(&self) {
        self.all.state().waiting.retain(|(number, _)| *number != self.number);
    }

    /// What is to be said of a connection that has failed; those without the secret share lines.
    pub(super) fn failed(&self, error: &Error) -> Option<String> {
        if self.is_known.get() {
            return Some(format!("a guest did not arrive: {error:#}"));
        }
        let mut state = self.all.state();
        state.failed += 1;
        if state.told.is_some_and(|told| told.elapsed() < QUIET) {
            return None;
        }
        state.told = Some(Instant::now());
        let count = std::mem::take(&mut state.failed);
        let others = if count > 1 { format!(", and {} before it", count - 1) } else { String::new() };
        Some(format!("a connection has not shown the secret{others}: {error:#}"))
    }
}

impl Drop for Greeting<'_> {
    fn drop(&mut self) {
        self.leave();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Read;
    use std::os::unix::net::UnixStream;

    /// A connection, and its other end.
    fn pair() -> (OwnedFd, UnixStream) {
        let (one, other) = UnixStream::pair().expect("can be connected");
        (one.into(), other)
    }

    #[test]
    fn those_without_the_secret_share_a_line_and_one_with_it_has_its_own() {
        let all = Greetings::default();
        let failed = |is_known: bool| {
            let one = all.begin(&pair().0).expect("begins");
            if is_known {
                one.is_over();
            }
            one.failed(&anyhow!("why"))
        };
        let alone = "a connection has not shown the secret: why";
        assert_eq!(failed(false).as_deref(), Some(alone));
        // However slow the test is.
        all.state().told = Some(Instant::now() + Duration::from_secs(3600));
        assert_eq!([failed(false), failed(false)], [None, None]);
        assert_eq!(all.state().failed, 2, "they are counted");
        assert_eq!(failed(true).as_deref(), Some("a guest did not arrive: why"));
        for before in [2, 1] {
            all.state().failed = before;
            all.state().told = Instant::now().checked_sub(QUIET);
            let with_others = format!("a connection has not shown the secret, and {before} before it: why");
            assert_eq!(failed(false), Some(with_others));
        }
        all.state().told = Instant::now().checked_sub(QUIET);
        assert_eq!(failed(false).as_deref(), Some(alone));
        assert!(all.state().waiting.is_empty(), "each has left");
    }

    #[test]
    fn the_oldest_makes_room_for_one_too_many() {
        let all = Greetings::default();
        let pairs: Vec<_> = (0..=AT_A_TIME).map(|_| pair()).collect();
        let mut waiting: Vec<_> = pairs.iter().map(|(one, _)| all.begin(one).expect("begins")).collect();
        let is_shut = |(_, other): &(OwnedFd, UnixStream)| {
            other.set_nonblocking(true).expect("can be set");
            let mut other = other;
            matches!(other.read(&mut [0]), Ok(0))
        };
        assert_eq!(pairs.iter().position(is_shut), Some(0));
        assert!(!pairs[1..].iter().any(is_shut));
        waiting[5].is_over();
        waiting.truncate(10);
        assert_eq!(all.state().waiting.len(), 8, "two of ten are no longer served");
    }
}
