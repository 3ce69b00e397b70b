//! The command line.

mod bench;

pub(crate) use bench::*;

use crate::arch::{Arch, PlatformArgs};
use crate::check::subject::{Omission, On};
use crate::image::Entry;
use crate::machine::emulator::Wanted;
use crate::size;
use clap::{Args, Parser, Subcommand, ValueEnum};
use hostlink::config::{FlushMode, MAX_VCPUS, ResetPolicy};
use hostlink::ctl::{LogWay, parse_number};
use hostlink::defect::Defect;
use std::path::PathBuf;

/// Quell, a small type-1 hypervisor built around TLB coherence.
///
/// It runs stock Linux guests on an emulated AMD64 or Arm64 machine (QEMU, no hardware
/// virtualisation needed). On AMD64 it lets them flush remote TLBs by Hyper-V's hypercalls instead
/// of by inter-processor interrupts; on Arm64, where the hardware does that, it takes memory from
/// them by one flush instead of one for each page.
#[derive(Debug, Parser)]
#[command(
    name = "quell",
    bin_name = "./quell",
    version,
    max_term_width = 100,
    after_help = "\
Start with:
  ./quell demo                         what flushing by hypercall is worth, in under three minutes
  ./quell run                          a Debian guest with a shell here; Ctrl-A x leaves
  ./quell run --exec 'nproc; uname -r' one command in a guest; its status is passed on
  ./quell check                        what tlbcheck says of how Quell flushes TLBs
  ./quell test                         every test there is

The guest's kernel and busybox are kept in ~/.cache/quell, not installed into the system."
)]
pub(crate) struct Cli {
    /// What to do.
    #[command(subcommand)]
    pub(crate) command: Command,
    /// The emulator: `system`'s own, QEMU `10` (of Debian's backports, fetched into the cache,
    /// where the system has another), or the directory of another's programs
    #[arg(long, global = true, value_name = "WHICH", default_value = "system", value_parser = Wanted::parse)]
    pub(crate) qemu: Wanted,
}

#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    Run(RunArgs),
    Demo(DemoArgs),
    /// Measure
    #[command(subcommand)]
    Bench(BenchCommand),
    Check(CheckArgs),
    Image(ImageArgs),
    Release(ReleaseArgs),
    /// Make a book of the documents (HTML), and print where it is
    ///
    /// By mdBook, which the first time is built: that takes some minutes.
    Book,
    Ctl(CtlArgs),
    Test(TestArgs),
    Fetch(FetchArgs),
}

/// Fetch the guest's kernel and busybox into the cache, so that later runs need no network
#[derive(Debug, Args)]
pub(crate) struct FetchArgs {
    /// Architecture of the guest
    #[arg(long, value_name = "ARCH", default_value = "x86_64")]
    pub(crate) arch: Arch,
    /// Fetch the newest versions even if the cache is filled
    #[arg(long)]
    pub(crate) refresh: bool,
}

/// Check how TLBs are flushed: on the bare machine, on Quell, or on Linux KVM
///
/// Boots tlbcheck, a small kernel of its own, there. Each of its rows passes, fails, or is skipped
/// for the reason given. KVM is Debian's kernel with this system's QEMU in an initial RAM disk;
/// nothing is installed. Exit status: 1 if a row fails.
#[derive(Debug, Args)]
pub(crate) struct CheckArgs {
    /// What it runs on
    #[arg(long, value_name = "WHAT", default_value = "quell")]
    pub(crate) on: On,
    #[command(flatten)]
    pub(crate) platform: PlatformArgs,
    /// CPUs of the machine
    #[arg(long, value_name = "N", default_value_t = 4, value_parser = clap::value_parser!(u32).range(1..=MAX_VCPUS as i64))]
    pub(crate) cpus: u32,
    /// Virtual CPUs that it sees on Quell [default: 66, so that VP indices need more than one bank;
    /// on aarch64 8]; as many as CPUs elsewhere
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=MAX_VCPUS as i64))]
    pub(crate) vcpus: Option<u32>,
    /// Run these rows only: names separated by commas, `*` at the end of one for any end
    #[arg(long, value_name = "ROWS")]
    pub(crate) only: Option<String>,
    /// Make Quell serve flush hypercalls wrongly in this way, to see the row that catches it fail
    #[arg(long, value_name = "NAME", value_parser = parse_defect)]
    pub(crate) defect: Option<Defect>,
    /// Make tlbcheck itself leave out these of its own instructions (aarch64), to see the rows that
    /// need them fail
    #[arg(long, value_name = "NAME")]
    pub(crate) drop: Option<Omission>,
    /// Give up after so many seconds (longer ones while other programs keep the CPUs busy)
    #[arg(long, value_name = "SECONDS", default_value_t = 180, value_parser = clap::value_parser!(u64).range(1..))]
    pub(crate) timeout: u64,
    /// Write the rows to this file, as docs/json.md describes
    #[arg(long, value_name = "FILE")]
    pub(crate) json: Option<PathBuf>,
}

