//! Disks with Debian, by `quell image-debian`: under QEMU without Quell, and of Quell's guests.

use crate::debian::boot::{ROOT, Writes, machine};
use crate::debian::{copy_for_tests, disk_for_tests};
use crate::guest::cache::{self, Unavailable};
use crate::machine::devices::{Devices, Network};
use crate::test::prelude::*;
use crate::vm::disk_loader;

pub(super) const ACTS: &[Named] = &[
    ("debian_disk_boots", boots),
    ("debian_boots_on_quell", |room| {
        boots_twice(&on_quell(room, &room.directory.join("debian.img"), outside(room)?)?)
    }),
    ("debian_upgrades_its_kernel", upgrades),
    ("a_disk_is_intact_after_hard_resets", hard_resets),
];

/// For a boot, and for a command: in the machine's own time.
const BOOT_TIMEOUT: Duration = Duration::from_secs(300);
const COMMAND_TIMEOUT: Duration = Duration::from_secs(300);

/// What has to be well at the first boot.
const CHECKS: &[&str] = &[
    "[ \"$(systemctl is-system-running --wait)\" = running ]",
    "apt-get check -qq",
    "[ -z \"$(dpkg --audit; dpkg --verify)\" ]",
    "grep -q up /sys/class/net/e*/operstate",
    "ip -4 route | grep -q ^default",
    "fio --version && iperf3 --version",
    "echo kept > /root/file && sync",
];
/// And at the second.
const KEPT: &str = "[ \"$(cat /root/file)\" = kept ]";
const RESETS: u32 = 20;
/// Before the reboot of an upgrade. The disk's kernels need no initial RAM disk.
const UPGRADE: &[&str] = &[
    "uname -r > /root/old",
    "INITRD=No apt-get -qy install --no-install-recommends \
     linux-image-6.12-cloud-$(dpkg --print-architecture) > /root/log 2>&1",
];
const UPGRADED: &[&str] = &["[ $(uname -r) != $(cat /root/old) ]", "! dmesg | grep 'nobody cared'"];

fn boots(room: &Room<'_>) -> Result<()> {
    let (arch, disk) = (room.platform.arch(), room.directory.join("debian.img"));
    disk_for_tests(arch, &disk)?;
    let kernel = cache::guest_files(arch, false)?.kernel;
    boots_twice(&machine(arch, &kernel, &disk, "quiet", Writes::Kept)?)
}

fn boots_twice(spec: &Spec) -> Result<()> {
    Session::start(spec)?.run(CHECKS).context("at the first boot")?;
    Session::start(spec)?.run(&[KEPT]).context("at the second boot")
}

/// A machine with Quell, whose guest owns a copy of the disk and a network card. It starts this
/// kernel, which may be firmware.
fn on_quell(room: &Room<'_>, disk: &Path, (kernel, is_firmware): (PathBuf, bool)) -> Result<Spec> {
    let arch = room.platform.arch();
    copy_for_tests(arch, disk)?;
    let cmdline = format!("{} {ROOT} quiet", arch.console());
    let guest = Guest {
        is_firmware,
        vcpus: 2,
        memory: GIB,
        reset: ResetPolicy::Reboot,
        switches: room.switches,
        devices: Devices { disks: vec![disk.to_owned()], network: Some(Network::User), ..Devices::default() },
        ..Guest::new(room.platform, kernel, None, cmdline)
    };
    guest.check()?;
    guest.on_quell(room.hypervisor()?, 2, room.clock, room.directory)
}

/// A kernel that is not on the disk.
fn outside(room: &Room<'_>) -> Result<(PathBuf, bool)> {
    Ok((cache::guest_files(room.platform.arch(), false)?.kernel, false))
}

fn upgrades(room: &Room<'_>) -> Result<()> {
    let loader = disk_loader(room.platform.arch())?;
    let mut session = Session::start(&on_quell(room, &room.directory.join("debian.img"), loader)?)?;
    session.run_all(&["apt-get -qq update"]).context(Unavailable("Debian's archive".into()))?;
    session.run_all(UPGRADE)?;
    session.machine.type_text("reboot\n")?;
    session.log_in().context("after the upgrade")?;
    session.run(UPGRADED)
}

/// The guest writes all the time, and resets itself without warning.
fn hard_resets(room: &Room<'_>) -> Result<()> {
    let disk = room.directory.join("debian.img");
    let mut session = Session::start(&on_quell(room, &disk, outside(room)?)?)?;
    for number in 1..=RESETS {
        let writes = "rm -f /root/v4; (while :; do for i in 1 2 3 4; do dd if=/dev/urandom of=/root/w$i \
             bs=64k count=32 conv=fsync 2>/dev/null; mv /root/w$i /root/v$i; done; done) &";
        // Four files are written, and more is on its way.
        let reset = "until [ -e /root/v4 ]; do sleep 0.1; done; echo b > /proc/sysrq-trigger";
        session.machine.type_text(&format!("{writes}\n{reset}\n"))?;
        session.log_in().with_context(|| format!("after reset {number} of {RESETS}"))?;
    }
    session.run(&["! dmesg | grep 'EXT4-fs.*rror'", "ls /root/v1"])?;
    workspace::output(Command::new("/sbin/e2fsck").arg("-fn").arg(&disk)).map(drop)
}

/// A booted system with root logged in.
struct Session {
    machine: Machine,
    /// The end of what has been read of the console.
    seen: usize,
}

impl Session {
    fn start(spec: &Spec) -> Result<Self> {
        let machine = Machine::start(spec, &Signals::default())?;
        let mut session = Self { machine, seen: 0 };
        session.log_in()?;
        Ok(session)
    }

    fn log_in(&mut self) -> Result<()> {
        self.expect("quell login: ", BOOT_TIMEOUT)?;
        self.machine.type_text("root\n")?;
        self.expect("# ", BOOT_TIMEOUT)
    }

    fn expect(&mut self, text: &str, timeout: Duration) -> Result<()> {
        let found = self.machine.await_console(text, self.seen, timeout);
        self.seen = found.with_context(|| self.machine.shown())?;
        Ok(())
    }

    /// Types commands, each of which has to succeed.
    fn run_all(&mut self, commands: &[&str]) -> Result<()> {
        for command in commands {
            // The terminal repeats the command, which has no number in it.
            self.machine.type_text(&format!("{command}; echo status-$?\n"))?;
            self.expect("status-0", COMMAND_TIMEOUT).with_context(|| format!("{command} did not succeed"))?;
            self.expect("# ", COMMAND_TIMEOUT)?;
        }
        Ok(())
    }

    /// The same; then switches the machine off.
    fn run(mut self, commands: &[&str]) -> Result<()> {
        self.run_all(commands)?;
        self.machine.type_text("systemctl poweroff\n")?;
        let outcome = self.machine.run(|_, _| Ok(Flow::Continue))?;
        outcome.ended_by(&[End::PowerOff, OFF]).with_context(|| outcome.console.clone())
    }
}
