//! `quell image`: a bootable CD with GRUB, for real machines, for clouds and for other hypervisors;
//! and tlbcheck as a bzImage.

use crate::cli::{ImageArgs, Overrides};
use crate::demo;
use crate::machine::flat;
use crate::machine::payload::Payload;
use crate::machine_file::MachineFile;
use crate::prelude::*;
use crate::vm::Guests;
use clap::ValueEnum;
use hostlink::config::{FlushMode, ResetPolicy, TURN_RUNS};
use hostlink::cpus::CpuSet;
use std::fmt::Write;
use time::OffsetDateTime;

/// GRUB's program that makes CDs, and the required Debian packages.
pub(crate) const MKRESCUE: &str = "grub-mkrescue";
const PACKAGES: &str = "grub-common, grub-pc-bin, grub-efi-amd64-bin, xorriso and mtools";

/// vCPUs of the guests, of the demo's, and the CPUs that that one may use.
const VCPUS: u32 = 2;
const DEMO_VCPUS: u32 = 8;
const DEMO_CPUS: u32 = 2;
const BIOS_MODULES: &str = "/usr/lib/grub/i386-pc";
const OVMF: &str = "/usr/share/ovmf/OVMF.fd";
const MACHINE_MEMORY: u64 = 1280 * MIB;

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Entry {
    /// tlbcheck checks the machine
    Check,
    /// tlbcheck measures the machine
    Bench,
    /// Quell runs Debian's kernel with a shell on the first serial port
    Linux,
    /// tlbcheck checks Quell
    CheckQuell,
    /// tlbcheck checks the machine, started like a Linux kernel
    CheckLinux,
    /// Quell runs a workload that flushes by IPI and by hypercall, and shows a table
    Demo,
    /// Quell runs the guests of a machine file
    Guests,
}

impl Entry {
    const fn menu(self) -> (&'static str, &'static str, &'static str) {
        match self {
            Self::Check => (
                "check",
                "tlbcheck: check how this machine flushes TLBs",
                "  multiboot2 /boot/tlbcheck check\n",
            ),
            Self::Bench => (
                "bench",
                "tlbcheck: measure how this machine flushes TLBs",
                "  multiboot2 /boot/tlbcheck bench\n",
            ),
            Self::Linux => (
                "linux",
                "Quell with a Debian guest (console: first serial port)",
                "  multiboot2 /boot/quell\n  module2 /boot/linux.tar\n",
            ),
            Self::CheckQuell => (
                "check-quell",
                "Quell with tlbcheck as its guest",
                "  multiboot2 /boot/quell\n  module2 /boot/tlbcheck.tar\n",
            ),
            Self::CheckLinux => (
                "check-linux",
                "tlbcheck: the same check, started by the Linux boot protocol",
                "  linux /boot/tlbcheck.bzimage check\n",
            ),
            Self::Demo => (
                "demo",
                "Quell: flushing by IPI and by hypercall compared",
                "  multiboot2 /boot/quell\n  module2 /boot/demo.tar\n",
            ),
            Self::Guests => (
                "guests",
                "Quell with several guests (F1 to F8: consoles)",
                "  multiboot2 /boot/quell\n  module2 /boot/guests.tar\n",
            ),
        }
    }
}

pub(crate) fn image(args: &ImageArgs) -> Result<u8> {
    let made = match &args.bzimage {
        Some(path) => {
            write_bzimage(&workspace::build(workspace::TLBCHECK, Arch::X86_64)?, path)?;
            path
        }
        None => {
            make(args, None)?;
            &args.output
        }
    };
    println!("{}", made.display());
    Ok(0)
}

pub(crate) fn write_bzimage(tlbcheck: &Path, output: &Path) -> Result<()> {
    let elf = fs::read(tlbcheck).with_context(|| format!("cannot read {}", tlbcheck.display()))?;
    let image = flat::bzimage_from_elf(&elf).context("cannot make a bzImage of tlbcheck")?;
    fs::write(output, image).with_context(|| format!("cannot write {}", output.display()))
}

