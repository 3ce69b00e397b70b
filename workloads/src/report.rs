//! The report channel to the host tool: one JSON object per line.

use serde_json::Value;
use std::fs::OpenOptions;
use std::io::{self, Write};
use std::path::Path;

/// Writes report lines, each with a single write.
pub struct Report {
    sink: Box<dyn Write + Send>,
}

impl Report {
    /// Reports to the device or file at `path`, or to standard output without one.
    pub fn open(path: Option<&Path>) -> io::Result<Self> {
        let sink: Box<dyn Write + Send> = match path {
            Some(path) => Box::new(OpenOptions::new().append(true).create(true).open(path)?),
            None => Box::new(io::stdout()),
        };
        Ok(Self { sink })
    }

    /// Writes one line.
    pub fn line(&mut self, value: &Value) -> io::Result<()> {
        let mut text = value.to_string();
        text.push('\n');
        self.sink.write_all(text.as_bytes())?;
        self.sink.flush()
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
            let mut report = Report::open(Some(&path)).expect("opens");
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