/// Make a bootable CD: Quell and tlbcheck behind GRUB's menu
///
/// For real machines, clouds and other hypervisors, by BIOS and by UEFI. Everything talks on the
/// first serial port, 115,200 baud. Takes GRUB's and xorriso's packages. With --bzimage it makes no
/// CD, but tlbcheck for loaders of Linux kernels.
#[derive(Debug, Args)]
pub(crate) struct ImageArgs {
    /// Where it goes
    #[arg(long, short, value_name = "FILE", default_value = "quell.iso")]
    pub(crate) output: PathBuf,
    /// What starts when nobody chooses
    #[arg(long, value_name = "ENTRY", default_value = "check")]
    pub(crate) default: Entry,
    /// Seconds to choose
    #[arg(long, value_name = "SECONDS", default_value_t = 5)]
    pub(crate) timeout: u32,
    /// Run this shell command in the Debian guest instead of a shell, then power off
    #[arg(long, value_name = "COMMAND")]
    pub(crate) exec: Option<String>,
    /// Virtual CPUs of the guests
    #[arg(long, value_name = "N", default_value_t = 2, value_parser = clap::value_parser!(u32).range(1..=MAX_VCPUS as i64))]
    pub(crate) vcpus: u32,
    /// Memory of the guests, for example 512M or 1G
    #[arg(long, value_name = "SIZE", default_value = "512M", value_parser = size::parse)]
    pub(crate) memory: u64,
    /// Make tlbcheck as a Linux bzImage instead of a CD
    #[arg(long, value_name = "FILE", conflicts_with_all = ["output", "default", "timeout", "exec", "vcpus", "memory"])]
    pub(crate) bzimage: Option<PathBuf>,
}

/// Make the files of a release: the CD, tlbcheck for both architectures, checksums, a bill of
/// materials, licences
///
/// The same sources give the same bits, wherever the tree lies: paths, times and debugging
/// information are left out or fixed. With --check all of it is built once more, in a copy of the
/// tree, and compared; the status is 1 if a file differs. A dependency without a licence, or with
/// one that is not allowed, is an error.
///
/// The time in the CD is that of the last commit, or SOURCE_DATE_EPOCH. Debian's kernel and busybox
/// in it are those of the cache, see `./quell fetch`.
#[derive(Debug, Args)]
pub(crate) struct ReleaseArgs {
    /// Where the files go: a directory with nothing else in it
    #[arg(long, short, value_name = "DIRECTORY", default_value = "release")]
    pub(crate) output: PathBuf,
    /// Build twice, in two places, and compare bit by bit
    #[arg(long)]
    pub(crate) check: bool,
    /// Print the files with their checksums as JSON, as docs/json.md describes
    #[arg(long)]
    pub(crate) json: bool,
}

/// The defect of this name.
fn parse_defect(name: &str) -> Result<Defect, String> {
    Defect::named(name).ok_or_else(|| format!("there are {}", Defect::ALL.map(Defect::name).join(", ")))
}

