//! The user's terminal, which a guest's output reaches unchanged: what it may leave behind there.

use crate::prelude::*;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fs::{Mode, OFlags, open};
use rustix::process::getpgrp;
use rustix::pty::{OpenptFlags, grantpt, openpt, ptsname, unlockpt};
use rustix::termios::{
    LocalModes, OptionalActions, SpecialCodeIndex, Termios, isatty, tcgetattr, tcgetpgrp, tcsetattr,
};
use std::io::{ErrorKind, Read, Write};
use std::os::fd::{AsFd, OwnedFd};
use std::sync::atomic::{AtomicBool, Ordering};

/// Ends the modes that programs set on a terminal, whatever is displayed. In this order: a sequence
/// that has begun; other screens, reports of the mouse, of focus and of pasting; keys of the cursor
/// and of the keypad; the protocols for further keys; insertion and the line feed's mode; margins,
/// without moving the cursor; wrapping, origin and reverse video; character sets; the cursor;
/// colours.
const RESET: &str = "\x18\x1b\\\
    \x1b[?1047l\x1b[?9l\x1b[?1000l\x1b[?1001l\x1b[?1002l\x1b[?1003l\x1b[?1004l\x1b[?1005l\x1b[?1006l\x1b[?1015l\
    \x1b[?1016l\x1b[?2004l\x1b[?2026l\x1b[?2031l\x1b[?2048l\x1b[?1l\x1b>\x1b[?66l\x1b[=0u\x1b[>4m\x1b[4l\x1b[20l\
    \x1b7\x1b[r\x1b8\x1b[?69l\x1b[?6l\x1b[?5l\x1b[?7h\x1b(B\x1b)B\x0f\x1b[?25h\x1b[0m";
/// A question that terminals answer (DA1), after those that were asked before it.
const QUESTION: &str = "\x1b[c";
/// Tenths of a second without a byte after which no answer comes: the terminal may be far away.
const PATIENCE: u8 = 10;
const PATIENCE_MAX: Duration = Duration::from_secs(3);

/// The terminal's settings, while its keys are for a guest. Dropped, it restores them, ends modes
/// that the guest has set, and takes answers to its questions, which are not for the shell.
pub(crate) struct SavedTerminal {
    settings: Termios,
    keys: Option<(Arc<AtomicBool>, JoinHandle<()>)>,
}

const POLL_PERIOD: Timespec = Timespec { tv_sec: 0, tv_nsec: 50_000_000 };

/// Keys that are never waited for without end: nobody else can read a terminal meanwhile.
pub(crate) struct Polled<F>(pub(crate) F);

impl<F: AsFd> Read for Polled<F> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let mut polled = [PollFd::new(&self.0, PollFlags::IN)];
        match poll(&mut polled, Some(&POLL_PERIOD))? {
            0 => Err(ErrorKind::WouldBlock.into()),
            _ => Ok(rustix::io::read(&self.0, buffer)?),
        }
    }
}

impl SavedTerminal {
    /// `None` if standard input is no terminal.
    pub(crate) fn save() -> Option<Self> {
        let stdin = io::stdin();
        isatty(&stdin).then(|| tcgetattr(&stdin).ok()).flatten().map(|settings| Self { settings, keys: None })
    }

    /// Each key is for the guest at once, but those that signal, unless the terminal is another's.
    pub(crate) fn pass_keys(&mut self, mut to: impl Write + Send + 'static) {
        let input = io::stdin();
        let is_ours = tcgetpgrp(&input).is_ok_and(|group| group == getpgrp());
        if !is_ours || tcsetattr(&input, OptionalActions::Now, &each_key(&self.settings)).is_err() {
            return;
        }
        let stop = Arc::new(AtomicBool::new(false));
        let stops = Arc::clone(&stop);
        self.keys = Some((stop, thread::spawn(move || pass(input, &mut to, &stops))));
    }