/// With an `epoch`, in seconds since 1970, the same files make the same image.
pub(crate) fn make(args: &ImageArgs, epoch: Option<u64>) -> Result<()> {
    let directory = tempfile::Builder::new().prefix("quell-image-").tempdir()?;
    let boot = directory.path().join("boot");
    fs::create_dir_all(boot.join("grub"))?;
    fs::write(boot.join("grub/grub.cfg"), menu(args))?;
    let tlbcheck = workspace::build(workspace::TLBCHECK, Arch::X86_64)?;
    fs::copy(&tlbcheck, boot.join("tlbcheck")).context("cannot copy tlbcheck")?;
    write_bzimage(&tlbcheck, &boot.join("tlbcheck.bzimage"))?;
    let hypervisor = Hypervisor::build(Arch::X86_64)?;
    fs::copy(hypervisor.image(), boot.join("quell")).context("cannot copy the hypervisor")?;

    let stock = StockGuest::prepare(Arch::X86_64)?;
    let (kernel, initrd) = (stock.kernel(), stock.initrd(args.exec.as_deref()));
    let cmdline = format!("{} panic=-1", Arch::X86_64.console());
    let linux = Guest {
        vcpus: args.vcpus.unwrap_or(VCPUS),
        memory: args.memory,
        ..Guest::new(Platform::X86_64, kernel, Some(initrd), cmdline)
    };
    let check = Guest { kernel: tlbcheck, initrd: None, cmdline: "check".to_owned(), ..linux.clone() };
    let demo = args.demo.then(|| (demo(args, &stock, &linux), CpuSet::below(DEMO_CPUS), "demo.tar"));
    let usual = [(linux, CpuSet::ALL, "linux.tar"), (check, CpuSet::ALL, "tlbcheck.tar")];
    for (guest, cpus, name) in usual.into_iter().chain(demo) {
        guest.check()?;
        guest.write_bundle(&hypervisor, cpus, &boot.join(name))?;
    }
    if let Some(path) = &args.guests {
        let file = MachineFile::read(path, Overrides::default())?;
        ensure!(file.machine.platform == Platform::X86_64, "the CD is for x86_64");
        Guests::prepare(&file, Switches::default())?.write_bundle(&hypervisor, &boot.join("guests.tar"))?;
    }
    let command = epoch.map_or_else(|| Ok(Command::new(MKRESCUE)), at_time)?;
    mkrescue(command, directory.path(), &args.output)
}

/// A guest that runs the demo's workload each way, with a reset between. With the reset it is told
/// the other way to flush, which its kernel then says.
fn demo(args: &ImageArgs, stock: &StockGuest, linux: &Guest) -> Guest {
    let vcpus = args.vcpus.unwrap_or(DEMO_VCPUS);
    let command = demo::flush::command(vcpus, args.rounds);
    let script = format!(
        "for run in $(seq {TURN_RUNS}); do {command} || exit; done; \
         dmesg | grep -q 'hypercall for remote TLB flush' || reboot -f"
    );
    Guest {
        vcpus,
        initrd: Some(stock.initrd(Some(&script))),
        cmdline: format!("{} quiet", linux.cmdline),
        flush: FlushMode::Ipi,
        reset: ResetPolicy::Reboot,
        switches: Switches { flush_turns: true, ..Switches::default() },
        ..linux.clone()
    }
}

/// The entries that the menu has.
fn entries(args: &ImageArgs) -> impl Iterator<Item = Entry> {
    let is_there = |entry: &Entry| match entry {
        Entry::Demo => args.demo,
        Entry::Guests => args.guests.is_some(),
        _ => true,
    };
    Entry::value_variants().iter().copied().filter(is_there)
}

