//! `quell run` on the command line, and the sizes of guests.

use crate::arch::{Arch, ArmCpu, PlatformArgs};
use crate::machine::devices::Network;
use crate::size;
use anyhow::{Result, bail};
use clap::{Args, ValueEnum};
use hostlink::config::{FlushMode, MAX_VCPUS, ResetPolicy};
use std::path::PathBuf;

/// Boot a guest with its console on this terminal, or several guests from a file
///
/// Without --kernel the guest is Debian's kernel with a busybox shell. Its `poweroff` ends the run
/// with status 0, `reboot` restarts it, Ctrl-A x quits immediately.
///
/// A machine file describes a machine with several guests: examples/two.toml is one to start with,
/// and docs/machine-file.md describes all keys. --check shows what would be built from it. The
/// guests' consoles are shown with their names, and logged; `./quell console NAME` attaches to one
/// of them, to type there. Ctrl-C ends the machine.
///
/// Exit status: that of the --exec command; 65 if the processor refuses the guest's state, 66 for a
/// guest that cannot be started, 69 for a machine that lacks something, 70 after a failure of the
/// hypervisor, 71 after a guest's reset with --reset exit (a triple fault is one), 72 if a
/// processor did not leave guest mode, 73 if no page was left for a nested page table, 124 after
/// --timeout, 128 + N after signal N.
#[derive(Debug, Args)]
pub(crate) struct RunArgs {
    /// Machine file with several guests, for example examples/two.toml; instead of the options that
    /// describe one guest
    #[arg(value_name = "MACHINE.toml")]
    pub(crate) file: Option<PathBuf>,
    /// Check the machine file, show what would be built, and start nothing
    #[arg(long, requires = "file")]
    pub(crate) check: bool,
    #[command(flatten)]
    pub(crate) platform: PlatformArgs,
    /// Guest kernel: a Linux bzImage or an ELF file with a PVH note; for aarch64 an uncompressed
    /// Image [default: Debian's cloud kernel]
    #[arg(long, value_name = "FILE")]
    pub(crate) kernel: Option<PathBuf>,
    /// Run one of this project's bare programs instead, built if necessary; --append passes its
    /// instructions
    #[arg(long, value_name = "NAME", conflicts_with_all = ["kernel", "initrd", "exec"])]
    pub(crate) program: Option<Program>,
    /// Guest's initial RAM disk [default: busybox, unless --kernel is given]
    #[arg(long, value_name = "FILE")]
    pub(crate) initrd: Option<PathBuf>,
    /// Words to append to the kernel's command line, after the console
    #[arg(long, value_name = "WORDS", allow_hyphen_values = true)]
    pub(crate) append: Option<String>,
    /// Run this shell command in the guest instead of a shell, then power off
    #[arg(long, value_name = "COMMAND", conflicts_with_all = ["kernel", "initrd"])]
    pub(crate) exec: Option<String>,
    /// Virtual CPUs of the guest [default: 2]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=i64::from(MAX_VCPUS)))]
    pub(crate) vcpus: Option<u32>,
    /// CPUs of the machine, which they share [default: 2]
    #[arg(long, value_name = "M", value_parser = clap::value_parser!(u32).range(1..=255))]
    pub(crate) cpus: Option<u32>,
    /// Guest memory, for example 512M or 1G [default: 512M]
    #[arg(long, value_name = "SIZE", value_parser = size::parse)]
    pub(crate) memory: Option<u64>,
    /// How the guest is told to flush remote TLBs [default: hypercall]; for x86_64
    #[arg(long, value_name = "WAY")]
    pub(crate) flush: Option<Flush>,
    /// Effect of a reset by the guest [default: reboot; exit with --exec]
    #[arg(long, value_name = "WHAT")]
    pub(crate) reset: Option<Reset>,
    /// Compare the nested page table with the memory slots after each change of them; panics on a
    /// difference
    #[arg(long, conflicts_with = "bare")]
    pub(crate) paranoid: bool,
    /// Give the guest a disk: the image of one, as an NVMe device that the guest owns. Without
    /// --kernel, --initrd and --exec the guest boots from the first; `./quell image-debian` makes
    /// one. May be repeated
    #[arg(long, value_name = "FILE")]
    pub(crate) disk: Vec<PathBuf>,
    /// Give the guest a virtio disk. It never boots from it without --kernel or --initrd. May be
    /// repeated
    #[arg(long, value_name = "FILE")]
    pub(crate) virtio_disk: Vec<PathBuf>,
    /// Connect the guest to a network, by a virtio device that it owns
    #[arg(long, value_name = "NETWORK")]
    pub(crate) net: Option<Network>,
    /// Give the guest a PCI function of the machine, by address (00:04.0) or kind (nvme); may be
    /// repeated. The functions that it needs go together
    #[arg(long, value_name = "FUNCTION", conflicts_with = "bare")]
    pub(crate) device: Vec<String>,
    /// Additional memory of the machine beyond the guest's, for `ctl add`
    #[arg(long, value_name = "SIZE", value_parser = size::parse, conflicts_with = "bare")]
    pub(crate) spare: Option<u64>,
    /// Change the hypervisor's behaviour for a test, for instance zap=everything; may be repeated
    #[arg(long, value_name = "SWITCH=VALUE", hide = true)]
    pub(crate) set: Vec<String>,
    /// Run the guest directly on the emulated machine, without Quell, for comparison
    #[arg(long, conflicts_with_all = ["vcpus", "flush", "reset", "set"])]
    pub(crate) bare: bool,
    /// Kill the machine after this many seconds (longer while other programs keep the CPUs busy)
    #[arg(long, value_name = "SECONDS", value_parser = clap::value_parser!(u64).range(1..))]
    pub(crate) timeout: Option<u64>,
    /// Write the hypervisor's counters, per vCPU and summed, to this file: every second, and at the
    /// end. With --check, what would be built; `-` is standard output
    #[arg(long, value_name = "FILE")]
    pub(crate) json: Option<PathBuf>,
    /// Record what each CPU does and which flush reaches which vCPU, and write it to this file for
    /// Perfetto's viewer (ui.perfetto.dev). Starts another image of the hypervisor, which records
    /// it
    #[arg(long, value_name = "FILE", conflicts_with = "bare")]
    pub(crate) trace: Option<PathBuf>,
    /// Write the hypervisor's log to this file [default: shown if something fails; with a machine
    /// file beside the consoles' logs]
    #[arg(long, value_name = "FILE")]
    pub(crate) log: Option<PathBuf>,
    /// One more argument for QEMU, for hypervisor development; may be repeated
    #[arg(long, value_name = "ARG", allow_hyphen_values = true)]
    pub(crate) qemu_arg: Vec<String>,
}