    /// Passes on each key at once, Ctrl-C included. False if that is impossible.
    pub(crate) fn make_raw(&self) -> bool {
        let mut raw = self.settings.clone();
        raw.make_raw();
        tcsetattr(io::stdin(), OptionalActions::Now, &raw).is_ok()
    }
}

fn each_key(settings: &Termios) -> Termios {
    let mut each = settings.clone();
    each.make_raw();
    each.local_modes |= LocalModes::ISIG;
    each.output_modes = settings.output_modes;
    each
}

fn pass(input: impl AsFd, to: &mut impl Write, stops: &AtomicBool) {
    let (mut input, mut buffer) = (Polled(input), [0; 256]);
    // Relaxed: the flag says nothing about other memory. Partner: the store in drop.
    while !stops.load(Ordering::Relaxed) {
        match input.read(&mut buffer) {
            Ok(count @ 1..) if to.write_all(&buffer[..count]).is_ok() => {}
            Err(error) if matches!(error.kind(), ErrorKind::Interrupted | ErrorKind::WouldBlock) => {}
            _ => return,
        }
    }
}

impl Drop for SavedTerminal {
    fn drop(&mut self) {
        // The answers of the terminal are not for the guest.
        if let Some((stop, thread)) = self.keys.take() {
            // Relaxed: partner of the load in `pass`.
            stop.store(true, Ordering::Relaxed);
            let _ = thread.join();
        }
        if isatty(io::stdout()) {
            settle(&io::stdin(), &io::stdout(), &self.settings);
        }
        // What was typed for the guest is not for the shell. A closed terminal needs no settings.
        let _ = tcsetattr(io::stdin(), OptionalActions::Flush, &self.settings);
    }
}

fn settle(input: &impl AsFd, output: &impl AsFd, settings: &Termios) {
    let mut raw = settings.clone();
    raw.make_raw();
    raw.special_codes[SpecialCodeIndex::VMIN] = 0;
    raw.special_codes[SpecialCodeIndex::VTIME] = PATIENCE;
    if tcsetattr(input, OptionalActions::Now, &raw).is_err() {
        return;
    }
    for text in [RESET, QUESTION] {
        if rustix::io::write(output, text.as_bytes()) != Ok(text.len()) {
            return;
        }
    }
    let (begun, mut answers, mut buffer) = (Instant::now(), Vec::new(), [0; 256]);
    while begun.elapsed() < PATIENCE_MAX && !has_answer(&answers) {
        match rustix::io::read(input, &mut buffer) {
            Ok(count @ 1..) => answers.extend_from_slice(&buffer[..count]),
            Err(rustix::io::Errno::INTR) => {}
            _ => return,
        }
    }
}

fn has_answer(bytes: &[u8]) -> bool {
    let mut beginnings = bytes.windows(3).enumerate().filter(|(_, window)| window == b"\x1b[?");
    beginnings.any(|(at, _)| {
        let mut rest = bytes[at + 3..].iter().skip_while(|byte| matches!(byte, b'0'..=b'9' | b';'));
        rest.next() == Some(&b'c')
    })
}

/// A terminal of our own: what is behind it, and what programs have.
pub(crate) fn pseudo_terminal() -> Result<(OwnedFd, OwnedFd)> {
    let own = openpt(OpenptFlags::RDWR | OpenptFlags::NOCTTY | OpenptFlags::CLOEXEC)?;
    grantpt(&own)?;
    unlockpt(&own)?;
    let name = ptsname(&own, Vec::new())?;
    let flags = OFlags::RDWR | OFlags::NOCTTY | OFlags::CLOEXEC;
    let other = open(name.as_c_str(), flags, Mode::empty())?;
    Ok((own, other))
}

#[cfg(test)]
mod tests {
    use super::*;
    fn answer(own: OwnedFd) -> Vec<u8> {
        let (mut seen, mut buffer, mut done) = (Vec::new(), [0; 1024], 0);
        while let Ok(count @ 1..) = rustix::io::read(&own, &mut buffer) {
            seen.extend_from_slice(&buffer[..count]);
            for (question, answer) in [("\x1b[6n", "\x1b[24;80R"), (QUESTION, "\x1b[?62;22c")] {
                let new = seen[done..].windows(question.len()).filter(|text| *text == question.as_bytes());
                for _ in new {
                    rustix::io::write(&own, answer.as_bytes()).expect("writes");
                }
            }
            done = seen.len();
        }
        seen
    }

