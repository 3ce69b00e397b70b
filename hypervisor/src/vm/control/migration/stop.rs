//! For how long a guest stands still because it is sent, and what is done meanwhile.

/// Times in ticks of the clock.
#[derive(Debug, Default)]
pub(super) struct Stop {
    /// Since when it has stood still.
    since: Option<u64>,
    /// For how long it did before.
    pub(super) ticks: u64,
    /// Steps while it stood still.
    pub(super) worked: u64,
    /// The longest step.
    pub(super) longest: u64,
}

impl Stop {
    /// It stands still from now on, if it did not before.
    pub(super) fn begin(&mut self, now: u64) {
        self.since.get_or_insert(now);
    }

    /// It does not any more, or somebody else decides about it.
    pub(super) fn end(&mut self, now: u64) {
        self.ticks += self.since.take().map_or(0, |since| now - since);
    }

    pub(super) const fn is_now(&self) -> bool {
        self.since.is_some()
    }

    /// A step was made; whether it stood still before that.
    pub(super) fn stepped(&mut self, took: u64, stood_still: bool) {
        self.longest = self.longest.max(took);
        if stood_still || self.is_now() {
            self.worked += took;
        }
    }
}

#[test]
fn a_guest_stands_still_from_the_first_beginning_to_the_end() {
    let mut stop = Stop::default();
    stop.end(7);
    stop.stepped(40, false);
    [100, 130].into_iter().for_each(|now| stop.begin(now));
    // The step in which it began, one in between, and the one in which it ended.
    [(3, false), (50, true)].into_iter().for_each(|(took, stood_still)| stop.stepped(took, stood_still));
    assert_eq!((stop.is_now(), stop.ticks, stop.worked, stop.longest), (true, 0, 53, 50));
    [150, 160].into_iter().for_each(|now| stop.end(now));
    stop.stepped(6, true);
    assert_eq!((stop.is_now(), stop.ticks, stop.worked, stop.longest), (false, 50, 59, 50));
}