fn menu(args: &ImageArgs) -> String {
    let added = entries(args).find(|entry| matches!(entry, Entry::Demo | Entry::Guests));
    let (default, ..) = args.default.or(added).unwrap_or(Entry::Check).menu();
    let mut text = format!(
        "if serial --unit=0 --speed=115200; then\n  \
           terminal_input console serial\n  \
           terminal_output console serial\n\
         fi\n\
         insmod all_video\n\
         set gfxpayload=1024x768x32,1024x768,auto\n\
         set timeout={}\n\
         set default={default}\n",
        args.timeout
    );
    for entry in entries(args) {
        let (id, title, lines) = entry.menu();
        // Writing to a string does not fail.
        let _ = write!(text, "menuentry \"{title}\" --id {id} {{\n{lines}}}\n");
    }
    text
}

fn mkrescue(mut command: Command, tree: &Path, output: &Path) -> Result<()> {
    command.arg("-o").arg(output).arg(tree).stdin(Stdio::null());
    let result = match command.output() {
        Ok(result) => result,
        Err(error) => {
            let program = command.get_program().display();
            bail!("cannot start {program} ({error}); Debian has it in {PACKAGES}, and faketime")
        }
    };
    let errors = String::from_utf8_lossy(&result.stderr);
    ensure!(
        result.status.success(),
        "{MKRESCUE} failed; it takes {PACKAGES}:\n{}",
        crate::run::tail(&errors)
    );
    ensure!(output.is_file(), "{MKRESCUE} made no {}", output.display());
    Ok(())
}

/// A CD for a BIOS alone, which runs this script of GRUB. The files are in `/boot`.
pub(crate) fn disc(script: &str, files: &[(&str, &Path)], output: &Path) -> Result<()> {
    let directory = tempfile::Builder::new().prefix("quell-disc-").tempdir()?;
    let boot = directory.path().join("boot");
    fs::create_dir_all(boot.join("grub"))?;
    fs::write(boot.join("grub/grub.cfg"), script)?;
    for (name, file) in files {
        fs::copy(file, boot.join(name)).with_context(|| format!("cannot copy {}", file.display()))?;
    }
    let mut command = Command::new(MKRESCUE);
    command.arg("-d").arg(BIOS_MODULES);
    mkrescue(command, directory.path(), output)
}

/// Not all programs that GRUB's starts read the time from the environment.
fn at_time(epoch: u64) -> Result<Command> {
    let time = OffsetDateTime::from_unix_timestamp(epoch.try_into()?)?;
    let (date, clock) = (time.date(), time.time());
    let (hour, minute, second) = clock.as_hms();
    let mut command = Command::new("faketime");
    command.arg("-f").arg(format!("{date} {hour:02}:{minute:02}:{second:02}")).arg(MKRESCUE);
    command.env("TZ", "UTC").env("SOURCE_DATE_EPOCH", epoch.to_string());
    Ok(command)
}

pub(crate) fn spec(platform: Platform, disc: &Path, uefi: bool) -> Result<Spec> {
    let firmware = uefi.then(|| PathBuf::from(OVMF));
    ensure!(firmware.as_ref().is_none_or(|path| path.is_file()), "there is no UEFI firmware at {OVMF}");
    let payload = Payload::Disc { disc: disc.to_owned(), firmware };
    Ok(Spec::new(platform, payload, 1, MACHINE_MEMORY))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cli;

    #[test]
    fn the_menu_has_each_entry_once_and_the_default_is_one_of_them() {
        let args = cli::arguments(&["--default", "check-quell", "--timeout", "0"]).expect("parses");
        let text = menu(&args);
        for entry in Entry::value_variants() {
            let id = format!("--id {} {{", entry.menu().0);
            let is_usual = !matches!(entry, Entry::Demo | Entry::Guests);
            assert_eq!(text.matches(&id).count(), usize::from(is_usual), "{id}");
        }
        assert!(text.contains("set default=check-quell\n") && text.contains("set timeout=0\n"), "{text}");
    }
}
