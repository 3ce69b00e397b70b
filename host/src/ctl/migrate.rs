//! `quell ctl migrate`: a migration in vain.

use super::fields::Fields;
use crate::machine::control::Control;
use crate::table::table;
use anyhow::{Context, Result, ensure};
use hostlink::ctl::{LogWay, Request};
use serde::Serialize;
use std::time::Duration;

/// A round in which each page of a large slot is copied says nothing before its end.
const SILENCE_MAX: Duration = Duration::from_secs(300);

/// What the hypervisor says of a migration in vain.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub(crate) struct Migrated {
    /// Of each round, the first of which copies all pages.
    rounds: Vec<Fields>,
    /// Of undoing it.
    undone: Fields,
}

impl Migrated {
    /// Has the slot migrated in vain. `copied` is called after each round with its number, and the hypervisor waits for it: after
    /// the last one nothing is undone yet.
    pub(crate) fn ask(
        control: Control,
        slot: u16,
        way: LogWay,
        rounds: u16,
        mut copied: impl FnMut(u64) -> Result<()>,
    ) -> Result<Self> {
        let request = Request::Migrate { slot, way, rounds };
        let answer = control.with_patience(SILENCE_MAX).ask_each(&request, |record| {
            Fields::parse(record)?.number("round").map_or(Ok(()), &mut copied)
        })?;
        Self::read(&answer)
    }

    fn read(answer: &[String]) -> Result<Self> {
        let mut rounds: Vec<_> = answer.iter().map(|record| Fields::parse(record)).collect::<Result<_>>()?;
        let undone = rounds.pop().context("the hypervisor's answer is empty")?;
        let is_whole = undone.number("undone") == Some(1) && undone.number("hz").is_some_and(|hz| hz > 0);
        ensure!(is_whole, "the hypervisor does not say how the migration was undone: {answer:?}");
        for (number, round) in (0..).zip(&rounds) {
            ensure!(round.number("round") == Some(number), "round {number} is missing: {answer:?}");
        }
        Ok(Self { rounds, undone })
    }

    /// The seconds of all steps, and of the longest one, in which pages were copied.
    pub(crate) fn copying(&self) -> [f64; 2] {
        self.rounds
            .iter()
            .map(|round| self.seconds(round))
            .fold([0.0, 0.0], |[sum, longest], round| [sum + round[0], round[1].max(longest)])
    }

    /// The same of undoing it.
    pub(crate) fn undoing(&self) -> [f64; 2] {
        self.seconds(&self.undone)
    }

    /// Pages that were copied, the first round's included.
    pub(crate) fn pages(&self) -> u64 {
        self.rounds.iter().filter_map(|round| round.number("pages")).sum()
    }

    /// The seconds that a record names: of all steps, and of the longest one.
    #[expect(clippy::cast_precision_loss, reason = "a duration that is shown")]
    fn seconds(&self, record: &Fields) -> [f64; 2] {
        let hz = self.undone.number("hz").unwrap_or(1) as f64;
        ["ticks", "longest"].map(|key| record.number(key).map_or(f64::NAN, |ticks| ticks as f64 / hz))
    }

    /// For people.
    pub(crate) fn table(&self) -> String {
        let row = |name: String, record: &Fields| {
            let [all, longest] = self.seconds(record);
            let (all, longest) = (format!("{:.1} ms", all * 1e3), format!("{:.0} µs", longest * 1e6));
            [name, record["pages"].to_owned(), record["steps"].to_owned(), all, longest]
        };
        let rounds = self.rounds.iter().map(|record| match &record["round"] {
            "0" => row("all pages".to_owned(), record),
            number => row(format!("round {number}"), record),
        });
        let header = ["", "pages copied", "steps", "time", "longest step"];
        table(header, rounds.chain([row("undone".to_owned(), &self.undone)])).to_string()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn answer(records: &[&str]) -> Vec<String> {
        records.iter().map(|record| (*record).to_owned()).collect()
    }

    const ALL: &str = "round=0 pages=512 steps=33 ticks=5000 longest=900";
    const ONE: &str = "round=1 pages=7 steps=4 ticks=1000 longest=950";
    const END: &str = "undone=1 steps=2 ticks=20 longest=15 longest_before=950 hz=1000000";

    #[test]
    fn answers_that_lack_a_part_are_errors() {
        let hz = "undone=1 steps=2 ticks=20 longest=15 longest_before=950 hz=0";
        for records in [&[][..], &[ALL], &[ALL, ONE], &[ONE, END], &[ALL, hz], &[ALL, "nothing"]] {
            assert!(Migrated::read(&answer(records)).is_err(), "{records:?}");
        }
    }

    #[test]
    fn times_are_those_of_the_clock_that_is_named() {
        let migrated = Migrated::read(&answer(&[ALL, ONE, END])).expect("parses");
        let close = |[a, b]: [f64; 2], [c, d]: [f64; 2]| (a - c).abs() < 1e-12 && (b - d).abs() < 1e-12;
        assert!(close(migrated.copying(), [6e-3, 950e-6]) && close(migrated.undoing(), [20e-6, 15e-6]));
        assert_eq!(migrated.pages(), 519);
        let text = migrated.table();
        assert!(text.contains("all pages") && text.contains("round 1") && text.contains("15 µs"), "{text}");
        let json = serde_json::to_value(&migrated).expect("writes");
        assert_eq!((&json["rounds"][1]["pages"], &json["undone"]["hz"]), (&7.into(), &1_000_000.into()));
    }
}
