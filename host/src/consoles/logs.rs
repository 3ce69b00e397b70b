//! The files that get the bytes of consoles, unchanged.

use crate::machine::log_file::{LogFile, Sink};
use crate::prelude::*;
use hostlink::guests::CONSOLES;

/// The log of a console, beside that of the first one: the second's has `.1` in its name.
pub(crate) fn path(first: &Path, port: usize) -> PathBuf {
    if port == 0 {
        return first.to_owned();
    }
    let is_log = first.extension().is_some_and(|extension| extension == "log");
    let stem = if is_log { first.with_extension("") } else { first.to_owned() };
    stem.with_added_extension(format!("{port}.log"))
}

/// The logs of a machine's guests. Each is written whatever becomes of the others.
#[derive(Debug)]
pub(crate) struct Logs {
    /// For guests that no file names.
    directory: PathBuf,
    paths: BTreeMap<Name, PathBuf>,
    /// Those that have begun, or why they could not.
    open: BTreeMap<(Name, usize), Result<LogFile>>,
}

impl Logs {
    /// Creates the logs of these guests' first consoles, empty ones, and their directories. Other
    /// logs are created when they are needed.
    pub(crate) fn create(directory: &Path, guests: impl Iterator<Item = (Name, PathBuf)>) -> Result<Self> {
        fs::create_dir_all(directory).with_context(|| format!("cannot make {}", directory.display()))?;
        let mut logs =
            Self { directory: directory.to_owned(), paths: guests.collect(), open: BTreeMap::new() };
        for (name, path) in &logs.paths {
            logs.open.insert((*name, 0), Ok(LogFile::create(path)?));
        }
        Ok(logs)
    }

    fn path(&self, name: Name, port: usize) -> PathBuf {
        let usual = || self.directory.join(format!("{name}.log"));
        path(&self.paths.get(&name).cloned().unwrap_or_else(usual), port)
    }

    pub(super) fn append(&mut self, name: Name, port: usize, bytes: &[u8]) {
        debug_assert!(port < CONSOLES);
        let path = self.path(name, port);
        let complain = |error: &_| eprintln!("quell: {error:#}; this console is not logged");
        let begin = || LogFile::create(&path).inspect_err(complain);
        if let Ok(log) = self.open.entry((name, port)).or_insert_with(begin) {
            log.put(bytes);
        }
    }

    pub(super) fn failures(&self) -> impl Iterator<Item = String> {
        self.open.values().filter_map(|log| match log {
            Ok(log) => log.failure(),
            Err(error) => Some(format!("{error:#}")),
        })
    }
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
        assert_eq!(logs.failures().count(), 1);
    }

    #[test]
    fn u51_a_log_that_cannot_be_written_leaves_the_others_alone() {
        let directory = tempfile::tempdir().expect("makes");
        let [web, db] = ["web", "db"].map(|name| Name::parse(name).expect("is one"));
        let log = directory.path().join("db.log");
        let paths = [(web, "/dev/full".into()), (db, log.clone())];
        let mut logs = Logs::create(directory.path(), paths.into_iter()).expect("creates");
        for _ in 0..3 {
            logs.append(web, 0, b"is lost");
            logs.append(db, 0, b"x");
        }
        assert_eq!(fs::read(log).expect("is there"), b"xxx");
        let failures: Vec<_> = logs.failures().collect();
        assert!(matches!(&failures[..], [only] if only.starts_with("/dev/full: ")), "{failures:?}");
    }

    #[test]
    fn u51_the_second_log_has_the_whole_name_of_the_first() {
        let second = |first: &str| path(Path::new(first), 1);
        assert_eq!(second("l/web.log"), Path::new("l/web.1.log"));
        assert_eq!(second("l/web"), Path::new("l/web.1.log"));
        assert_eq!(second("web.a"), Path::new("web.a.1.log"));
        assert_eq!(path(Path::new("web.a"), 0), Path::new("web.a"));
    }
}
