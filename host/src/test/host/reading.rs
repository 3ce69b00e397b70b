//! What cargo and test programs print.

use crate::test::Tally;

/// Lines of output that are shown after a failure.
const DETAIL_LINES: usize = 60;
/// Lines of a failed test's message that are shown, and characters of each.
const MESSAGE_LINES: usize = 20;
const MESSAGE_WIDTH: usize = 1000;

#[derive(Default)]
pub(super) struct Reading {
    pub(super) tally: Tally,
    /// Test binaries that have begun without a result: at the end, those that crashed.
    pub(super) unfinished: usize,
    lines: Vec<String>,
}

impl Reading {
    /// Processes one line. The test harness prints two for each binary: `running 13 tests`, and
    /// `test result: ok. 12 passed; 0 failed; 1 ignored; …`.
    pub(super) fn line(&mut self, line: String) {
        let begun = line.strip_prefix("running ").and_then(|line| line.split_once(" test"));
        if begun.is_some_and(|(count, rest)| count.parse::<usize>().is_ok() && matches!(rest, "" | "s")) {
            self.unfinished += 1;
        } else if let Some(counts) = line.strip_prefix("test result: ") {
            let count = |word: &str| {
                let mut words = counts.split([' ', ';', '.']).filter(|part| !part.is_empty()).peekable();
                let mut number = 0;
                while let Some(part) = words.next() {
                    if words.peek() == Some(&word) {
                        number = part.parse().unwrap_or(0);
                    }
                }
                number
            };
            self.unfinished = self.unfinished.saturating_sub(1);
            // One that is ignored has shown nothing.
            let failed = count("failed") + count("ignored");
            self.tally.add(Tally { passed: count("passed"), failed, ..Tally::default() });
        }
        self.lines.push(line);
    }

    /// The tests that passed so far, including the current binary.
    pub(super) fn passed_so_far(&self) -> usize {
        self.lines.iter().filter(|line| line.starts_with("test ") && line.ends_with(" ... ok")).count()
    }

    /// The output to show after a failure: of tests that failed all names and messages, and what
    /// cargo says of its programs. Without any, from the first error on, else the end.
    pub(super) fn detail(&self) -> String {
        let lines = || self.lines.iter().map(String::as_str);
        let failures = failures(lines());
        if !failures.is_empty() {
            let names = failures.iter().map(|failure| format!("FAILED {}", failure.name));
            let messages = failures.iter().flat_map(Failure::shown);
            let is_cargos = |line: &&str| line.starts_with("error: ") || line.contains("process did");
            let said: Vec<_> = lines().filter(is_cargos).map(str::to_owned).collect();
            let said = said[said.len().saturating_sub(DETAIL_LINES)..].iter().cloned();
            return names.chain(messages).chain(said).collect::<Vec<_>>().join("\n");
        }
        let shown: Vec<&str> = lines().filter(|line| !line.ends_with(" ... ok")).collect();
        let goes_on = |line: &str| {
            let name = line.strip_prefix("test ")?.strip_suffix(" has been running for over 60 seconds")?;
            let is_over = lines().any(|line| line == format!("test {name} ... ok"));
            (!is_over).then(|| format!("NO END {name}"))
        };
        let endless: Vec<_> = shown.iter().filter_map(|line| goes_on(line)).collect();
        let first = shown.iter().position(|line| line.starts_with("error"));
        let start = first.unwrap_or_else(|| shown.len().saturating_sub(DETAIL_LINES));
        let said = shown[start..].iter().take(DETAIL_LINES).map(|line| (*line).to_owned());
        endless.into_iter().chain(said).collect::<Vec<_>>().join("\n")
    }
}

struct Failure<'t> {
    name: &'t str,
    printed: Vec<&'t str>,
}

impl Failure<'_> {
    /// Its message: from where it panicked on, without backtraces.
    fn shown(&self) -> Vec<String> {
        let mut is_backtrace = false;
        let lines = self.printed.iter().filter(|line| {
            is_backtrace = **line == "stack backtrace:" || is_backtrace && line.starts_with(' ');
            !is_backtrace && !line.is_empty() && !line.starts_with("note: ")
        });
        let lines: Vec<&str> = lines.copied().collect();
        let first = lines.iter().position(|line| line.contains(" panicked at ")).unwrap_or(0);
        let message = lines[first..].iter().take(MESSAGE_LINES);
        let cut = |line: &&str| line.chars().take(MESSAGE_WIDTH).collect();
        std::iter::once(format!("---- {} ----", self.name)).chain(message.map(cut)).collect()
    }
}

/// The tests that failed. Each has a line `test NAME ... FAILED` when it is over, also if its
/// program crashes later; when all are over a heading `---- NAME stdout ----` is above what it
/// printed. The line may have more after the name, such as ` - should panic`.
fn failures<'t>(lines: impl Iterator<Item = &'t str>) -> Vec<Failure<'t>> {
    let mut failures: Vec<Failure<'_>> = Vec::new();
    let mut current = None;
    for line in lines {
        let over = line.strip_prefix("test ").and_then(|line| line.strip_suffix(" ... FAILED"));
        let heading = line.strip_prefix("---- ").and_then(|line| line.strip_suffix(" stdout ----"));
        if let Some(name) = over {
            failures.push(Failure { name, printed: Vec::new() });
        } else if let Some(name) = heading {
            let is_it = |failure: &Failure<'_>| {
                let rest = failure.name.strip_prefix(name);
                failure.printed.is_empty()
                    && rest.is_some_and(|rest| rest.is_empty() || rest.starts_with(" - "))
            };
            current = failures.iter().position(is_it);
        } else if line == "failures:" || line.starts_with("test result: ") {
            current = None;
        } else if let Some(at) = current {
            failures[at].printed.push(line);
        }
    }
    failures
}
