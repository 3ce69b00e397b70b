//! Two machines, the ways between them, and a third one that nobody means.

use super::super::manifest::Described;
use super::super::outflow::Manner;
use super::super::policy::Wanted;
use super::super::source::{Destination, InDoubt, Moved, migrate};
use super::machines::{Side, address, secret, until};
use super::way::{Leads, Way};
use crate::prelude::*;
use hostlink::guests::GuestState::{self, Empty, Given, Running};

/// The mock's guest is never too fast.
pub(super) const WANTED: Wanted =
    Wanted { downtime: Duration::from_secs(1), rounds: 3, throttle: false, at_any_cost: true };

pub(in super::super) struct World {
    pub(in super::super) sides: [Side; 2],
    /// The way to each side.
    pub(super) ways: [Way; 2],
    pub(super) foreign: Side,
    patience: Duration,
    started: u32,
    directory: TempDir,
}

impl World {
    /// The guest is at the first one. Everybody has this patience.
    pub(in super::super) fn new(patience: Duration) -> Self {
        let directory = tempfile::tempdir().expect("makes");
        let side = |name, has_guest| Side::start(directory.path(), name, has_guest, patience);
        let sides = [side("a", true), side("b", false)];
        let others = Described::made_up(b"another kernel", "vcpus=2\nmemory=4194304\n");
        let foreign = Side::start_for(directory.path(), "c", false, patience, others);
        let way = |to: usize| Way::new(directory.path().join(format!("way-{to}")), &sides[to].path);
        let ways = [way(0), way(1)];
        Self { sides, ways, foreign, patience, started: 0, directory }
    }

    /// The machine is killed, and another one takes its place.
    pub(super) fn kill(&mut self, side: usize, has_guest: bool) {
        self.started += 1;
        let name = self.started.to_string();
        self.sides[side] = Side::start(self.directory.path(), &name, has_guest, self.patience);
    }

    /// One more machine without a guest.
    pub(super) fn another(&self) -> Side {
        Side::start(self.directory.path(), "another", false, self.patience)
    }

    /// The way to a machine leads there again.
    pub(super) fn mend(&self, to: usize) {
        self.ways[to].set(Leads::To(self.sides[to].path.clone()));
    }

    pub(super) fn to(&self, side: usize) -> Destination {
        Destination { address: address(&self.ways[side].path), secret: secret() }
    }

    pub(super) fn manner(&self, signals: &Signals) -> Manner {
        Manner { patience: self.patience, ..Manner::new(WANTED, signals.clone()) }
    }

    pub(super) fn migrate(&self, from: usize) -> Result<Moved> {
        self.migrate_as(from, &Signals::default())
    }

    pub(super) fn migrate_as(&self, from: usize, signals: &Signals) -> Result<Moved> {
        migrate(&self.sides[from].origin, &self.to(1 - from), &self.manner(signals))
    }

    /// What each side has, when nothing is on its way any more. The guest runs once at most, and
    /// not on the third machine.
    pub(super) fn states(&self, what: &str) -> [GuestState; 2] {
        let states = until(what, || {
            let is_settled = [&self.sides[0], &self.sides[1], &self.foreign].iter().all(|it| it.is_settled());
            is_settled.then(|| self.sides.each_ref().map(Side::state))
        });
        assert_ne!(states, [Running; 2], "{what}: it runs twice");
        assert_eq!(self.foreign.state(), Empty, "{what}: it is at a machine that nobody means");
        states
    }

    /// What a command has said of the guest is so. Returns the side on which it runs, if any does.
    pub(super) fn check(&self, from: usize, result: &Result<Moved>, what: &str) -> Option<usize> {
        let about = format!("{what}: {result:?}");
        let is_there = match result {
            Ok(moved) => moved.away,
            Err(error) if error.is::<InDoubt>() => {
                let states = self.states(&about);
                assert_eq!(states[from], Given, "{about}: it stands still");
                return (states[1 - from] == Running).then_some(1 - from);
            }
            Err(_) => false,
        };
        let at = if is_there { 1 - from } else { from };
        self.sides[at].until_it_is(Running);
        let states = self.states(&about);
        assert_eq!([states[at], states[1 - at]], [Running, Empty], "{about}");
        Some(at)
    }
}