impl RunArgs {
    /// The size of the guest and of the machine.
    pub(crate) fn size(&self) -> SizeArgs {
        SizeArgs {
            vcpus: self.vcpus.unwrap_or(2),
            cpus: self.cpus.unwrap_or(2),
            memory: self.memory.unwrap_or(512 * size::MIB),
        }
    }

    /// The options about the machine, which take the place of a machine file's keys.
    pub(crate) fn overrides(&self) -> Overrides {
        Overrides { arch: self.platform.arch, cpu: self.platform.cpu, cpus: self.cpus }
    }

    /// Refuses options that describe a guest beside a machine file, which does so.
    pub(crate) fn refuse_guest_options(&self) -> Result<()> {
        let Some(file) = &self.file else { return Ok(()) };
        let given = [
            ("--kernel", self.kernel.is_some(), "kernel = \"FILE\""),
            ("--program", self.program.is_some(), "program = \"NAME\""),
            ("--initrd", self.initrd.is_some(), "initrd = \"FILE\""),
            ("--append", self.append.is_some(), "cmdline = \"WORDS\""),
            ("--exec", self.exec.is_some(), "exec = \"COMMAND\""),
            ("--vcpus", self.vcpus.is_some(), "vcpus = 2"),
            ("--memory", self.memory.is_some(), "memory = \"256M\""),
            ("--flush", self.flush.is_some(), "flush = \"ipi\""),
            ("--reset", self.reset.is_some(), "reset = \"exit\""),
            ("--disk", !self.disk.is_empty(), "disks = [\"FILE\"]"),
            ("--virtio-disk", !self.virtio_disk.is_empty(), "virtio_disks = [\"FILE\"]"),
            ("--net", self.net.is_some(), "net = \"user\""),
            ("--device", !self.device.is_empty(), "devices = [\"00:04.0\"]"),
        ];
        if let Some((option, _, instead)) = given.into_iter().find(|(_, is_given, _)| *is_given) {
            bail!(
                "{option} describes one guest, and {} describes its guests itself: write {instead} \
                 below a [[guest]] there",
                file.display()
            );
        }
        if self.bare {
            bail!("--bare runs one guest without Quell: leave out {}, or --bare", file.display());
        }
        Ok(())
    }
}

/// Options that take the place of a machine file's keys.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Overrides {
    pub(crate) arch: Option<Arch>,
    pub(crate) cpu: Option<ArmCpu>,
    pub(crate) cpus: Option<u32>,
}

/// A program for bare machines
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Program {
    /// Tries everything: test=NAME seed=N count=N
    Hostile,
    /// Uses memory as instructed by its command line and console
    Load,
    /// Counts instructions and makes invalid requests: bench=NAME or test=NAME; for x86_64
    Probe,
}

/// The size of the guest and of the machine.
#[derive(Clone, Copy, Debug, Args)]
pub(crate) struct SizeArgs {
    /// Virtual CPUs of the guest
    #[arg(long, value_name = "N", default_value_t = 2,
          value_parser = clap::value_parser!(u32).range(1..=i64::from(MAX_VCPUS)))]
    pub(crate) vcpus: u32,
    /// CPUs of the machine, which they share
    #[arg(long, value_name = "M", default_value_t = 2, value_parser = clap::value_parser!(u32).range(1..=255))]
    pub(crate) cpus: u32,
    /// Guest memory, for example 512M or 1G
    #[arg(long, value_name = "SIZE", default_value = "512M", value_parser = size::parse)]
    pub(crate) memory: u64,
}

/// [`FlushMode`] on the command line.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Flush {
    /// By inter-processor interrupts, as on a bare machine
    Ipi,
    /// By Hyper-V's flush hypercalls
    Hypercall,
}

impl From<Flush> for FlushMode {
    fn from(flush: Flush) -> Self {
        match flush {
            Flush::Ipi => Self::Ipi,
            Flush::Hypercall => Self::Hypercall,
        }
    }
}

/// [`ResetPolicy`] on the command line.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Reset {
    /// Start the guest again
    Reboot,
    /// End the run
    Exit,
    /// Let the hypervisor panic, to see its report
    #[value(hide = true)]
    Panic,
}

impl From<Reset> for ResetPolicy {
    fn from(reset: Reset) -> Self {
        match reset {
            Reset::Reboot => Self::Reboot,
            Reset::Exit => Self::Exit,
            Reset::Panic => Self::Panic,
        }
    }
}
