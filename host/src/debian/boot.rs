//! Machines with the disk, without Quell: the first boot, in which the packages configure
//! themselves.

use super::tree::SETUP;
use crate::machine::devices::drive;
use crate::machine::payload::Payload;
use crate::machine::process::Outcome;
use crate::prelude::*;
use crate::steps::Steps;

/// The system's partition, by the name that it has in the table.
pub(crate) const ROOT: &str = "root=PARTLABEL=quell rw";
const MEMORY: u64 = GIB;
const CPUS: u32 = 2;
/// The limit of the first boot, in the machine's own time. It takes two to four minutes.
const SETUP_TIMEOUT: Duration = Duration::from_secs(1800);
const LOOK_PERIOD: Duration = Duration::from_millis(200);
/// What the console shows for each package, and at the end.
const PACKAGE: &str = "Setting up ";
const END: &str = "quell-setup: ";
const DONE: &str = "quell-setup: done";

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Writes {
    /// When the system wants them on the disk, they are there.
    Kept,
    /// At the end of QEMU at the latest. Faster, for a disk that is of no use before that.
    Late,
}

pub(crate) fn machine(arch: Arch, kernel: &Path, disk: &Path, words: &str, writes: Writes) -> Result<Spec> {
    let cmdline = format!("{} {ROOT} {words}", arch.console());
    let payload = Payload::Bare { kernel: kernel.to_owned(), initrd: None, cmdline };
    let mut spec = Spec::new(arch.usual(), payload, CPUS, MEMORY);
    let cache = match writes {
        Writes::Kept => "writeback",
        Writes::Late => "unsafe",
    };
    let drive = drive(&format!("if=none,id=disk,cache={cache}"), disk)?;
    let device = "nvme,drive=disk,serial=quell";
    let network = ["-netdev", "user,id=net", "-device", "virtio-net-pci,netdev=net"];
    spec.devices = vec!["-drive".into(), drive, "-device".into(), device.into()];
    spec.devices.extend(network.map(OsString::from));
    Ok(spec)
}

pub(super) fn first(
    arch: Arch,
    kernel: &Path,
    disk: &Path,
    packages: usize,
    steps: &Steps,
    signals: &Signals,
) -> Result<()> {
    let words = format!("quiet panic=-1 init=/{SETUP}");
    let mut spec = machine(arch, kernel, disk, &words, Writes::Late)?;
    spec.timeout = Some(SETUP_TIMEOUT);
    let mut machine = Machine::start(&spec, signals)?;
    let mut time = machine.own_time();
    let (mut done, mut seen) = (0, 0);
    while machine.has_ended()?.is_none() && signals.caught().is_none() && time.passed() < SETUP_TIMEOUT {
        for (_, end) in machine.lines(PACKAGE, seen)? {
            (done, seen) = (done + 1, end);
        }
        steps.detail(format!("first boot: {done} of {packages} packages configured"));
        thread::sleep(LOOK_PERIOD);
    }
    judge(&machine.run(|_, _| Ok(Flow::Continue))?)
}

fn judge(outcome: &Outcome) -> Result<()> {
    let console = || tail(&outcome.console);
    if let End::Interrupted(signal) = outcome.end {
        bail!("stopped by signal {signal}; no disk was made");
    }
    let why = || format!("the first boot failed; its console ends with:\n{}", console());
    outcome.ended_by(&[End::PowerOff]).with_context(why)?;
    let last = outcome.console.lines().rev().find(|line| line.starts_with(END));
    ensure!(
        last == Some(DONE),
        "the first boot {}; the console ends with:\n{}",
        last.and_then(|line| line.strip_prefix(END)).unwrap_or("did not come to its end"),
        console()
    );
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::super::tree::CONFIGURE;
    use super::*;

    #[test]
    fn a_first_boot_has_to_say_that_it_is_done() {
        let judged = |end, console: &str| {
            let outcome = Outcome { end, console: console.to_owned(), ..Outcome::of("") };
            judge(&outcome).map_err(|error| error.to_string())
        };
        assert_eq!(judged(End::PowerOff, "Setting up a\nquell-setup: done\nPowering off.\n"), Ok(()));
        let failed = judged(End::PowerOff, "quell-setup: failed: ldconfig\nPowering off.\n");
        assert!(failed.expect_err("is refused").starts_with("the first boot failed: ldconfig;"));
        let early = judged(End::PowerOff, "Setting up a\n").expect_err("is refused");
        let said = "the first boot did not come to its end; the console ends with:\nSetting up a";
        assert_eq!(early, said);
        let late = judged(End::TimedOut, "quell-setup: done\n").expect_err("is refused");
        assert!(late.starts_with("the first boot failed; its console ends with:"), "{late}");
        let stopped = judged(End::Interrupted(2), "quell-setup: done\n").expect_err("is refused");
        assert_eq!(stopped, "stopped by signal 2; no disk was made");
        assert!(CONFIGURE.ends_with("finish done\n"));
    }

    #[test]
    fn the_machine_boots_from_the_disk() {
        let disk = Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/Cargo.toml"));
        let spec = machine(Arch::X86_64, Path::new("/k"), disk, "quiet", Writes::Kept).expect("is a file");
        assert!(spec.devices[1].to_string_lossy().starts_with("if=none,id=disk,cache=writeback,format=raw,"));
        let Payload::Bare { cmdline, initrd, .. } = spec.payload else { panic!("another payload") };
        assert_eq!((cmdline.as_str(), initrd), ("console=ttyS0 root=PARTLABEL=quell rw quiet", None));
    }
}
