//! What is shown to the user as it comes.

use std::io::{self, ErrorKind, Write};

/// A stream to the user. The machine goes on whether it can be written or not.
pub(crate) struct Output<W> {
    sink: W,
    /// Why it could not be written, the first time.
    failure: Option<io::Error>,
}

impl<W: Write> Output<W> {
    pub(crate) const fn new(sink: W) -> Self {
        Self { sink, failure: None }
    }

    pub(crate) fn put(&mut self, bytes: &[u8]) {
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

    /// Why some of it was not shown, if so.
    pub(crate) fn failure(&self) -> Option<String> {
        Some(format!("standard output: {}", self.failure.as_ref()?))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs::OpenOptions;

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
        output.flush();
        assert!(output.failure().is_none());
    }
}
