//! A log in a file. A guest may write to it for as long as it runs, so it has a longest size; and
//! the disk may be full for a while, which is no reason to give it up. And what is shown to the
//! user as it comes.

use crate::prelude::*;
use rustix::fs::OFlags;
use std::fs::{File, OpenOptions};
use std::io::{ErrorKind, Write};
use std::os::unix::fs::OpenOptionsExt;

/// The longest log. What is older is in a second file, which is as long at most.
const BYTES_MAX: u64 = 16 << 20;

/// The path of the older part of the log at `path`.
pub(crate) fn older(path: &Path) -> PathBuf {
    path.with_added_extension("old")
}

/// Where bytes are written. The machine goes on whether they can be or not.
pub(crate) trait Sink: Send {
    fn put(&mut self, bytes: &[u8]);
    fn failure(&self) -> Option<String>;
}

#[derive(Debug)]
pub(crate) struct LogFile {
    /// Its path: as it was given, for messages, and without links.
    path: PathBuf,
    plain: PathBuf,
    file: File,
    /// Bytes of the file; `None` if it is a device or a pipe, which has no size.
    bytes: Option<u64>,
    bytes_max: u64,
    /// Bytes that could not be written since the last that could.
    lost: u64,
    failure: Option<io::Error>,
}

impl LogFile {
    pub(crate) fn create(path: &Path) -> Result<Self> {
        let make = || -> io::Result<Self> {
            if let Some(directory) = path.parent() {
                fs::create_dir_all(directory)?;
            }
            let file = open(path)?;
            let (plain, is_file) = (fs::canonicalize(path), file.metadata()?.is_file());
            Ok(Self {
                path: path.to_owned(),
                bytes: (is_file && plain.is_ok()).then_some(0),
                plain: plain.unwrap_or_default(),
                file,
                bytes_max: BYTES_MAX,
                lost: 0,
                failure: None,
            })
        };
        make().with_context(|| format!("cannot write {}", path.display()))
    }

