//! The console of a machine's only guest: what it has shown, and what is typed on it. And what QEMU
//! writes into a pipe, kept on a thread of its own.

use super::super::console::{Among, lines_with, read, read_logged, read_split};
use super::super::log_file::Sink;
use super::super::reports::{Dropped, Ring};
use super::{Machine, POLL_PERIOD};
use crate::prelude::*;
use std::io::{Read, Write};
use std::sync::MutexGuard;

impl Machine {
    /// Types on the guest's console, with `Console::Capture` only.
    pub(crate) fn type_text(&mut self, text: &str) -> Result<()> {
        let stdin = self.stdin.as_mut().ok_or_else(|| anyhow!("the console takes no input"))?;
        stdin.write_all(text.as_bytes()).context("cannot type on the guest's console")
    }

    /// Waits until the console, of `Console::Capture`, shows `text` after its first `from` bytes,
    /// for `timeout` of the machine's own time; where it ends. Fails if bytes are not kept.
    pub(crate) fn await_console(&self, text: &str, from: usize, timeout: Duration) -> Result<usize> {
        let mut time = self.own_time();
        while time.passed() < timeout && self.signals.caught().is_none() {
            let console = self.console.kept();
            let shown = console.behind(from).map_err(not_kept)?;
            let found = shown.windows(text.len()).position(|window| window == text.as_bytes());
            if let Some(at) = found {
                return Ok(from + at + text.len());
            }
            drop(console);
            thread::sleep(POLL_PERIOD);
        }
        Err(anyhow!("the guest's console did not show '{text}'"))
    }

    /// The first whole line with `text` after the console's first `from` bytes, and where it ends.
    pub(crate) fn await_line(&self, text: &str, from: usize, timeout: Duration) -> Result<(String, usize)> {
        let found = self.await_console(text, from, timeout)?;
        self.await_console("\n", found, timeout)?;
        let line = self.lines(text, from)?.into_iter().next();
        line.ok_or_else(|| anyhow!("the guest's console shows no line with '{text}'"))
    }

    /// All whole lines with `text` after the first `from` bytes, and where each ends.
    pub(crate) fn lines(&self, text: &str, from: usize) -> Result<Vec<(String, usize)>> {
        let console = self.console.kept();
        Ok(lines_with(text, console.behind(from).map_err(not_kept)?, from))
    }

    pub(crate) fn shown(&self) -> String {
        self.console.kept().shown().replace('\r', "")
    }
}

fn not_kept(dropped: Dropped) -> anyhow::Error {
    anyhow!(
        "the guest's console has shown so much that {} bytes which were to be read are not kept",
        dropped.count
    )
}

/// The end of a text in memory, and all of it somewhere else as well if that is wanted.
pub(super) struct Stream {
    ring: Arc<Mutex<Ring>>,
    also: Option<Arc<Mutex<dyn Sink>>>,
    reader: Option<JoinHandle<()>>,
}

impl Stream {
    /// Begins to keep at least the last `least` bytes, and at most twice as many. Reports are among
    /// them if that is said.
    pub(super) fn keep(
        source: impl Read + Send + 'static,
        least: usize,
        also: Option<Arc<Mutex<dyn Sink>>>,
        among: Option<Among>,
    ) -> Self {
        let ring = Arc::new(Mutex::new(Ring::new(least)));
        let (kept, written) = (Arc::clone(&ring), also.clone());
        let take = move |bytes: &[u8]| {
            kept.lock().unwrap_or_else(PoisonError::into_inner).push(bytes);
            if let Some(also) = &written {
                also.lock().unwrap_or_else(PoisonError::into_inner).put(bytes);
            }
        };
        let reader = thread::spawn(move || match among {
            Some(Among::Text(reports)) => read_split(source, take, &reports),
            Some(Among::Log(reports)) => read_logged(source, take, &reports),
            None => read(source, take),
        });
        Self { ring, also, reader: Some(reader) }
    }

    fn kept(&self) -> MutexGuard<'_, Ring> {
        self.ring.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The end of the text. Call it when QEMU has ended.
    pub(super) fn whole(&mut self) -> Result<String> {
        if let Some(reader) = self.reader.take() {
            reader.join().map_err(|_| anyhow!("a reader of QEMU's output panicked"))?;
        }
        Ok(self.kept().shown())
    }

    pub(super) fn failure(&self) -> Option<String> {
        self.also.as_ref()?.lock().unwrap_or_else(PoisonError::into_inner).failure()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::machine::log_file::LogFile;
    use std::io::Write;

    #[test]
    fn u51_however_much_qemu_writes_its_end_is_kept_and_no_more() {
        let directory = tempfile::tempdir().expect("makes");
        let path = directory.path().join("log");
        let (source, mut sink) = io::pipe().expect("makes");
        let file = LogFile::create(&path).expect("creates");
        let mut stream = Stream::keep(source, 1000, Some(Arc::new(Mutex::new(file))), None);
        for number in 0..100_000 {
            writeln!(sink, "qemu: virtio: bogus descriptor {number}").expect("writes");
        }
        drop(sink);
        let kept = stream.whole().expect("is read");
        assert!(kept.len() < 2100 && kept.ends_with("descriptor 99999\n"), "{kept}");
        assert!(stream.failure().is_none());
        let written = std::fs::read_to_string(&path).expect("is there");
        assert!(written.ends_with("descriptor 99999\n") && written.lines().count() == 100_000);
    }
}
