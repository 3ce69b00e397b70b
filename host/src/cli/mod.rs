//! The command line.

mod bench;
mod ctl;
mod image;
mod look;
mod run;

pub(crate) use bench::*;
pub(crate) use ctl::*;
pub(crate) use image::*;
pub(crate) use look::*;
pub(crate) use run::*;

use crate::arch::PlatformArgs;
use crate::check::{Omission, On};
use crate::guest::cache::XenVersion;
use crate::machine::emulator::Wanted;
use crate::prelude::*;
use clap::{Args, Parser, Subcommand};
use hostlink::defect::Defect;

/// Quell, a small type-1 hypervisor built around TLB coherence.
///
/// It runs stock Linux guests on an emulated AMD64, Intel 64 or Arm64 machine (QEMU or Bochs, no
/// hardware virtualisation needed). On x86-64 it lets them flush remote TLBs by Hyper-V's
/// hypercalls instead of inter-processor interrupts. On Arm64, where the hardware flushes remote
/// TLBs, it removes guest memory with one flush instead of one for each page.
#[derive(Debug, Parser)]
#[command(
    name = "quell",
    bin_name = "./quell",
    version,
    max_term_width = 100,
    after_help = "\
Start with:
  ./quell demo                         the benefit of flushing by hypercall, in under three minutes
  ./quell run                          a Debian guest with a shell in this terminal; Ctrl-A x quits
  ./quell run --exec 'nproc; uname -r' one command in a guest; its status is passed on
  ./quell run examples/two.toml        two guests; `./quell console web` attaches to one of them
  ./quell top                          a live view of a guest that runs in another terminal
  ./quell check                        tlbcheck's verdict on Quell's TLB flushes
  ./quell test                         every test

The guest's kernel and busybox are kept in ~/.cache/quell, not installed into the system."
)]
pub(crate) struct Cli {
    /// The command to run.
    #[command(subcommand)]
    pub(crate) command: Command,
    /// The emulator: `10` for QEMU 10 or later (from Debian's backports, fetched into the cache, if
    /// the system has an older one), `system` for the system's own, or a directory with another
    /// QEMU's programs
    #[arg(long, global = true, value_name = "WHICH", default_value = "10", value_parser = Wanted::parse)]
    pub(crate) qemu: Wanted,
}

#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    Run(Box<RunArgs>),
    Demo(DemoArgs),
    /// Measure
    #[command(subcommand)]
    Bench(BenchCommand),
    Check(CheckArgs),
    Image(ImageArgs),
    ImageDebian(ImageDebianArgs),
    Release(ReleaseArgs),
    Report(ReportArgs),
    /// Build the documents as an HTML book, and print its location
    ///
    /// Uses mdBook, which is built the first time; that takes some minutes.
    Book,
    Ctl(CtlArgs),
    Top(TopArgs),
    Console(ConsoleArgs),
    Test(TestArgs),
    CheckStyle(CheckStyleArgs),
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

/// Check how TLBs are flushed: on the bare machine, on Quell, on KVM, on Xen, or on Quell on KVM
///
/// Boots tlbcheck, a small standalone kernel, there. Each of its rows passes, fails, or is skipped
/// with a reason. KVM is Debian's kernel with this system's QEMU in an initial RAM disk; Xen is
/// Debian's, with its tools in another. Nothing is installed. Some rows fail on KVM and on Xen:
/// docs/tlbcheck.md has the reasons. Exit status: 1 if a row fails, or none passes.
#[derive(Debug, Args)]
pub(crate) struct CheckArgs {
    /// What to run it on
    #[arg(long, value_name = "WHAT", default_value = "quell")]
    pub(crate) on: On,
    /// The version of Xen, with --on xen [default: 4.17]
    #[arg(long, value_name = "VERSION")]
    pub(crate) xen: Option<XenVersion>,
    #[command(flatten)]
    pub(crate) platform: PlatformArgs,
    /// CPUs of the machine
    #[arg(long, value_name = "N", default_value_t = 4, value_parser = clap::value_parser!(u32).range(1..=MAX_VCPUS as i64))]
    pub(crate) cpus: u32,
    /// Virtual CPUs on Quell [default: 66, so that VP indices need more than one bank; 8 on
    /// aarch64; with --on nested as many as CPUs]; without Quell always as many as CPUs
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=MAX_VCPUS as i64))]
    pub(crate) vcpus: Option<u32>,
    /// Run only these rows: names separated by commas; `*` at the end of a name matches any suffix
    #[arg(long, value_name = "ROWS")]
    pub(crate) only: Option<String>,
    /// Inject this defect into Quell's flush handling, to see that the row that detects it fails
    #[arg(long, value_name = "NAME", value_parser = parse_defect)]
    pub(crate) defect: Option<Defect>,
    /// Make tlbcheck omit these of its own instructions (aarch64), to see that the rows that need
    /// them fail
    #[arg(long, value_name = "NAME")]
    pub(crate) drop: Option<Omission>,
    #[command(flatten)]
    pub(crate) output: Output<180>,
}

/// The defect of this name.
fn parse_defect(name: &str) -> Result<Defect, String> {
    Defect::named(name).ok_or_else(|| {
        format!("there are {}", Defect::ALL.iter().map(|defect| defect.name()).collect::<Vec<_>>().join(", "))
    })
}

