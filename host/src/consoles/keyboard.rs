//! Types on a guest's console: standard input is read on one thread and sent on another, so that
//! the key that leaves always works.

use crate::machine::control::{Control, Found, Refused};
use crate::prelude::*;
use hostlink::ctl::Input;
use std::io::{ErrorKind, Read};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, Sender, SyncSender, channel, sync_channel};

/// Bytes that wait to be sent. More are dropped: the guest does not read them.
const WAITING_MAX: usize = 64 << 10;
/// The time until the rest is sent again to a guest whose serial port had no room for it.
const RETRY_PERIOD: Duration = Duration::from_millis(20);

pub(super) trait Sink: Send + 'static {
    /// Sends some bytes, at most [`Input::BYTES_MAX`]; returns how many were taken.
    fn send(&mut self, bytes: &[u8]) -> Result<usize>;
}

pub(super) struct ToGuest {
    pub(super) machine: Found,
    pub(super) guest: Name,
    pub(super) port: u16,
}

impl Sink for ToGuest {
    /// In a conversation of its own, so that others can talk to the hypervisor between two keys.
    fn send(&mut self, bytes: &[u8]) -> Result<usize> {
        Control::open(&self.machine)?.type_some(self.guest, self.port, bytes)
    }
}

pub(super) struct Keyboard {
    has_left: Arc<AtomicBool>,
    failures: Receiver<String>,
    reader: Option<JoinHandle<()>>,
}

impl Keyboard {
    /// Begins to send what is read from `source`. `leave` is the key that leaves, after Ctrl-A.
    pub(super) fn start(source: impl Read + Send + 'static, sink: impl Sink, leave: u8) -> Self {
        let (keys, waiting) = sync_channel(WAITING_MAX);
        let (says, failures) = channel();
        let has_left = Arc::new(AtomicBool::new(false));
        let leaves = Arc::clone(&has_left);
        let reader = Some(thread::spawn(move || read(source, &keys, &leaves, leave)));
        // This one ends with this process at the latest.
        thread::spawn(move || send(sink, &waiting, &says));
        Self { has_left, failures, reader }
    }

    pub(super) fn has_left(&self) -> bool {
        self.has_left.load(Ordering::Relaxed) // Nothing else is published by it.
    }

    /// Stops to read: afterwards the source is its owner's. Bytes that come meanwhile are dropped.
    pub(super) fn stop(&mut self) {
        self.has_left.store(true, Ordering::Relaxed);
        // If the reader has panicked it reads no more, either.
        self.reader.take().into_iter().for_each(|reader| drop(reader.join()));
    }

    /// Why typing has failed, once.
    pub(super) fn failure(&self) -> Option<String> {
        self.failures.try_iter().last()
    }
}

fn read(mut source: impl Read, waiting: &SyncSender<u8>, has_left: &AtomicBool, leave: u8) {
    let mut keys = Keys::new(leave);
    let mut buffer = [0; 4096];
    // Nothing else is published by it.
    while !has_left.load(Ordering::Relaxed) {
        let count = match source.read(&mut buffer) {
            Ok(0) => return,
            Ok(count) => count,
            Err(error) if matches!(error.kind(), ErrorKind::Interrupted | ErrorKind::WouldBlock) => continue,
            Err(_) => return,
        };
        let (bytes, leaves) = keys.feed(&buffer[..count]);
        bytes.into_iter().for_each(|byte| _ = waiting.try_send(byte));
        if leaves {
            has_left.store(true, Ordering::Relaxed);
        }
    }
}

fn send(mut sink: impl Sink, waiting: &Receiver<u8>, says: &Sender<String>) {
    let mut bytes = Vec::new();
    loop {
        if bytes.is_empty() {
            let Ok(first) = waiting.recv() else { return };
            bytes.push(first);
        }
        bytes.extend(waiting.try_iter().take(Input::BYTES_MAX - bytes.len()));
        let taken = match sink.send(&bytes) {
            Ok(taken) => taken,
            Err(error) => {
                // Its owner may have gone.
                let _ = says.send(format!("{error:#}"));
                if !error.is::<Refused>() {
                    return;
                }
                // A guest that is off takes no keys; it may be started again.
                bytes.len()
            }
        };
        bytes.drain(..taken);
        if !bytes.is_empty() {
            thread::sleep(RETRY_PERIOD);
        }
    }
}

/// Ctrl-A.
const ESCAPE: u8 = 1;

#[derive(Clone, Copy, Debug)]
struct Keys {
    leave: u8,
    is_escaped: bool,
}

impl Keys {
    const fn new(leave: u8) -> Self {
        Self { leave, is_escaped: false }
    }

