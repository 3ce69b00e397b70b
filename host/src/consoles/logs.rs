//! The files that get the bytes of consoles, unchanged.

use anyhow::{Context, Result};
use hostlink::guests::CONSOLES;
use hostlink::name::Name;
use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io::Write;
use std::path::{Path, PathBuf};

/// The logs of a machine's guests.
#[derive(Debug)]
pub(crate) struct Logs {
    /// For guests that no file names.
    directory: PathBuf,
    /// The first console's.
    paths: BTreeMap<Name, PathBuf>,
    open: BTreeMap<(Name, usize), Option<File>>,
}

impl Logs {
    /// Creates the logs of these guests' first consoles, empty ones, and their directories. Other
    /// logs are created when they are needed.
    pub(crate) fn create(directory: &Path, guests: impl Iterator<Item = (Name, PathBuf)>) -> Result<Self> {
        fs::create_dir_all(directory).with_context(|| format!("cannot make {}", directory.display()))?;
        let mut logs =
            Self { directory: directory.to_owned(), paths: guests.collect(), open: BTreeMap::new() };
        for (name, path) in &logs.paths {
            logs.open.insert((*name, 0), Some(create(path)?));
        }
        Ok(logs)
    }

    /// The log of a console. The second console's is beside the first one's, with `.1` in its name.
    fn path(&self, name: Name, port: usize) -> PathBuf {
        let usual = || self.directory.join(format!("{name}.log"));
        let first = self.paths.get(&name).cloned().unwrap_or_else(usual);
        match port {
            0 => first,
            port => first.with_extension(format!("{port}.log")),
        }
    }

    /// Appends bytes to a console's log. A log that cannot be written is given up, with a message:
    /// the machine runs on.
    pub(super) fn append(&mut self, name: Name, port: usize, bytes: &[u8]) {
        debug_assert!(port < CONSOLES);
        let path = self.path(name, port);
        let file = self.open.entry((name, port)).or_insert_with(|| create(&path).map_err(complain).ok());
        if let Some(open) = file
            && let Err(error) = open.write_all(bytes)
        {
            complain(anyhow::Error::new(error).context(format!("cannot write {}", path.display())));
            *file = None;
        }
    }
}

fn complain(error: anyhow::Error) -> anyhow::Error {
    eprintln!("quell: {error:#}; this console is not logged from now on");
    error
}

fn create(path: &Path) -> Result<File> {
    let make = || -> std::io::Result<File> {
        if let Some(directory) = path.parent() {
            fs::create_dir_all(directory)?;
        }
        File::create(path)
    };
    make().with_context(|| format!("cannot write {}", path.display()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_console_has_a_log_of_its_own() {
        let directory = tempfile::tempdir().expect("makes");
        let (web, db) = (Name::parse("web").expect("is one"), Name::parse("db").expect("is one"));
        let own = directory.path().join("x/web-console.log");
        let read = |path: &Path| fs::read(path).expect("is there");
        let logs = directory.path().join("logs");
        fs::create_dir(directory.path().join("x")).expect("makes");
        fs::write(&own, "of an earlier run").expect("writes");
        let mut all = Logs::create(&logs, [(web, own.clone())].into_iter()).expect("creates");
        assert_eq!(read(&own), b"");
        all.append(web, 0, b"a\r\n");
        all.append(web, 0, b"\xff");
        all.append(web, 1, b"{}\n");
        all.append(db, 0, b"later");
        assert_eq!(read(&own), b"a\r\n\xff");
        assert_eq!(read(&directory.path().join("x/web-console.1.log")), b"{}\n");
        assert_eq!(read(&logs.join("db.log")), b"later");
    }

    #[test]
    fn a_log_that_cannot_be_written_is_an_error_before_the_start_and_none_later() {
        let directory = tempfile::tempdir().expect("makes");
        let (path, web) = (directory.path(), Name::parse("web").expect("is one"));
        let error = Logs::create(path, [(web, path.to_owned())].into_iter()).expect_err("is a directory");
        assert!(format!("{error:#}").starts_with("cannot write "), "{error:#}");
        fs::create_dir(path.join("web.log")).expect("makes");
        let mut logs = Logs::create(path, std::iter::empty()).expect("creates");
        logs.append(web, 0, b"a");
        logs.append(web, 0, b"b");
    }
}
