//! The text of a machine file, and messages about it.

use super::GuestPlan;
use crate::prelude::*;

const BYTES_MAX: u64 = 1 << 20;

#[derive(Clone, Debug)]
pub(crate) struct Source {
    path: PathBuf,
    text: String,
}

/// A value, and the line of the file that gives it, from 1.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct At<T> {
    pub(crate) value: T,
    pub(crate) line: usize,
}

impl Source {
    pub(super) fn read(path: &Path) -> Result<Self> {
        let shown = path.display();
        let data = fs::metadata(path).with_context(|| format!("there is no machine file {shown}"))?;
        ensure!(data.is_file(), "{shown} is not a file: name a machine file, such as examples/two.toml");
        ensure!(data.len() <= BYTES_MAX, "{shown} is no machine file: it has {} bytes", data.len());
        let text = fs::read_to_string(path).with_context(|| format!("cannot read {shown}"))?;
        Ok(Self { path: path.to_owned(), text })
    }

    /// What options say, as the text of a machine file with a key in each line.
    pub(super) fn of_options(text: String) -> Self {
        Self { path: PathBuf::new(), text }
    }

    /// Whether options say it: messages are about them, not about lines.
    pub(super) fn is_of_options(&self) -> bool {
        self.path.as_os_str().is_empty()
    }

    #[cfg(test)]
    pub(super) fn made_up(path: &Path, text: &str) -> Self {
        Self { path: path.to_owned(), text: text.to_owned() }
    }

    /// Its path, as it was given.
    pub(crate) fn path(&self) -> &Path {
        &self.path
    }

    pub(super) fn text(&self) -> &str {
        &self.text
    }

    /// A path in the file, which is relative to the file's directory.
    pub(super) fn resolve(&self, path: &str) -> PathBuf {
        self.path.parent().unwrap_or(Path::new("")).join(path)
    }

    /// The line with this part of the text.
    pub(super) fn line(&self, span: &Range<usize>) -> usize {
        let before = self.text.as_bytes().get(..span.start).unwrap_or(self.text.as_bytes());
        1 + before.iter().filter(|byte| **byte == b'\n').count()
    }

    pub(crate) fn error(&self, line: usize, message: impl std::fmt::Display) -> Error {
        if self.is_of_options() {
            return anyhow!("{message}");
        }
        anyhow!("{}:{line}: {message}", self.path.display())
    }

    /// What is wrong with a guest, with its line and name.
    pub(crate) fn about(&self, guest: &GuestPlan, error: Error) -> Error {
        if self.is_of_options() {
            return error;
        }
        self.error(guest.line, format!("{}: {error:#}", guest.name()))
    }
}