    #[test]
    fn u53_modes_are_ended_and_answers_taken_before_the_shell_goes_on() {
        let (own, other) = pseudo_terminal().expect("makes");
        let settings = tcgetattr(&other).expect("is one");
        let mut raw = settings.clone();
        raw.make_raw();
        tcsetattr(&other, OptionalActions::Now, &raw).expect("sets");
        let screen = thread::spawn(move || answer(own));
        let guest = b"\x1b[?1049h\x1b[?1003h\x1b[?2004h\x1b[6n\x1b]0;never ends";
        rustix::io::write(&other, guest).expect("writes");
        settle(&other, &other, &settings);
        let mut buffer = [0; 64];
        assert_eq!(rustix::io::read(&other, &mut buffer), Ok(0), "an answer is left for the shell");
        tcsetattr(&other, OptionalActions::Flush, &settings).expect("sets");
        drop(other);
        let seen = screen.join().expect("ends");
        let behind = String::from_utf8_lossy(&seen[guest.len()..]).into_owned();
        assert!(behind.starts_with("\x18\x1b\\"), "what the guest began is ended first: {behind:?}");
        assert!(behind.ends_with(QUESTION), "the last answer is known: {behind:?}");
        for mode in ["1047", "1003", "2004", "1"] {
            assert!(behind.contains(&format!("\x1b[?{mode}l")), "{mode}");
        }
    }

    #[test]
    fn u53_a_terminal_that_answers_nothing_is_not_waited_for_for_ever() {
        let (own, other) = pseudo_terminal().expect("makes");
        let settings = tcgetattr(&other).expect("is one");
        settle(&other, &other, &settings);
        drop(own);
    }

    #[test]
    fn u53_the_answer_is_told_from_others() {
        for (bytes, is_one) in [
            (&b"\x1b[?62;22c"[..], true),
            (b"\x1b[24;80R\x1b[?6c", true),
            (b"\x1b[?2004;2$y\x1b[?1;2c", true),
            (b"\x1b[24;80R", false),
            (b"\x1b[?62;2", false),
            (b"\x1b[>0;1c", false),
            (b"c", false),
            (b"", false),
        ] {
            assert_eq!(has_answer(bytes), is_one, "{bytes:?}");
        }
    }

    #[test]
    fn u67_a_key_is_passed_on_at_once_and_after_the_end_none() {
        let (own, other) = pseudo_terminal().expect("makes");
        let settings = tcgetattr(&other).expect("is one");
        tcsetattr(&other, OptionalActions::Now, &each_key(&settings)).expect("sets");
        let (mut from, mut to) = io::pipe().expect("makes");
        let stop = Arc::new(AtomicBool::new(false));
        let stops = Arc::clone(&stop);
        let thread = thread::spawn(move || {
            pass(&other, &mut to, &stops);
            other
        });
        rustix::io::write(&own, b"k\r\x13").expect("types");
        let mut arrived = [0; 3];
        io::Read::read_exact(&mut from, &mut arrived).expect("arrives");
        assert_eq!(arrived, *b"k\r\x13");
        // Ctrl-Z signals, and does not arrive.
        rustix::io::write(&own, b"\x1a").expect("types");
        // Relaxed: partner of the load in `pass`.
        stop.store(true, Ordering::Relaxed);
        let other = thread.join().expect("ends");
        rustix::io::write(&own, b"q").expect("types");
        assert_eq!(rustix::io::read(&other, &mut arrived), Ok(1), "it is the shell's");
        let mut polled = [PollFd::new(&own, PollFlags::IN)];
        assert_eq!(poll(&mut polled, Some(&Timespec { tv_sec: 0, tv_nsec: 0 })), Ok(0), "nothing is echoed");
    }
}