/// Boot a guest with its console on this terminal
///
/// Without --kernel the guest is Debian's kernel with a busybox shell. Its `poweroff` ends the run
/// with status 0, `reboot` starts it again, Ctrl-A x leaves at once.
///
/// Exit status: that of the --exec command; 65 after a triple fault of the guest, 66 for a guest
/// that cannot be started, 69 for a machine that lacks something, 70 after a failure of the
/// hypervisor, 71 after a guest's reset with --reset exit, 72 after one that kept a processor to
/// itself, 73 if no page was left for a nested page table, 124 after --timeout, 128 + N after
/// signal N.
#[derive(Debug, Args)]
pub(crate) struct RunArgs {
    #[command(flatten)]
    pub(crate) platform: PlatformArgs,
    /// Guest kernel: a Linux bzImage or an ELF file with a PVH note; for aarch64 an uncompressed
    /// Image [default: Debian's cloud kernel]
    #[arg(long, value_name = "FILE")]
    pub(crate) kernel: Option<PathBuf>,
    /// Run one of this project's bare programs instead, built if need be; --append tells it what to
    /// do
    #[arg(long, value_name = "NAME", conflicts_with_all = ["kernel", "initrd", "exec"])]
    pub(crate) program: Option<Program>,
    /// Guest's initial RAM disk [default: busybox, unless --kernel is given]
    #[arg(long, value_name = "FILE")]
    pub(crate) initrd: Option<PathBuf>,
    /// Words for the kernel's command line, after that with its console
    #[arg(long, value_name = "WORDS", allow_hyphen_values = true)]
    pub(crate) append: Option<String>,
    /// Run this shell command in the guest instead of a shell, then power off
    #[arg(long, value_name = "COMMAND", conflicts_with_all = ["kernel", "initrd"])]
    pub(crate) exec: Option<String>,
    #[command(flatten)]
    pub(crate) size: SizeArgs,
    /// How the guest is told to flush remote TLBs [default: hypercall]; for x86_64
    #[arg(long, value_name = "WAY")]
    pub(crate) flush: Option<Flush>,
    /// What a reset by the guest does [default: reboot; exit with --exec]
    #[arg(long, value_name = "WHAT")]
    pub(crate) reset: Option<Reset>,
    /// Compare the nested page table with the memory slots after each change of them; panics on a
    /// difference
    #[arg(long, conflicts_with = "bare")]
    pub(crate) paranoid: bool,
    /// Memory that the machine has beyond the guest's, for `ctl add`
    #[arg(long, value_name = "SIZE", value_parser = size::parse, conflicts_with = "bare")]
    pub(crate) spare: Option<u64>,
    /// Change the hypervisor for a test, for instance zap=everything; may be repeated
    #[arg(long, value_name = "SWITCH=VALUE", hide = true)]
    pub(crate) set: Vec<String>,
    /// Run the guest directly on the emulated machine, without Quell, for comparison
    #[arg(long, conflicts_with_all = ["vcpus", "flush", "reset", "set"])]
    pub(crate) bare: bool,
    /// Kill the machine after so many seconds (longer ones while other programs keep the CPUs busy)
    #[arg(long, value_name = "SECONDS", value_parser = clap::value_parser!(u64).range(1..))]
    pub(crate) timeout: Option<u64>,
    /// Write the hypervisor's counters, of each vCPU and added up, to this file: every second, and
    /// at the end
    #[arg(long, value_name = "FILE")]
    pub(crate) json: Option<PathBuf>,
    /// Write the hypervisor's log to this file [default: shown if something fails]
    #[arg(long, value_name = "FILE")]
    pub(crate) log: Option<PathBuf>,
    /// One more argument for QEMU, for those who work on the hypervisor; may be repeated
    #[arg(long, value_name = "ARG", allow_hyphen_values = true)]
    pub(crate) qemu_arg: Vec<String>,
}

/// A program for bare machines
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Program {
    /// Tries everything: test=NAME seed=N count=N
    Hostile,
    /// Uses memory as it is told, by its command line and on its console
    Load,
    /// Counts instructions and does wrong things: bench=NAME or test=NAME; for x86_64
    Probe,
}

/// Show what flushing by hypercall is worth: one workload, both ways, side by side
///
/// Runs thrash, which does little but provoke remote TLB flushes, in a stock Debian guest with more
/// virtual CPUs than CPUs: with IPIs and with hypercalls in turn. Only a CPUID hint differs. With
/// --arch aarch64 it is another comparison: memory is taken from a guest that uses it, with a flush
/// for each page and with one flush for all.
#[derive(Debug, Args)]
pub(crate) struct DemoArgs {
    #[command(flatten)]
    pub(crate) platform: PlatformArgs,
    #[command(flatten)]
    pub(crate) size: DemoSizeArgs,
    /// Runs of each side; the table shows medians
    #[arg(long, value_name = "N", default_value_t = 3, value_parser = clap::value_parser!(u32).range(1..=100))]
    pub(crate) runs: u32,
    /// Rounds of each of thrash's threads [default: 150]; on aarch64, how often memory comes and
    /// goes [default: 3]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=1_000_000))]
    pub(crate) rounds: Option<u32>,
    /// Give up on a run after so many seconds (longer ones while other programs keep the CPUs busy)
    #[arg(long, value_name = "SECONDS", default_value_t = 120, value_parser = clap::value_parser!(u64).range(1..))]
    pub(crate) timeout: u64,
    /// Write what was measured to this file, as docs/json.md describes
    #[arg(long, value_name = "FILE")]
    pub(crate) json: Option<PathBuf>,
}

