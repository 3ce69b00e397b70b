//! Tables of verdicts: a run that one accepts, and in a line each a change with which it must not.

use super::{End, OFF, Outcome};
use crate::machine::bochs::Messages;
use crate::prelude::*;
use std::os::unix::process::ExitStatusExt;
use std::process::ExitStatus;

impl Outcome {
    /// A run of which these lines are known.
    pub(crate) fn of(lines: &str) -> Self {
        let mut outcome = Self {
            end: OFF,
            wall: Duration::ZERO,
            console: String::new(),
            log: String::new(),
            emulator: "QEMU",
            qemu_messages: Messages::default(),
            unwritten: Vec::new(),
            reports: Vec::new(),
            reports_dropped: 0,
            counters: None,
        };
        lines.lines().map(str::trim).filter(|line| !line.is_empty()).for_each(|line| outcome.change(line));
        outcome
    }

    /// `+KEY=VALUE …` is one report more, `-N` one less, `N.KEY=VALUE` another value in one; `end`,
    /// `log`, `console`, `lost`, `dropped` and `count` change what has that name.
    fn change(&mut self, line: &str) {
        let (what, rest) = line.split_once(' ').unwrap_or((line, ""));
        let value = |text: &str| serde_json::from_str(text).unwrap_or_else(|_| text.into());
        let pair = |text: &str| text.split_once('=').map(|(key, text)| (key.to_owned(), value(text)));
        if let Some(report) = line.strip_prefix('+') {
            self.reports.push(report.split(' ').map(|text| pair(text).expect(line)).collect());
        } else if let Some(index) = line.strip_prefix('-') {
            self.reports.remove(index.parse().expect(line));
        } else if let Some((index, field)) =
            line.split_once('.').filter(|(index, _)| index.parse::<u8>().is_ok())
        {
            let (key, value) = pair(field).expect(line);
            self.reports[index.parse::<usize>().expect(line)][key] = value;
        } else {
            match what {
                "end" => self.end = end(rest),
                "log" => self.log = rest.to_owned(),
                "console" => self.console = rest.to_owned(),
                "lost" => self.unwritten.push(rest.to_owned()),
                "dropped" => self.reports_dropped = rest.parse().expect(line),
                "count" if rest.is_empty() => self.counters = None,
                "count" => self.counters = Some(counted(rest)),
                _ => panic!("nothing is to be changed by '{line}'"),
            }
        }
    }
}

fn end(name: &str) -> End {
    let codes = [ExitCode::Panic, ExitCode::GuestReset, ExitCode::GuestOutOfTables, ExitCode::BadConfig];
    match name {
        "off" => OFF,
        "bare" => End::PowerOff,
        "late" => End::TimedOut,
        "stopped" => End::Stopped,
        "fault" => End::TripleFault,
        "failed" => End::Failed(ExitStatus::from_raw(1 << 8)),
        _ => match name.strip_prefix("signal ") {
            Some(signal) => End::Interrupted(signal.parse().expect(name)),
            None => End::Hypervisor(codes.into_iter().find(|code| format!("{code:?}") == name).expect(name)),
        },
    }
}

fn counted(pairs: &str) -> Snapshot {
    let counts = pairs.split(' ').filter_map(|pair| pair.split_once('=')).map(|(name, count)| {
        let counter = Counter::ALL.into_iter().find(|counter| counter.name() == name).expect(name);
        (counter, count.parse().expect(name))
    });
    Snapshot::of_counts(&[&counts.collect::<Vec<_>>()])
}

/// Checks that a verdict accepts a run, and refuses each that is `CHANGE => WORDS` in these words.
pub(crate) fn refuses(judged: impl Fn(&Outcome) -> Result<()>, right: &str, wrong: &str) {
    judged(&Outcome::of(right)).expect("is right");
    for line in wrong.lines().map(str::trim).filter(|line| !line.is_empty()) {
        let (change, words) = line.split_once(" => ").expect(line);
        let mut outcome = Outcome::of(right);
        outcome.change(change);
        let why = format!("{:#}", judged(&outcome).expect_err(line));
        assert!(why.contains(words), "{line}: {why}");
    }
}
