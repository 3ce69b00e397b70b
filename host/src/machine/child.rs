//! QEMU's process: how it is started, and what it may leave behind.

use super::spec::{Console, Spec};
use rustix::io::{FdFlags, fcntl_setfd};
use rustix::process::{Signal, set_parent_process_death_signal};
use std::ffi::OsString;
use std::io::{self, IsTerminal};
use std::os::fd::{AsRawFd, BorrowedFd, RawFd};
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::process::{Command, ExitStatus, Stdio};

/// The process of this command ends when the calling thread does.
pub(crate) fn end_with_us(command: &mut Command) {
    // SAFETY: the closure runs between fork and exec, and makes only a system call.
    unsafe {
        command.pre_exec(|| Ok(set_parent_process_death_signal(Some(Signal::KILL))?));
    }
}

/// The path by which a process that has inherited a descriptor opens what it is one of.
pub(super) fn path_in_child(fd: &impl AsRawFd) -> String {
    format!("/proc/self/fd/{}", fd.as_raw_fd())
}

/// The command for QEMU: its standard streams, the descriptors that it inherits, and its death
/// together with this process.
pub(super) fn command(
    spec: &Spec,
    mut command: Command,
    arguments: &[OsString],
    inherited: Vec<RawFd>,
) -> Command {
    command.args(arguments);
    match spec.console {
        Console::Terminal => command.stdin(Stdio::inherit()).stdout(Stdio::inherit()),
        Console::Echo if io::stdin().is_terminal() => command.stdin(Stdio::piped()).stdout(Stdio::piped()),
        Console::Echo => command.stdin(Stdio::null()).stdout(Stdio::piped()),
        Console::Capture => command.stdin(Stdio::piped()).stdout(Stdio::piped()),
    };
    // On the terminal QEMU has to be in the foreground group; otherwise Ctrl-C is for this process.
    if spec.console != Console::Terminal {
        command.process_group(0);
    }
    end_with_us(&mut command);
    // SAFETY: the closure runs between fork and exec and makes only system calls. The descriptors
    // are open there: the child has a copy of every descriptor of the parent, and the parent holds
    // these until the child has started.
    unsafe {
        command.pre_exec(move || {
            for fd in &inherited {
                fcntl_setfd(BorrowedFd::borrow_raw(*fd), FdFlags::empty())?;
            }
            Ok(())
        });
    }
    command
}

/// A one-line description of an exit status.
pub(crate) fn describe(status: ExitStatus) -> String {
    match (status.code(), status.signal()) {
        (Some(code), _) => format!("status {code}"),
        (None, Some(signal)) => format!("signal {signal}"),
        (None, None) => status.to_string(),
    }
}