/// Show the benefit of flushing by hypercall: one workload, both ways, side by side
///
/// Runs thrash, which does little but provoke remote TLB flushes, in a stock Debian guest with more
/// virtual CPUs than CPUs: with IPIs and with hypercalls in turn. Only a CPUID hint differs. With
/// --arch aarch64 it makes a different comparison: memory is removed from a guest that uses it,
/// with a flush for each page and with one flush for all.
#[derive(Debug, Args)]
#[command(mut_arg("vcpus", |vcpus| {
    vcpus.default_value("8").help("Virtual CPUs of the guest, and threads of thrash")
}))]
pub(crate) struct DemoArgs {
    #[command(flatten)]
    pub(crate) platform: PlatformArgs,
    #[command(flatten)]
    pub(crate) size: SizeArgs,
    /// Runs of each side; the table shows medians
    #[arg(long, value_name = "N", default_value_t = 3, value_parser = clap::value_parser!(u32).range(1..=100))]
    pub(crate) runs: u32,
    /// Rounds of each of thrash's threads [default: 150]; on aarch64, how many times memory is
    /// added and removed [default: 3]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=1_000_000))]
    pub(crate) rounds: Option<u32>,
    #[command(flatten)]
    pub(crate) output: Output<120>,
}

/// Run every test: host tests, lints, and guests under QEMU and Bochs
///
/// Runs the host's unit, property and model tests and the linters, and meanwhile guests under QEMU
/// and Bochs. The last line is `N passed, N failed`; the status is 1 if any failed.
///
/// With --mutants it tests the tests instead: in a copy of the sources a statement is left out, two
/// are exchanged, a constant or an argument is changed, and the unit tests that get there have to
/// fail. `--mutants hypervisor/src/vm` tries a sample of that directory's code. What survives is
/// printed with its line; docs/mutants.md lists what changes nothing. All changes are in one build,
/// which takes some minutes; a mutant takes seconds.
#[derive(Debug, Args)]
pub(crate) struct TestArgs {
    /// Break the code below this directory, several separated by commas, or all, and check that the
    /// tests detect it; not part of the default run
    #[arg(long, value_name = "ROOM", num_args = 0..=1, default_missing_value = "")]
    pub(crate) mutants: Option<String>,
    /// Changes to try in each directory
    #[arg(long, value_name = "N", default_value_t = 300, requires = "mutants")]
    pub(crate) sample: usize,
    /// Try each change until five tests have found it, and name the tests that can go so that two
    /// are left which find it
    #[arg(long, requires = "mutants")]
    pub(crate) redundant: bool,
    /// Run only tests whose name contains this text, or one of several texts separated by commas
    #[arg(long, value_name = "TEXT")]
    pub(crate) filter: Option<String>,
    /// Run only the host's tests and a few guests that cover much code: two minutes, for use during
    /// development
    #[arg(long, conflicts_with_all = ["long", "mutants"])]
    pub(crate) quick: bool,
    /// Print the tests' names instead of running them
    #[arg(long)]
    pub(crate) list: bool,
    /// Run the tests that search for failures for longer, and try changes in all directories: hours
    #[arg(long)]
    pub(crate) long: bool,
    /// Run each test that boots machines this often
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..))]
    pub(crate) repeat: u32,
    /// Tests to run at one time [default: the number of CPUs, at most 4]
    #[arg(long, value_name = "N", value_parser = clap::builder::RangedU64ValueParser::<usize>::new().range(1..=64))]
    pub(crate) jobs: Option<usize>,
}

/// Check format, widths and sizes, and the subject of the last commit: two seconds
///
/// A part of what `./quell test` checks, for before a commit. Exit status: 1 if something is not as
/// CONTRIBUTING.md says.
#[derive(Debug, Args)]
pub(crate) struct CheckStyleArgs {
    /// Check this file's text as a commit's message, instead of the last commit's
    #[arg(long, value_name = "FILE")]
    pub(crate) message: Option<PathBuf>,
    /// Have git check this before each commit, and print the location of the hook
    #[arg(long, conflicts_with = "message")]
    pub(crate) install_hook: bool,
}

/// What a command is told by these words behind its name.
pub(crate) fn arguments<T: Args>(words: &[&str]) -> Result<T> {
    let command = T::augment_args(clap::Command::new("quell").no_binary_name(true));
    Ok(T::from_arg_matches(&command.try_get_matches_from(words)?)?)
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
        assert!(error(&["top", "--interval", "1"]).contains("50.."));
        assert!(error(&["top", "--json", "f"]).contains("--once"));
        assert!(error(&["run", "--exec", "true", "--kernel", "k"]).contains("cannot be used with"));
    }

    #[test]
    fn a_machine_file_describes_its_guests_itself() {
        for words in [
            ["--kernel", "k"],
            ["--program", "load"],
            ["--initrd", "i"],
            ["--append", "a"],
            ["--exec", "true"],
            ["--vcpus", "1"],
            ["--memory", "1G"],
            ["--flush", "ipi"],
            ["--reset", "exit"],
        ] {
            let message = error(&["run", "m.toml", words[0], words[1]]);
            let expected = format!("'[MACHINE.toml]' cannot be used with '{}", words[0]);
            assert!(message.contains(&expected), "{message}");
        }
        assert!(error(&["run", "m.toml", "--bare"]).contains("cannot be used with"));
        let machine =
            ["--arch", "aarch64", "--cpu", "max", "--cpus", "4", "--spare", "64M", "--timeout", "9"];
        assert!(Cli::try_parse_from(["quell", "run", "m.toml"].into_iter().chain(machine)).is_ok());
        assert!(error(&["run", "--check"]).contains("MACHINE.toml"));
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
