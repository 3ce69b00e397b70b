//! The counters of a run: raw ones that only grow, and their shares by phase.

use crate::kind::{KINDS, Kind, dsb_name, tlbi_name};
use hostlink::phase::Phase;
use serde_json::{Map, Value, json};
use std::sync::atomic::{AtomicU64, Ordering};

/// Number of phases.
pub const PHASES: usize = Phase::ALL.len();

/// Index of the raw counter of all instructions; those of [`Kind::index`] follow.
const ALL: usize = 0;
/// Number of raw counters.
const RAW: usize = 1 + KINDS;

/// The counters.
pub struct Counts {
    /// Raw counters, to which code of the machine adds until the process ends.
    raw: &'static [AtomicU64; RAW],
    /// The value of `raw` when the current phase began.
    begun: Box<[u64; RAW]>,
    /// Of each phase; the current one still lacks the increase of `raw` since `begun`.
    phases: Vec<Box<[u64; RAW]>>,
    /// How often each phase has begun.
    entries: [u64; PHASES],
    current: usize,
    /// The kinds that were ever translated: all other raw counters are 0.
    kinds: Vec<Kind>,
}

impl Default for Counts {
    fn default() -> Self {
        let zeroes = || Box::new([0; RAW]);
        Self {
            raw: Box::leak(Box::new([const { AtomicU64::new(0) }; RAW])),
            begun: zeroes(),
            phases: (0..PHASES).map(|_| zeroes()).collect(),
            entries: [0; PHASES],
            current: 0,
            kinds: Vec::new(),
        }
    }
}

impl Counts {
    /// The raw counter with this number.
    pub fn counter(&self, number: usize) -> &'static AtomicU64 {
        &self.raw[number]
    }

    /// The number of the counter of all instructions.
    pub fn instructions(&self) -> usize {
        ALL
    }

    /// The number of the counter of a kind, which is in use from now on.
    pub fn kind(&mut self, kind: Kind) -> usize {
        if !self.kinds.contains(&kind) {
            self.kinds.push(kind);
        }
        1 + kind.index()
    }

    /// Begins another phase; numbers beyond the last mean the first phase.
    pub fn begin(&mut self, phase: usize) {
        self.settle();
        self.current = if phase < PHASES { phase } else { 0 };
        self.entries[self.current] += 1;
    }

    /// Adds the counts since the current phase began to it.
    fn settle(&mut self) {
        for at in self.kinds.iter().map(|kind| 1 + kind.index()).chain([ALL]) {
            let now = self.raw[at].load(Ordering::Relaxed);
            let gained = now.wrapping_sub(self.begun[at]);
            self.phases[self.current][at] = self.phases[self.current][at].wrapping_add(gained);
            self.begun[at] = now;
        }
    }

    /// The counts: `{"phases": [PHASE, …]}`, eight of them in the order of their numbers. A PHASE
    /// has `entries`, the number of times it began; `instructions`; `tlbi` and `dsb`, objects with
    /// a number for each kind by its assembler name, without those that are 0; `isb`, `dc` (by
    /// address), `dc_set_way`, `ic` and `eret`. The hint that begins a phase counts for it.
    pub fn json(&mut self) -> Value {
        self.settle();
        let phases: Vec<_> = (0..PHASES).map(|phase| self.phase_json(phase)).collect();
        json!({ "phases": phases })
    }

    fn phase_json(&self, phase: usize) -> Value {
        let counts = &self.phases[phase];
        let of = |kind: Kind| counts[1 + kind.index()];
        let (mut tlbi, mut dsb) = (Map::new(), Map::new());
        for kind in self.kinds.iter().copied().filter(|kind| of(*kind) != 0) {
            match kind {
                Kind::Invlpga => drop(tlbi.insert("invlpga".to_owned(), of(kind).into())),
                Kind::Tlbi(operation) => drop(tlbi.insert(tlbi_name(operation), of(kind).into())),
                Kind::Dsb(crm) => drop(dsb.insert(dsb_name(crm), of(kind).into())),
                Kind::DsbNxs => drop(dsb.insert("nxs".to_owned(), of(kind).into())),
                _ => {}
            }
        }
        json!({
            "entries": self.entries[phase],
            "instructions": counts[ALL],
            "tlbi": tlbi,
            "dsb": dsb,
            "isb": of(Kind::Isb),
            "dc": of(Kind::DcByAddress),
            "dc_set_way": of(Kind::DcBySetWay),
            "ic": of(Kind::Ic),
            "eret": of(Kind::Eret),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn add(counts: &Counts, counter: usize, count: u64) {
        counts.counter(counter).fetch_add(count, Ordering::Relaxed);
    }

    #[test]
    fn what_is_counted_belongs_to_the_phase_of_its_time() {
        let mut counts = Counts::default();
        let (all, isb) = (counts.instructions(), counts.kind(Kind::Isb));
        let ish = counts.kind(Kind::Dsb(11));
        add(&counts, all, 10);
        counts.begin(3);
        add(&counts, all, 5);
        add(&counts, ish, 2);
        counts.begin(0);
        add(&counts, all, 1);
        counts.begin(3);
        add(&counts, all, 7);
        add(&counts, isb, 1);
        let json = counts.json();
        let phase = |at: usize| json["phases"][at].clone();
        assert_eq!((&phase(0)["instructions"], &phase(0)["entries"]), (&json!(11), &json!(1)));
        assert_eq!((&phase(3)["instructions"], &phase(3)["entries"]), (&json!(12), &json!(2)));
        assert_eq!((&phase(3)["dsb"], &phase(3)["isb"]), (&json!({"ish": 2}), &json!(1)));
        assert_eq!((&phase(0)["dsb"], &phase(0)["isb"]), (&json!({}), &json!(0)));
        assert_eq!(counts.json(), json, "looking changes nothing");
    }

    #[test]
    fn a_phase_that_does_not_exist_is_the_first() {
        let mut counts = Counts::default();
        let all = counts.instructions();
        counts.begin(PHASES);
        add(&counts, all, 4);
        assert_eq!(counts.json()["phases"][0]["instructions"], 4);
    }
}
