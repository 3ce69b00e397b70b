//! QEMU's process: how it is started, and what it may leave behind.

use super::ram::Ram;
use super::spec::{Console, Spec};
use rustix::io::{FdFlags, fcntl_setfd};
use rustix::process::{Signal, set_parent_process_death_signal};
use rustix::termios::{OptionalActions, Termios, tcgetattr, tcsetattr};
use std::ffi::OsString;
use std::io;
use std::os::fd::{AsRawFd, BorrowedFd};
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::process::{Command, ExitStatus, Stdio};

/// The process of this command ends when the calling thread does.
pub(crate) fn end_with_us(command: &mut Command) {
    // SAFETY: the closure runs between fork and exec, and makes only a system call.
    unsafe {
        command.pre_exec(|| Ok(set_parent_process_death_signal(Some(Signal::KILL))?));
    }
}

/// The command for QEMU: its standard streams, its memory, and its death together with this
/// process.
pub(super) fn command(spec: &Spec, mut command: Command, arguments: &[OsString], ram: &Ram) -> Command {
    command.args(arguments);
    match spec.console {
        Console::Terminal => command.stdin(Stdio::inherit()).stdout(Stdio::inherit()),
        Console::Echo => command.stdin(Stdio::null()).stdout(Stdio::piped()),
        Console::Capture => command.stdin(Stdio::piped()).stdout(Stdio::piped()),
    };
    // On the terminal QEMU has to be in the foreground group; otherwise Ctrl-C is for this process.
    if spec.console != Console::Terminal {
        command.process_group(0);
    }
    let ram_fd = ram.fd().as_raw_fd();
    end_with_us(&mut command);
    // SAFETY: the closure runs between fork and exec and makes only a system call. The descriptor
    // is open there: the child has a copy of every descriptor of the parent, and the parent holds
    // this one until the machine has ended.
    unsafe {
        command.pre_exec(move || Ok(fcntl_setfd(BorrowedFd::borrow_raw(ram_fd), FdFlags::empty())?));
    }
    command
}

/// The terminal's former settings; restored when dropped, because QEMU may be killed before it
/// restores them.
pub(super) struct SavedTerminal {
    settings: Termios,
}

impl SavedTerminal {
    pub(super) fn save() -> Option<Self> {
        tcgetattr(io::stdin()).ok().map(|settings| Self { settings })
    }
}

impl Drop for SavedTerminal {
    fn drop(&mut self) {
        // A closed terminal needs no settings.
        let _ = tcsetattr(io::stdin(), OptionalActions::Now, &self.settings);
    }
}

/// A one-line description of an exit status.
pub(crate) fn describe(status: ExitStatus) -> String {
    match (status.code(), status.signal()) {
        (Some(code), _) => format!("status {code}"),
        (None, Some(signal)) => format!("signal {signal}"),
        (None, None) => status.to_string(),
    }
}
