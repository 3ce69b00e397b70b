//! Actions and inputs of operators.

use crate::test::arm::WORK as WORK_ON_ARM;
use crate::test::cases::{WORK, runs, talk};
use crate::test::prelude::*;
use rustix::process::{Pid, Signal, kill_process};
use std::fs::Permissions;
use std::io::{ErrorKind, Read};
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::UnixListener;
use std::os::unix::process::ExitStatusExt;
use std::process;

/// How often a process that is waited for is checked.
const POLL_PERIOD: Duration = Duration::from_millis(20);

const GIB: u64 = 1024 * MIB;

/// Has nearly 3 GiB of memory, and uses most of it.
const THREE: &str = "test $(awk '/^MemTotal/ { print $2 }' /proc/meminfo) -gt 2950000 && mkdir /m && \
            mount -t tmpfs -o size=100% m /m && dd if=/dev/zero of=/m/all bs=1M count=2400";
/// Has nearly 5 GiB of memory, and uses most of it.
const FIVE: &str = "test $(awk '/^MemTotal/ { print $2 }' /proc/meminfo) -gt 4950000 && mkdir /m && \
            mount -t tmpfs -o size=100% m /m && dd if=/dev/zero of=/m/all bs=1M count=4200";
const TWELVE: &str = "test $(awk '/^MemTotal/ { print $2 }' /proc/meminfo) -gt 12000000";

const fn uses_memory(name: &'static str, command: &'static str, bytes: u64) -> Case {
    runs(name, (2, 2), command).in_memory(bytes)
}

const fn date(name: &'static str) -> Case {
    let command = "echo \"{\\\"event\\\":\\\"date\\\",\\\"unix\\\":$(date +%s)}\" > /dev/report";
    stock(name, (1, 1), command, Expect::Date)
}

/// Sleeps until the clock's alarm wakes it, then until a key does, then until the operator does. An
/// alarm that comes before it sleeps is an event since it has read their number: it begins again.
const SLEEPS: &str = "stty -echo; alarm=/sys/class/rtc/rtc0/wakealarm; cd /sys/power; \
            key=/sys/class/tty/$(cat /sys/class/tty/console/active)/power/wakeup; \
            slept() { test $(cat suspend_stats/success) -ge $1; }; \
            until slept 1; do events=$(cat wakeup_count); echo 0 > $alarm; echo +4 > $alarm; \
            echo $events > wakeup_count && echo freeze > state; done; echo 0 > $alarm; echo enabled > $key; \
            echo '{\"event\":\"awaits-key\"}' > /dev/report; until slept 2; do echo freeze > state; done; \
            echo disabled > $key; \
            echo '{\"event\":\"awaits-wake\"}' > /dev/report; until slept 3; do echo freeze > state; done";

const fn sleeper(name: &'static str) -> Case {
    runs(name, (2, 2), SLEEPS)
}

pub(super) const ROWS: &[Case] = &[
    uses_memory("u10_guest_of_3g", THREE, 3 * GIB).about("more than the machine's piece below 4 GiB"),
    uses_memory("u10_guest_of_5g", FIVE, 5 * GIB).about("memory beside the guest's own gap below 4 GiB"),
    uses_memory("u10_guest_of_12g", TWELVE, 12 * GIB).about("and much more of it").only_long(),
    uses_memory("u10_arm_guest_of_5g", FIVE, 5 * GIB).about("memory above 4 GiB on Arm64").on(MAX),
    tool("o1_the_usual_image_refuses_to_make_mistakes", "run --set defect=no-kick --exec true")
        .ends(66, "this image has no defects")
        .about("flushes without kicks are a defect that only a special image has"),
    talk("u16_memory_is_not_laid_over_devices", WORK, Talk::Devices)
        .about("`ctl add` refuses the addresses of APICs and PCI bus, and names them; the guest works on"),
    talk("u16_arm_memory_is_not_laid_over_devices", WORK_ON_ARM, Talk::Devices)
        .about("and those of the GIC, the serial port and the stolen times, which it does not delete")
        .on(MAX),
    act("u17_ctl_ends_by_signal_while_it_waits", ctl_ends_by_signal)
        .about("Ctrl-C and SIGTERM end `ctl` while the hypervisor says nothing"),
    date("u25_guests_know_the_date").about("a stock guest's clock is right from the start"),
    date("u25_arm_guests_know_the_date").about("and on Arm64").on(MAX),
    sleeper("u67_guests_wake").about("from s2idle, by the clock's alarm, by a key and by `ctl guest wake`"),
    sleeper("u67_arm_guests_wake").about("and on Arm64").on(MAX),
];

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
