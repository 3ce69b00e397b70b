//! The report channel to the host tool: one JSON object per line.

use serde_json::Value;
use std::fs::OpenOptions;
use std::io::{self, Write};
use std::path::PathBuf;
use std::sync::mpsc;
use std::thread;
use std::time::Duration;

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
