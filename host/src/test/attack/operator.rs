//! Actions and inputs of operators.

use crate::test::prelude::*;
use crate::test::room::tool;
use rustix::process::{Pid, Signal, kill_process};
use std::fs::Permissions;
use std::io::{ErrorKind, Read};
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::UnixListener;
use std::os::unix::process::ExitStatusExt;
use std::process;

/// How often a process that is waited for is checked.
const POLL_PERIOD: Duration = Duration::from_millis(20);

pub(in crate::test) const ACTS: &[Named] = &[("u17_ctl_ends_by_signal_while_it_waits", ctl_ends_by_signal)];

/// Starts `ctl` where a machine accepts the conversation and never answers, and ends it by a
/// signal. If it ignored the signal, it would end by itself after its patience, with a status.
fn ctl_ends_by_signal(room: &Room<'_>) -> Result<()> {
    let directory = room.directory;
    fs::set_permissions(directory, Permissions::from_mode(0o700))?;
    let machines = directory.join("quell");
    fs::create_dir(&machines)?;
    fs::set_permissions(&machines, Permissions::from_mode(0o700))?;
    // Its name is that of a live process.
    let listener = UnixListener::bind(machines.join(process::id().to_string()).with_extension("ctl"))?;
    listener.set_nonblocking(true)?;
    for signal in [Signal::INT, Signal::TERM] {
        let mut ctl = tool(&["ctl", "slots"])?.env("XDG_RUNTIME_DIR", directory).spawn()?;
        let mut conversation = loop {
            match listener.accept() {
                Ok((conversation, _)) => break conversation,
                Err(error) if error.kind() == ErrorKind::WouldBlock => {}
                Err(error) => return Err(error.into()),
            }
            ensure!(ctl.try_wait()?.is_none(), "it ended without a conversation");
            thread::sleep(POLL_PERIOD);
        };
        conversation.set_nonblocking(false)?;
        let mut asked = [0; 1];
        conversation.read_exact(&mut asked).context("nothing was asked")?;
        kill_process(Pid::from_child(&ctl), signal)?;
        let status = ctl.wait()?;
        ensure!(status.signal() == Some(signal.as_raw()), "{signal:?} was waited for until {status}");
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::ffi::OsStr;
    use std::os::unix::ffi::OsStrExt;

    #[test]
    fn u52_arguments_that_rustup_does_not_pass_on_are_refused_with_a_word() {
        let mut quell = Command::new("/bin/sh");
        quell.arg(crate::workspace::root().join("quell")).args(["--no-install", "run", "--disk"]);
        let output = quell.arg(OsStr::from_bytes(b"a\xffb.img")).stdin(Stdio::null()).output();
        let output = output.expect("starts");
        let said = String::from_utf8_lossy(&output.stderr);
        assert!(said.starts_with("quell: these arguments are not UTF-8 text"), "{said}");
        assert_eq!(output.status.code(), Some(1));
    }

    #[test]
    fn u19_what_is_installed_is_pinned_by_its_hash() {
        let script = include_str!("../../../../quell").replace("\\\n", " ");
        let mut calls = script.lines().filter(|line| line.contains("pip install")).peekable();
        assert!(calls.peek().is_some(), "the script calls pip");
        for call in calls {
            let is_pinned = ["--require-hashes", "--only-binary :all:", "--requirement"];
            assert!(is_pinned.iter().all(|word| call.contains(word)), "{call}");
        }
        let list = include_str!("../../../rustup-requirements.txt").replace("\\\n", " ");
        for line in list.lines().filter(|line| !line.starts_with('#')) {
            let (package, hash) = line.split_once("--hash=sha256:").expect("has a hash");
            assert!(package.contains("==") && hash.trim().len() == 64, "{line}");
        }
        assert!(list.contains("puccinialin=="));
    }
}
