//! Command lines of `--name value` pairs, how a program that has one begins and ends, and its
//! report to the host tool: one JSON object per line.

use serde_json::Value;
use std::fmt::Display;
use std::fs::OpenOptions;
use std::io::{self, Write};
use std::num::NonZero;
use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::mpsc;
use std::time::Duration;
use std::{env, thread};

/// The exit status for wrong data.
pub const WRONG: u8 = 1;
/// For a wrong command line.
const MISUSED: u8 = 2;
/// For a failed operation.
pub const FAILED: u8 = 3;
/// The end of each program's help.
const OF_EACH: &str = "
Also:
  --report F   file for the JSON lines [standard output]
  --settle MS  idle time after `begin` and after `end`, for readers of counters [0]";

/// The number of CPUs that this process may use.
pub fn cpus() -> u64 {
    thread::available_parallelism().map_or(1, NonZero::get) as u64
}

/// An option and its value.
#[derive(Clone, Copy, Debug)]
pub struct Given<'a> {
    /// With its dashes.
    pub name: &'a str,
    /// The word after it.
    pub value: &'a str,
}

impl Given<'_> {
    /// The value as a number from `min` to `max`.
    pub fn number(&self, min: u64, max: u64) -> Result<u64, String> {
        let number = self.value.parse().ok().filter(|n| (min..=max).contains(n));
        number.ok_or_else(|| self.expected(&format!("a number from {min} to {max}")))
    }

    /// The value as a path.
    pub fn path(&self) -> PathBuf {
        self.value.into()
    }

    /// The error for another value than the expected ones.
    pub fn expected(&self, what: &str) -> String {
        format!("{} {}: expected {what}", self.name, self.value)
    }

    /// The error for an unknown name.
    pub fn unknown(&self) -> String {
        format!("{}: unknown", self.name)
    }
}

/// A program: its name, the beginning of its `--help`, its options if it is told nothing, and how
/// it takes another one. Every program also has `--report` and `--settle`.
pub struct Program<O> {
    name: &'static str,
    usage: String,
    options: O,
    take: fn(&mut O, &Given<'_>) -> Result<(), String>,
    check: fn(&mut O) -> Result<(), String>,
}

impl<O> Program<O> {
    /// A program.
    pub fn new(
        name: &'static str,
        usage: impl Into<String>,
        options: O,
        take: fn(&mut O, &Given<'_>) -> Result<(), String>,
    ) -> Self {
        Self { name, usage: usage.into() + "\n" + OF_EACH, options, take, check: |_| Ok(()) }
    }

    /// The same, if `check` accepts all options together.
    pub fn checked(self, check: fn(&mut O) -> Result<(), String>) -> Self {
        Self { check, ..self }
    }

    /// The options in these arguments.
    ///
    /// # Errors
    ///
    /// They are wrong; the message begins with the option's name.
    pub fn parse<'a>(self, args: impl IntoIterator<Item = &'a str>) -> Result<O, String> {
        self.parse_all(args).map(|(options, _)| options)
    }

    fn parse_all<'a>(self, args: impl IntoIterator<Item = &'a str>) -> Result<(O, Channel), String> {
        let (mut options, mut channel, mut args) = (self.options, Channel::default(), args.into_iter());
        while let Some(name) = args.next() {
            let value = args.next().ok_or_else(|| format!("{name}: unknown, or its value is missing"))?;
            let given = Given { name, value };
            match name {
                "--report" => channel.report = Some(given.path()),
                "--settle" => channel.settle = Duration::from_millis(given.number(0, 60_000)?),
                _ => (self.take)(&mut options, &given)?,
            }
        }
        (self.check)(&mut options).map(|()| (options, channel))
    }

    /// Runs the program with this process's arguments. `run` returns whether all data was right.
    pub fn main<E: Display>(self, run: impl FnOnce(&O, &mut Report) -> Result<bool, E>) -> ExitCode {
        let (name, usage) = (self.name, self.usage.clone());
        let args: Vec<String> = env::args().skip(1).collect();
        if args.iter().any(|arg| arg == "--help") {
            println!("{usage}");
            return ExitCode::SUCCESS;
        }
        let (options, channel) = match self.parse_all(args.iter().map(String::as_str)) {
            Ok(parsed) => parsed,
            Err(message) => {
                eprintln!("{name}: {message}\n{usage}");
                return ExitCode::from(MISUSED);
            }
        };
        let done = match channel.open() {
            Ok(mut report) => run(&options, &mut report).map_err(|error| error.to_string()),
            Err(error) => Err(error.to_string()),
        };
        match done {
            Ok(true) => ExitCode::SUCCESS,
            Ok(false) => ExitCode::from(WRONG),
            Err(error) => {
                eprintln!("{name}: {error}");
                ExitCode::from(FAILED)
            }
        }
    }
}