    fn write(&mut self, rest: &mut &[u8]) -> io::Result<()> {
        while !rest.is_empty() {
            if self.bytes.is_some_and(|bytes| bytes >= self.bytes_max) {
                self.turn_over()?;
            }
            if self.lost != 0 {
                let gap = format!("\n({} bytes before this could not be written)\n", self.lost);
                // As a whole or not at all, on all but the last block of a disk.
                let count = self.file.write(gap.as_bytes())?;
                self.count(count);
                self.lost = 0;
            }
            let room = self.bytes.map_or(u64::MAX, |bytes| self.bytes_max - bytes);
            let part = rest.len().min(usize::try_from(room).unwrap_or(usize::MAX)).max(1);
            match self.file.write(&rest[..part]) {
                Ok(0) => return Err(io::ErrorKind::WriteZero.into()),
                Ok(count) => {
                    self.count(count);
                    *rest = &rest[count..];
                }
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }

    fn count(&mut self, count: usize) {
        // The note about a gap may exceed the size.
        self.bytes = self.bytes.map(|bytes| (bytes + count as u64).min(self.bytes_max));
    }

    fn turn_over(&mut self) -> io::Result<()> {
        match fs::rename(&self.plain, older(&self.plain)) {
            // Its user has taken it away.
            Err(error) if error.kind() == io::ErrorKind::NotFound => {}
            other => other?,
        }
        self.file = open(&self.plain)?;
        self.bytes = Some(0);
        Ok(())
    }
}

impl Sink for LogFile {
    /// If bytes are lost, the log says so as soon as it can be written again.
    fn put(&mut self, bytes: &[u8]) {
        let mut rest = bytes;
        if let Err(error) = self.write(&mut rest) {
            self.lost += rest.len() as u64;
            if self.failure.is_none() {
                eprintln!("quell: cannot write {}: {error}", self.path.display());
                self.failure = Some(error);
            }
        }
    }

    fn failure(&self) -> Option<String> {
        Some(format!("{}: {}", self.path.display(), self.failure.as_ref()?))
    }
}

/// Opens a file so that nobody ever waits for it: a pipe that is full takes no more.
fn open(path: &Path) -> io::Result<File> {
    let flags = OFlags::NONBLOCK.bits().cast_signed();
    OpenOptions::new().write(true).create(true).truncate(true).custom_flags(flags).open(path)
}

/// A stream to the user.
pub(crate) struct Output<W> {
    sink: W,
    failure: Option<io::Error>,
}

impl<W: Write> Output<W> {
    pub(crate) const fn new(sink: W) -> Self {
        Self { sink, failure: None }
    }

    /// Writes bytes, which may not be seen before they are flushed.
    pub(crate) fn show(&mut self, bytes: &[u8]) {
        let written = self.sink.write_all(bytes);
        self.note(written);
    }

    pub(crate) fn flush(&mut self) {
        let flushed = self.sink.flush();
        self.note(flushed);
    }

    fn note(&mut self, result: io::Result<()>) {
        // A reader that has left, as `head` does, has seen what it wanted.
        if let Err(error) = result
            && error.kind() != ErrorKind::BrokenPipe
        {
            self.failure.get_or_insert(error);
        }
    }
}

impl<W: Write + Send> Sink for Output<W> {
    fn put(&mut self, bytes: &[u8]) {
        self.show(bytes);
        self.flush();
    }

    fn failure(&self) -> Option<String> {
        Some(format!("standard output: {}", self.failure.as_ref()?))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs::OpenOptions;

    fn read(path: &Path) -> String {
        fs::read_to_string(path).expect("is there")
    }

    #[test]
    fn u51_a_log_is_never_longer_than_two_files_and_ends_with_what_came_last() {
        let directory = tempfile::tempdir().expect("makes");
        let path = directory.path().join("x/guest.log");
        let mut log = LogFile::create(&path).expect("creates");
        log.bytes_max = 100;
        let mut all = String::new();
        for number in 0..60_usize {
            let text = format!("{number:0>width$} ", width = 1 + number * 4);
            log.put(text.as_bytes());
            all += &text;
            let kept = fs::read_to_string(older(&path)).unwrap_or_default() + &read(&path);
            assert!(kept.len() <= 200 && all.ends_with(&kept), "{kept}");
            assert!(kept.len() > 100 || kept == all, "{kept}");
        }
        assert_eq!(fs::read_dir(directory.path().join("x")).expect("reads").count(), 2);
        assert!(log.failure().is_none());
    }

    #[test]
    fn u51_a_log_that_is_taken_away_or_a_link_is_turned_over_where_it_is() {
        let directory = tempfile::tempdir().expect("makes");
        let [path, link] = ["guest.log", "link"].map(|name| directory.path().join(name));
        std::os::unix::fs::symlink(&path, &link).expect("makes");
        let mut log = LogFile::create(&link).expect("creates");
        log.bytes_max = 4;
        log.put(b"abcdef");
        assert_eq!((read(&link), read(&older(&path))), ("ef".to_owned(), "abcd".to_owned()));
        assert!(fs::symlink_metadata(&link).expect("is there").is_symlink());
        fs::remove_file(&path).expect("removes");
        log.put(b"ghijk");
        assert_eq!(read(&path), "ijk");
    }

    #[test]
    fn u51_a_log_goes_on_when_it_can_be_written_again_and_says_what_is_missing() {
        let directory = tempfile::tempdir().expect("makes");
        let path = directory.path().join("guest.log");
        let mut log = LogFile::create(&path).expect("creates");
        log.put(b"before");
        let full = open(Path::new("/dev/full")).expect("opens");
        let file = std::mem::replace(&mut log.file, full);
        log.put(b"12345");
        log.put(b"678");
        assert!(log.failure().expect("has one").contains("No space left"));
        log.file = file;
        log.put(b"after");
        log.put(b" that");
        assert_eq!(read(&path), "before\n(8 bytes before this could not be written)\nafter that");
        assert!(log.failure().is_some(), "the log has a gap");
    }

    #[test]
    fn u51_nobody_waits_for_a_pipe_that_is_not_read() {
        let (source, sink) = io::pipe().expect("makes");
        let path = format!("/proc/self/fd/{}", std::os::fd::AsRawFd::as_raw_fd(&sink));
        let mut log = LogFile::create(Path::new(&path)).expect("opens");
        log.put(&vec![b'x'; 1 << 20]);
        assert!(log.lost > 0 && log.failure().is_some());
        drop(source);
    }

    #[test]
    fn u51_output_that_is_lost_is_known_and_a_reader_that_has_left_is_no_loss() {
        let full = OpenOptions::new().write(true).open("/dev/full").expect("opens");
        let mut output = Output::new(full);
        assert!(output.failure().is_none());
        output.put(b"text");
        assert!(output.failure().expect("is lost").contains("No space left"));
        let (source, sink) = io::pipe().expect("makes");
        drop(source);
        let mut output = Output::new(sink);
        output.put(b"text");
        assert!(output.failure().is_none());
    }
}
