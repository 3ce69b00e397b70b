//! The process that starts tasks and checks their objects.

use crate::stage::{self, Header, Stage};
use crate::{ended, fork};
use rustix::process::{WaitOptions, wait};
use std::fs;
use std::io;
use std::path::{Path, PathBuf};

/// A directory for this run, removed with its files when the value is dropped.
pub(crate) struct Directory(PathBuf);

impl Directory {
    /// Makes it, named after a process.
    pub(crate) fn create(parent: &Path, process: u32) -> io::Result<Self> {
        let path = parent.join(format!("mixed-{process}"));
        let made = fs::create_dir(&path);
        made.map_err(|error| io::Error::new(error.kind(), format!("{}: {error}", path.display())))?;
        Ok(Self(path))
    }

    pub(crate) fn path(&self) -> &Path {
        &self.0
    }
}

impl Drop for Directory {
    fn drop(&mut self) {
        // Nothing depends on the removal: the files are in the guest's memory.
        let _ = fs::remove_dir_all(&self.0);
    }
}

/// Runs all tasks, at most `jobs` at a time. If one fails, those in progress have ended, too.
pub(crate) fn build(directory: &Path, jobs: u64, tasks: u64) -> io::Result<()> {
    let (mut started, mut under_way) = (0, 0);
    let mut result = Ok(());
    loop {
        while result.is_ok() && started < tasks && under_way < jobs {
            match fork(Stage::Drive, directory, started) {
                Ok(_) => under_way += 1,
                Err(error) => result = Err(error),
            }
            started += 1;
        }
        if under_way == 0 {
            return result;
        }
        // Waits for the next process to end.
        if let Some((_, status)) = wait(WaitOptions::empty())? {
            under_way -= 1;
            result = result.and(ended("a task", status));
        }
    }
}

/// The first task with a wrong object, and what is wrong with it.
pub(crate) fn wrong_object(
    directory: &Path,
    header: &Header,
    tasks: u64,
) -> io::Result<Option<(u64, String)>> {
    let text = header.text();
    for task in 0..tasks {
        let found = fs::read(stage::object(directory, task))?;
        let expected = stage::assemble(&stage::compile(&text, &stage::source(task)));
        if let Some(at) = (0..found.len().max(expected.len())).find(|&at| found.get(at) != expected.get(at)) {
            let what =
                format!("the object's byte {at} is {:?} instead of {:?}", found.get(at), expected.get(at));
            return Ok(Some((task, what)));
        }
    }
    Ok(None)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_wrong_object_is_found() {
        let directory = Directory::create(&std::env::temp_dir(), u32::MAX).expect("makes");
        let header = Header::create(directory.path()).expect("writes");
        for task in 0..3 {
            stage::write_source(directory.path(), task).expect("writes");
            stage::run(Stage::Compile, directory.path(), task).expect("compiles");
            stage::run(Stage::Assemble, directory.path(), task).expect("assembles");
        }
        let wrong = || wrong_object(directory.path(), &header, 3).expect("reads");
        assert_eq!(wrong(), None);

        let path = stage::object(directory.path(), 1);
        let mut object = fs::read(&path).expect("reads");
        object[9] ^= 1;
        fs::write(&path, &object).expect("writes");
        assert!(wrong().is_some_and(|(task, what)| task == 1 && what.starts_with("the object's byte 9 is")));
        fs::write(&path, &object[..9]).expect("writes");
        assert!(wrong().is_some_and(|(task, what)| task == 1 && what.contains("None")));
        fs::remove_file(path).expect("removes");
        assert!(wrong_object(directory.path(), &header, 3).is_err());
    }
}
