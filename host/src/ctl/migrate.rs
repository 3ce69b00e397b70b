//! `quell ctl migrate`: a cancelled migration.

use super::fields;
use crate::machine::control::{Control, read};
use crate::prelude::*;
use hostlink::ctl::record::{Record, Round, Undone};
use hostlink::ctl::{LogWay, Request};
use serde::Serializer;

/// A round that copies each page of a large slot reports nothing before its end.
const SILENCE_MAX: Duration = Duration::from_secs(300);

#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub(crate) struct Migrated {
    /// Of each round; the first copies all pages.
    #[serde(serialize_with = "write_all")]
    rounds: Vec<Round>,
    #[serde(serialize_with = "write")]
    undone: Undone,
}

impl Migrated {
    /// The hypervisor waits for `copied` after each round; after the last nothing is undone yet.
    pub(crate) fn ask(
        control: Control,
        slot: u16,
        way: LogWay,
        rounds: u16,
        mut copied: impl FnMut(u32) -> Result<()>,
    ) -> Result<Self> {
        let request = Request::Migrate { slot, way, rounds };
        let answer = control
            .with_patience(SILENCE_MAX)
            .ask_each(&request, |record| Round::parse(record).map_or(Ok(()), |round| copied(round.round)))?;
        Self::read(&answer)
    }

    fn read(answer: &[String]) -> Result<Self> {
        let (undone, rounds) = answer.split_last().context("the hypervisor's answer is empty")?;
        let undone: Undone = read(undone)?;
        ensure!(undone.hz > 0, "the hypervisor does not say how the migration was undone: {answer:?}");
        let rounds: Vec<Round> = rounds.iter().map(|round| read(round)).collect::<Result<_>>()?;
        for (number, round) in (0..).zip(&rounds) {
            ensure!(round.round == number, "round {number} is missing: {answer:?}");
        }
        Ok(Self { rounds, undone })
    }

    /// The seconds of all copying steps, and of the longest one.
    pub(crate) fn copying(&self) -> [f64; 2] {
        self.rounds
            .iter()
            .map(|round| self.seconds(round.ticks, round.longest))
            .fold([0.0, 0.0], |[sum, longest], round| [sum + round[0], round[1].max(longest)])
    }

    /// The same for undoing the migration.
    pub(crate) fn undoing(&self) -> [f64; 2] {
        self.seconds(self.undone.ticks, self.undone.longest)
    }

    pub(crate) fn pages(&self) -> u64 {
        self.rounds.iter().map(|round| round.pages).sum()
    }

    /// The seconds of all steps, and of the longest one.
    #[expect(clippy::cast_precision_loss, reason = "a duration that is shown")]
    fn seconds(&self, ticks: u64, longest: u64) -> [f64; 2] {
        [ticks, longest].map(|ticks| ticks as f64 / self.undone.hz as f64)
    }

    pub(crate) fn table(&self) -> String {
        let row = |name: String, pages: String, steps: u32, [all, longest]: [f64; 2]| {
            let (all, longest) = (format!("{:.1} ms", all * 1e3), format!("{:.0} µs", longest * 1e6));
            [name, pages, steps.to_string(), all, longest]
        };
        let rounds = self.rounds.iter().map(|Round { round, pages, steps, ticks, longest }| {
            let name = if *round == 0 { "all pages".to_owned() } else { format!("round {round}") };
            row(name, pages.to_string(), *steps, self.seconds(*ticks, *longest))
        });
        let undone = row("undone".to_owned(), String::new(), self.undone.steps, self.undoing());
        let header = ["", "pages copied", "steps", "time", "longest step"];
        table(header, rounds.chain([undone])).to_string()
    }
}

fn write<S: Serializer>(record: &Undone, serializer: S) -> Result<S::Ok, S::Error> {
    fields(record).serialize(serializer)
}

fn write_all<S: Serializer>(records: &[Round], serializer: S) -> Result<S::Ok, S::Error> {
    serializer.collect_seq(records.iter().map(fields))
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
