//! The user's terminal, which a guest's output reaches unchanged: what it may leave behind there.

use rustix::termios::{OptionalActions, SpecialCodeIndex, Termios, isatty, tcgetattr, tcsetattr};
use std::io;
use std::os::fd::AsFd;
use std::time::{Duration, Instant};

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
/// The time without a byte after which no answer comes, in tenths of a second. The terminal may be
/// far away; the answer to the last question ends the wait.
const PATIENCE: u8 = 10;
/// Longest time for all answers.
const PATIENCE_MAX: Duration = Duration::from_secs(3);

/// The terminal's former settings, while its keys are for a guest. Dropped, it makes the terminal
/// what it was: the settings, the modes that the guest has set, and the input, in which there may
/// be answers to the guest's questions. The shell would take them for what the user types.
pub(crate) struct SavedTerminal {
    settings: Termios,
}

impl SavedTerminal {
    /// `None` if standard input is no terminal.
    pub(crate) fn save() -> Option<Self> {
        let stdin = io::stdin();
        isatty(&stdin).then(|| tcgetattr(&stdin).ok()).flatten().map(|settings| Self { settings })
    }

    /// Passes on each key at once, Ctrl-C included. False if that is impossible.
    pub(crate) fn make_raw(&self) -> bool {
        let mut raw = self.settings.clone();
        raw.make_raw();
        tcsetattr(io::stdin(), OptionalActions::Now, &raw).is_ok()
    }
}

impl Drop for SavedTerminal {
    fn drop(&mut self) {
        if isatty(io::stdout()) {
            settle(&io::stdin(), &io::stdout(), &self.settings);
        }
        // What was typed for the guest is not for the shell. A closed terminal needs no settings.
        let _ = tcsetattr(io::stdin(), OptionalActions::Flush, &self.settings);
    }
}

/// Ends the modes of a terminal, and takes what it answers.
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

/// Whether the question is answered: `CSI ? … c`.
fn has_answer(bytes: &[u8]) -> bool {
    let mut beginnings = bytes.windows(3).enumerate().filter(|(_, window)| window == b"\x1b[?");
    beginnings.any(|(at, _)| {
        let mut rest = bytes[at + 3..].iter().skip_while(|byte| matches!(byte, b'0'..=b'9' | b';'));
        rest.next() == Some(&b'c')
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use rustix::fs::{Mode, OFlags, open};
    use rustix::pty::{OpenptFlags, grantpt, openpt, ptsname, unlockpt};
    use std::os::fd::OwnedFd;
    use std::thread;

    /// Both ends of a terminal.
    fn terminal() -> (OwnedFd, OwnedFd) {
        let own = openpt(OpenptFlags::RDWR | OpenptFlags::NOCTTY | OpenptFlags::CLOEXEC).expect("makes");
        grantpt(&own).expect("is granted");
        unlockpt(&own).expect("is unlocked");
        let name = ptsname(&own, Vec::new()).expect("has a name");
        let flags = OFlags::RDWR | OFlags::NOCTTY | OFlags::CLOEXEC;
        let other = open(name.as_c_str(), flags, Mode::empty()).expect("opens");
        (own, other)
    }

    /// Answers two kinds of questions as terminals do; returns all output.
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
        let (own, other) = terminal();
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
        let (own, other) = terminal();
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
}
