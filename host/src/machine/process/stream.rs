//! What QEMU writes into a pipe, kept on a thread of its own.

use super::super::console::read;
use super::super::kept::Ring;
use super::super::log_file::LogFile;
use crate::prelude::*;
use std::io::PipeReader;

/// The end of the text in memory, and all of it in a file if there is one.
pub(super) struct Stream {
    ring: Arc<Mutex<Ring>>,
    file: Option<Arc<Mutex<LogFile>>>,
    reader: Option<JoinHandle<()>>,
}

impl Stream {
    /// Begins to keep at least the last `least` bytes, and at most twice as many.
    pub(super) fn keep(source: PipeReader, least: usize, file: Option<LogFile>) -> Self {
        let ring = Arc::new(Mutex::new(Ring::new(least)));
        let file = file.map(|file| Arc::new(Mutex::new(file)));
        let (kept, written) = (Arc::clone(&ring), file.clone());
        let take = move |bytes: &[u8]| {
            kept.lock().unwrap_or_else(PoisonError::into_inner).push(bytes);
            if let Some(file) = &written {
                file.lock().unwrap_or_else(PoisonError::into_inner).append(bytes);
            }
        };
        Self { ring, file, reader: Some(thread::spawn(move || read(source, take))) }
    }

    /// The end of the text. Call it when QEMU has ended.
    pub(super) fn whole(&mut self) -> Result<String> {
        if let Some(reader) = self.reader.take() {
            reader.join().map_err(|_| anyhow!("a reader of QEMU's output panicked"))?;
        }
        Ok(self.ring.lock().unwrap_or_else(PoisonError::into_inner).shown())
    }

    /// Why the file lacks some of it, if it does.
    pub(super) fn failure(&self) -> Option<String> {
        self.file.as_ref()?.lock().unwrap_or_else(PoisonError::into_inner).failure()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::{self, Write};

    #[test]
    fn u51_however_much_qemu_writes_its_end_is_kept_and_no_more() {
        let directory = tempfile::tempdir().expect("makes");
        let path = directory.path().join("log");
        let (source, mut sink) = io::pipe().expect("makes");
        let file = LogFile::create(&path).expect("creates");
        let mut stream = Stream::keep(source, 1000, Some(file));
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