/// Where a program reports to, and how long it is idle after its beginning, and after its end has
/// been reported, for readers of counters.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Channel {
    /// A device or file; standard output without one.
    pub report: Option<PathBuf>,
    /// For none of it, zero.
    pub settle: Duration,
}

impl Channel {
    /// Opens it.
    pub fn open(&self) -> io::Result<Report> {
        let sink: Box<dyn Write + Send> = match &self.report {
            Some(path) => Box::new(OpenOptions::new().append(true).create(true).open(path)?),
            None => Box::new(io::stdout()),
        };
        Ok(Report { sink, settle: self.settle })
    }
}

/// Writes report lines, each with a single write.
pub struct Report {
    sink: Box<dyn Write + Send>,
    settle: Duration,
}

impl Report {
    /// Writes one line.
    pub fn line(&mut self, value: &Value) -> io::Result<()> {
        let mut text = value.to_string();
        text.push('\n');
        self.sink.write_all(text.as_bytes())?;
        self.sink.flush()
    }

    /// Writes the line about the beginning or the end, and is idle.
    pub fn settle(&mut self, value: &Value) -> io::Result<()> {
        self.line(value)?;
        thread::sleep(self.settle);
        Ok(())
    }
}

/// What a program does, and the lines that it reports, for tests.
pub fn reported<R>(run: impl FnOnce(&mut Report) -> R) -> (R, Vec<Value>) {
    let (sink, lines) = mpsc::channel();
    let done = run(&mut Report { sink: Box::new(Lines(sink)), settle: Duration::ZERO });
    (done, lines.iter().map(|line: Vec<u8>| serde_json::from_slice(&line).unwrap_or_default()).collect())
}

/// Passes each write on.
struct Lines(mpsc::Sender<Vec<u8>>);

impl Write for Lines {
    fn write(&mut self, line: &[u8]) -> io::Result<usize> {
        self.0.send(line.to_owned()).map_err(io::Error::other)?;
        Ok(line.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    /// The options of a program that takes any.
    fn parse(args: &[&str]) -> Result<(Vec<String>, Channel), String> {
        let take = |options: &mut Vec<_>, given: &Given<'_>| {
            options.push(format!("{}={}", given.name, given.value));
            Ok(())
        };
        Program::new("some", "", Vec::new(), take).parse_all(args.iter().copied())
    }

    #[test]
    fn a_name_without_value_is_an_error() {
        assert!(parse(&["--a", "1", "--b"]).is_err_and(|message| message.starts_with("--b:")));
        assert_eq!(parse(&["--a", "1"]), Ok((vec!["--a=1".into()], Channel::default())));
        assert_eq!(parse(&[]), Ok((vec![], Channel::default())));
    }

    #[test]
    fn every_program_can_be_told_where_to_report_and_to_be_idle_before() {
        let (others, channel) = parse(&["--report", "f", "--settle", "7"]).expect("parses");
        let expected = Channel { report: Some("f".into()), settle: Duration::from_millis(7) };
        assert_eq!((others, channel), (vec![], expected));
        assert!(parse(&["--settle", "x"]).is_err_and(|message| message.starts_with("--settle x:")));
    }

    #[test]
    fn numbers_are_within_their_limits() {
        let number = |value| Given { name: "--n", value }.number(2, 5);
        for value in ["", "x", "-1", "1", "6", "99999999999999999999"] {
            assert!(number(value).is_err_and(|message| message.contains("2 to 5")), "{value}");
        }
        assert_eq!((number("2"), number("5")), (Ok(2), Ok(5)));
    }

    #[test]
    fn lines_are_appended_whole() {
        let path = std::env::temp_dir().join(format!("quell-report-{}", std::process::id()));
        for done in 1..=2 {
            let channel = Channel { report: Some(path.clone()), settle: Duration::ZERO };
            let mut report = channel.open().expect("opens");
            report.line(&json!({"event": "progress", "done": done})).expect("writes");
        }
        let text = std::fs::read_to_string(&path).expect("reads");
        std::fs::remove_file(&path).expect("removes");
        assert_eq!(text.lines().count(), 2);
        for line in text.lines() {
            assert!(serde_json::from_str::<Value>(line).is_ok(), "{line}");
        }
    }
}