/// Talk to the hypervisor of a machine that runs: memory slots, dirty logging, counters
///
/// `./quell run` in one terminal, `./quell ctl slots` in another. What the hypervisor refuses
/// changes nothing; the message says what was wrong, and the status is 1.
#[derive(Debug, Args)]
pub(crate) struct CtlArgs {
    /// The machine, as `./quell ctl vms` names it [default: the only one]
    #[arg(long, value_name = "NAME", global = true)]
    pub(crate) vm: Option<String>,
    /// Answer in JSON
    #[arg(long, global = true)]
    pub(crate) json: bool,
    #[command(subcommand)]
    pub(crate) command: CtlCommand,
}

#[derive(Debug, Subcommand)]
pub(crate) enum CtlCommand {
    /// List the virtual machines that run
    Vms,
    /// List the memory slots
    Slots,
    /// Add zeroed memory to the guest
    ///
    /// The guest is not told, neither by ACPI nor otherwise: the memory is for programs that know
    /// its address, as a device's memory would be. It comes from what the machine has left.
    Add {
        /// First guest physical address, a multiple of 4096
        #[arg(value_parser = number)]
        gpa: u64,
        /// Size, for example 64M; a multiple of 4096
        #[arg(value_parser = size::parse)]
        size: u64,
        /// The guest may only read it
        #[arg(long)]
        read_only: bool,
    },
    /// Take memory away again that was added
    Delete {
        /// Number of the slot, as `slots` shows it
        slot: u16,
    },
    /// Log which pages of a slot are written
    #[command(subcommand)]
    Log(LogCommand),
    /// Migrate a slot in vain: log its stores, copy its pages, and undo all of it
    ///
    /// What a migration that is cancelled costs. All pages of the slot are copied to free memory of
    /// the machine, and then for some rounds those that were written meanwhile. At the end the log
    /// is ended, and small pages become large ones again. The guest runs all the time.
    Migrate {
        /// Number of the slot
        slot: u16,
        /// How often what was written meanwhile is copied again
        #[arg(long, value_name = "N", default_value_t = 3)]
        rounds: u16,
        /// How the hypervisor notices stores
        #[arg(long, value_name = "WAY", default_value = "dirty-bits")]
        way: Way,
    },
    /// Show the hypervisor's counters, added up over the vCPUs
    Stats,
}

#[derive(Debug, Subcommand)]
pub(crate) enum LogCommand {
    /// Begin to log
    Start {
        /// Number of the slot
        slot: u16,
        /// How the hypervisor notices stores
        #[arg(long, value_name = "WAY", default_value = "dirty-bits")]
        way: Way,
    },
    /// Show the pages written since the last time, and forget them
    Fetch {
        /// Number of the slot
        slot: u16,
    },
    /// End the log
    Stop {
        /// Number of the slot
        slot: u16,
    },
}

/// [`LogWay`] on the command line.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Way {
    /// By the dirty bits of the nested page tables: no exits
    DirtyBits,
    /// By write faults: an exit for the first store to each page
    WriteProtection,
}

impl From<Way> for LogWay {
    fn from(way: Way) -> Self {
        match way {
            Way::DirtyBits => Self::DirtyBits,
            Way::WriteProtection => Self::WriteProtection,
        }
    }
}

/// A decimal number, or a hexadecimal one behind `0x`.
fn number(text: &str) -> Result<u64, String> {
    parse_number(text).map_err(|_| format!("'{text}' is not a number; write for example 0x100000000"))
}

