//! What operators do, and what they hand in.

use crate::test::arm::{MAX, WORK as WORK_ON_ARM};
use crate::test::cases::{Body, Case, Talk, WORK, case, talk};
use anyhow::{Context, Result, ensure};
use rustix::process::{Pid, Signal, kill_process};
use std::fs::{self, Permissions};
use std::io::{ErrorKind, Read};
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::UnixListener;
use std::os::unix::process::ExitStatusExt;
use std::path::Path;
use std::process::{self, Command, Stdio};
use std::thread;
use std::time::Duration;

/// How often a process is looked at that is waited for.
const POLL_PERIOD: Duration = Duration::from_millis(20);

/// The rows, in the order of their ids.
pub(super) const ROWS: &[Case] = &[
    talk(
        "u16_memory_is_not_laid_over_devices",
        "`ctl add` refuses the addresses of the APICs and of the PCI bus, and names them; the guest works on",
        WORK,
        Talk::Devices,
    ),
    talk(
        "u16_arm_memory_is_not_laid_over_devices",
        "and those of the GIC and the serial port",
        WORK_ON_ARM,
        Talk::Devices,
    )
    .on(MAX),
    case(
        "u17_ctl_ends_by_signal_while_it_waits",
        "Ctrl-C and SIGTERM end `ctl` while the hypervisor says nothing",
        Body::Own(ctl_ends_by_signal),
    ),
];

/// Starts `ctl` where a machine takes the conversation and never answers, and ends it. One that does not care for the signal ends by itself
/// when it has waited long enough, with a status.
fn ctl_ends_by_signal(directory: &Path) -> Result<()> {
    fs::set_permissions(directory, Permissions::from_mode(0o700))?;
    let machines = directory.join("quell");
    fs::create_dir(&machines)?;
    fs::set_permissions(&machines, Permissions::from_mode(0o700))?;
    // Its name is that of a process that is alive.
    let listener = UnixListener::bind(machines.join(process::id().to_string()).with_extension("ctl"))?;
    listener.set_nonblocking(true)?;
    for signal in [Signal::INT, Signal::TERM] {
        let mut ctl = Command::new(std::env::current_exe()?)
            .args(["ctl", "slots"])
            .env("XDG_RUNTIME_DIR", directory)
            .stdin(Stdio::null())
            .spawn()?;
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