    /// What these bytes, which follow the previous ones, mean for the guest, and whether the key to
    /// leave was pressed; what follows that is ignored. Ctrl-A a is Ctrl-A for the guest, and so is
    /// Ctrl-A twice; any other key after Ctrl-A is ignored.
    fn feed(&mut self, bytes: &[u8]) -> (Vec<u8>, bool) {
        let mut typed = Vec::new();
        for &byte in bytes {
            match (std::mem::take(&mut self.is_escaped), byte) {
                (false, ESCAPE) => self.is_escaped = true,
                (false, byte) => typed.push(byte),
                (true, b'a' | ESCAPE) => typed.push(ESCAPE),
                (true, key) if key == self.leave => return (typed, true),
                (true, _) => {}
            }
        }
        (typed, false)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::machine::terminal::Polled;

    struct Slow(Sender<u8>, usize);

    impl Sink for Slow {
        fn send(&mut self, bytes: &[u8]) -> Result<usize> {
            assert!(bytes.len() <= Input::BYTES_MAX && !bytes.is_empty());
            let taken = bytes.len().min(self.1);
            for byte in &bytes[..taken] {
                self.0.send(*byte)?;
            }
            Ok(taken)
        }
    }

    fn receive(from: &Receiver<u8>, count: usize) -> Vec<u8> {
        (0..count).map(|_| from.recv_timeout(Duration::from_secs(60)).expect("comes")).collect()
    }

    fn await_true(mut is_true: impl FnMut() -> bool) {
        let begun = Instant::now();
        while !is_true() {
            assert!(begun.elapsed() < Duration::from_secs(60), "it does not come true");
            thread::sleep(Duration::from_millis(1));
        }
    }

    #[test]
    fn everything_arrives_in_order_however_little_the_guest_takes() {
        let text: Vec<u8> = (0..1000_u32).map(|number| b'a' + (number % 26) as u8).collect();
        for at_once in [7, 64] {
            let (sender, receiver) = channel();
            let typed = [&text[..], b"\x01x\x01d"].concat();
            let keyboard = Keyboard::start(io::Cursor::new(typed), Slow(sender, at_once), b'd');
            assert_eq!(receive(&receiver, text.len()), text);
            await_true(|| keyboard.has_left());
            assert!(keyboard.failure().is_none());
        }
    }

    #[test]
    fn the_key_that_leaves_works_while_the_guest_takes_nothing() {
        let (sender, _receiver) = channel();
        let keyboard = Keyboard::start(io::Cursor::new(b"abc\x01d".to_vec()), Slow(sender, 0), b'd');
        await_true(|| keyboard.has_left());
    }

    #[test]
    fn u53_nobody_reads_any_more_when_the_keyboard_is_stopped_and_no_key_is_needed_for_that() {
        let (source, keys) = io::pipe().expect("makes");
        let (sender, _receiver) = channel();
        let mut keyboard = Keyboard::start(Polled(source), Slow(sender, 64), b'd');
        let (done, is_done) = channel();
        thread::spawn(move || {
            keyboard.stop();
            done.send(()).expect("is waited for");
        });
        is_done.recv_timeout(Duration::from_secs(60)).expect("the reader waits for a key");
        // The reader has gone, with its end of the pipe.
        assert_eq!(rustix::io::write(&keys, b"x"), Err(rustix::io::Errno::PIPE));
    }

    #[test]
    fn a_refusal_is_said_and_typing_goes_on() {
        struct Off(Sender<u8>, bool);
        impl Sink for Off {
            fn send(&mut self, bytes: &[u8]) -> Result<usize> {
                if !std::mem::replace(&mut self.1, true) {
                    return Err(Refused("the guest is off".to_owned()).into());
                }
                if bytes == b"z" {
                    bail!("the machine has gone");
                }
                self.0.send(bytes[0])?;
                Ok(1)
            }
        }
        /// One byte at a time, when it is asked for.
        struct Slowly(Receiver<u8>);
        impl Read for Slowly {
            fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
                Ok(self.0.recv().map_or(0, |byte| {
                    buffer[0] = byte;
                    1
                }))
            }
        }
        let ((keys, source), (sender, receiver)) = (channel(), channel());
        let keyboard = Keyboard::start(Slowly(source), Off(sender, false), b'd');
        let failure = || {
            let mut found = None;
            await_true(|| {
                found = keyboard.failure();
                found.is_some()
            });
            found
        };
        keys.send(b'a').expect("is read");
        assert_eq!(failure().as_deref(), Some("the guest is off"));
        keys.send(b'b').expect("is read");
        assert_eq!(receive(&receiver, 1), b"b");
        keys.send(b'z').expect("is read");
        assert_eq!(failure().as_deref(), Some("the machine has gone"));
    }

    #[test]
    fn keys_after_ctrl_a_are_for_this_tool() {
        for (text, bytes, leaves) in [
            (&b"ls\r"[..], &b"ls\r"[..], false),
            (b"x\x01a", b"x\x01", false),
            (b"\x01\x01y", b"\x01y", false),
            (b"\x01qz", b"z", false),
            (b"ab\x01dcd", b"ab", true),
            (b"\x03\x04\x1a", b"\x03\x04\x1a", false),
        ] {
            for size in 1..=text.len() {
                let mut keys = Keys::new(b'd');
                let (mut all, mut left) = (Vec::new(), false);
                let mut parts = text.chunks(size);
                while let Some(part) = parts.next().filter(|_| !left) {
                    let typed = keys.feed(part);
                    all.extend(typed.0);
                    left = typed.1;
                }
                assert_eq!((&*all, left), (bytes, leaves), "{text:?} in pieces of {size}");
            }
        }
    }
}