/// Run every test there is: host tests, lints, and guests under QEMU
///
/// Runs the host's unit, property and model tests, the linters, and then guests under QEMU. The
/// last line is `N passed, N failed`; the status is 1 if any failed.
///
/// With --mutants it tests the tests instead: cargo-mutants spoils one expression after the other
/// in the flush engine and in the hypercall decoders, and the unit tests of that crate have to
/// notice. That takes about two seconds for each of some hundred mutants; `--filter coherence` or
/// `--filter tlfs` does one crate. A survivor fails the run unless docs/mutants.md lists it with a
/// reason. cargo-mutants is installed by cargo if it is missing; it works on a copy of the sources.
#[derive(Debug, Args)]
pub(crate) struct TestArgs {
    /// Spoil the code and see whether the tests notice; not part of the default run
    #[arg(long)]
    pub(crate) mutants: bool,
    /// Only tests whose name contains this, or one of several texts with commas between them
    #[arg(long, value_name = "TEXT")]
    pub(crate) filter: Option<String>,
    /// Only the host's tests and a few guests that go many ways: two minutes, for work in between
    #[arg(long, conflicts_with_all = ["long", "mutants"])]
    pub(crate) quick: bool,
    /// Print the tests' names instead of running them
    #[arg(long)]
    pub(crate) list: bool,
    /// Run the tests that search for something for longer: some minutes more in all
    #[arg(long)]
    pub(crate) long: bool,
    /// Tests at one time; as many as there are CPUs, 4 at most, if it is not given
    #[arg(long, value_name = "N", value_parser = clap::builder::RangedU64ValueParser::<usize>::new().range(1..=64))]
    pub(crate) jobs: Option<usize>,
}

/// [`SizeArgs`] with the demo's defaults: overcommitted.
#[derive(Clone, Copy, Debug, Args)]
pub(crate) struct DemoSizeArgs {
    /// Virtual CPUs of the guest, and threads of thrash
    #[arg(long, value_name = "N", default_value_t = 8,
          value_parser = clap::value_parser!(u32).range(1..=i64::from(MAX_VCPUS)))]
    pub(crate) vcpus: u32,
    /// CPUs of the machine that they share
    #[arg(long, value_name = "M", default_value_t = 2, value_parser = clap::value_parser!(u32).range(1..=255))]
    pub(crate) cpus: u32,
    /// Guest memory, for example 512M or 1G
    #[arg(long, value_name = "SIZE", default_value = "512M", value_parser = size::parse)]
    pub(crate) memory: u64,
}

/// The guest's size, and the machine's.
#[derive(Clone, Copy, Debug, Args)]
pub(crate) struct SizeArgs {
    /// Virtual CPUs of the guest
    #[arg(long, value_name = "N", default_value_t = 2,
          value_parser = clap::value_parser!(u32).range(1..=i64::from(MAX_VCPUS)))]
    pub(crate) vcpus: u32,
    /// CPUs of the machine that they share
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

#[cfg(test)]
mod tests {
    use super::*;
    use clap::CommandFactory;

    fn error(args: &[&str]) -> String {
        let args = ["quell"].iter().chain(args);
        Cli::try_parse_from(args).expect_err("is refused").to_string()
    }

    #[test]
    fn the_definition_is_consistent() {
        Cli::command().debug_assert();
    }

    #[test]
    fn bad_values_are_named_with_what_is_allowed() {
        assert!(error(&["run", "--vcpus", "0"]).contains("1..=255"));
        assert!(error(&["run", "--vcpus", "256"]).contains("1..=255"));
        assert!(error(&["run", "--memory", "lots"]).contains("512M"));
        assert!(error(&["run", "--flush", "never"]).contains("hypercall"));
        assert!(error(&["ctl", "add", "here", "4K"]).contains("0x100000000"));
        assert!(error(&["ctl", "delete", "70000"]).contains("65535"));
        assert!(error(&["run", "--exec", "true", "--kernel", "k"]).contains("cannot be used with"));
    }

    #[test]
    fn a_bzimage_has_none_of_a_cds_options_and_needs_none() {
        assert!(Cli::try_parse_from(["quell", "image", "--bzimage", "b"]).is_ok());
        for option in [["--output", "o"], ["--default", "bench"], ["--exec", "true"], ["--memory", "1G"]] {
            let [name, value] = option;
            assert!(
                error(&["image", "--bzimage", "b", name, value]).contains("cannot be used with"),
                "{name}"
            );
        }
    }
}
