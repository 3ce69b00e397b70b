//! Disks with Debian, as `quell image-debian` makes them, under QEMU without Quell.

use super::cases::{Body, Case, case};
use crate::arch::Arch;
use crate::debian::boot::{Writes, machine};
use crate::debian::disk_for_tests;
use crate::guest::cache;
use crate::machine::process::{End, Flow, Machine};
use crate::machine::signals::Signals;
use anyhow::{Context, Result, ensure};
use std::path::Path;
use std::time::Duration;

/// The rows.
pub(super) const ROWS: [Case; 2] = [
    case(
        "debian_disk_boots",
        "a disk is made of packages; it boots, systemd and apt are well, and a file outlives a reboot",
        Body::Own(|directory| boots(Arch::X86_64, directory)),
    )
    .only_long(),
    case(
        "debian_disk_boots_on_arm",
        "the same for Arm64, none of whose programs runs outside of the machine",
        Body::Own(|directory| boots(Arch::Aarch64, directory)),
    )
    .only_long(),
];

/// For a boot, and for a command: in the machine's own time.
const BOOT_TIMEOUT: Duration = Duration::from_secs(300);
const COMMAND_TIMEOUT: Duration = Duration::from_secs(120);

fn boots(arch: Arch, directory: &Path) -> Result<()> {
    let disk = directory.join("debian.img");
    disk_for_tests(arch, &disk)?;
    let first = Session::start(arch, &disk)?;
    let done = first.run(&[
        "[ \"$(systemctl is-system-running --wait)\" = running ]",
        "apt-get check -qq",
        "[ -z \"$(dpkg --audit; dpkg --verify)\" ]",
        "grep -q up /sys/class/net/e*/operstate",
        "ip -4 route | grep -q ^default",
        "fio --version && iperf3 --version",
        "echo kept > /root/file && sync",
    ]);
    done.context("at the first boot")?;
    let second = Session::start(arch, &disk)?;
    second.run(&["[ \"$(cat /root/file)\" = kept ]"]).context("at the second boot")
}

/// A booted system with root logged in.
struct Session {
    machine: Machine,
    /// The end of what has been read of the console.
    seen: usize,
}

impl Session {
    fn start(arch: Arch, disk: &Path) -> Result<Self> {
        let kernel = cache::guest_files(arch, false)?.kernel;
        let spec = machine(arch, &kernel, disk, "quiet", Writes::Kept);
        let machine = Machine::start(&spec, &Signals::default())?;
        let mut session = Self { machine, seen: 0 };
        session.expect("quell login: ", BOOT_TIMEOUT)?;
        session.machine.type_text("root\n")?;
        session.expect("# ", BOOT_TIMEOUT)?;
        Ok(session)
    }

    fn expect(&mut self, text: &str, timeout: Duration) -> Result<()> {
        let found = self.machine.await_console(text, self.seen, timeout);
        self.seen = found.with_context(|| self.machine.shown())?;
        Ok(())
    }

    /// Types commands, each of which has to succeed; then switches the machine off.
    fn run(mut self, commands: &[&str]) -> Result<()> {
        for command in commands {
            // The terminal repeats the command, which has no number in it.
            self.machine.type_text(&format!("{command}; echo status-$?\n"))?;
            self.expect("status-0", COMMAND_TIMEOUT).with_context(|| format!("{command} did not succeed"))?;
            self.expect("# ", COMMAND_TIMEOUT)?;
        }
        self.machine.type_text("systemctl poweroff\n")?;
        let outcome = self.machine.run(|_, _| Ok(Flow::Continue))?;
        ensure!(outcome.end == End::PowerOff, "it ended with {:?}:\n{}", outcome.end, outcome.console);
        Ok(())
    }
}
