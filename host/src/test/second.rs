//! Second tries, of which few are allowed.
//!
//! QEMU's multi-threaded emulation loses an interrupt now and then (docs/qemu.md). A machine that
//! hangs for this reason proves nothing about Quell. A row that hangs repeatedly does, and so do
//! many rows that hang. So one row of a run may be tried once more, and not the same one in two
//! consecutive runs.

use crate::prelude::*;

/// The rows that had a second try in this run, and in the previous one.
pub(super) struct SecondTries {
    file: PathBuf,
    before: String,
    now: Option<String>,
}

impl SecondTries {
    /// Reads the previous run's record from the target directory, which then has this run's.
    pub(super) fn known() -> Self {
        Self::of(workspace::target_dir("second-try"))
    }

    fn of(file: PathBuf) -> Self {
        let before = fs::read_to_string(&file).unwrap_or_default();
        let _there_may_be_none = fs::remove_file(&file);
        Self { file, before, now: None }
    }

    /// Allows a second try of a row, or returns why not.
    pub(super) fn allow(&mut self, row: &str) -> Result<()> {
        if let Some(other) = &self.now {
            bail!("the machine hung, and {other} has had the second try of this run");
        }
        if self.before == row {
            bail!("the machine hung, as it did in the run before");
        }
        self.now = Some(row.to_owned());
        // If it cannot be written, the next run is more lenient.
        let _ = fs::write(&self.file, row);
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_row_of_a_run_may_be_tried_again_and_not_the_same_twice() {
        let directory = tempfile::tempdir().unwrap();
        let file = directory.path().join("second-try");
        let mut first = SecondTries::of(file.clone());
        assert!(first.allow("a").is_ok());
        let why = first.allow("b").unwrap_err().to_string();
        assert!(why.contains("a has had"), "{why}");
        let mut second = SecondTries::of(file.clone());
        let why = second.allow("a").unwrap_err().to_string();
        assert!(why.contains("in the run before"), "{why}");
        assert!(second.allow("b").is_ok());
        assert!(SecondTries::of(file.clone()).allow("a").is_ok());
        let _a_run_without = SecondTries::of(file.clone());
        assert!(SecondTries::of(file).allow("a").is_ok());
    }
}
