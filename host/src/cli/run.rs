//! `quell run` on the command line, and the sizes of guests.

use crate::arch::PlatformArgs;
use crate::machine_file::{KEYS, Key};
use crate::prelude::*;
use clap::{Arg, ArgAction, ArgMatches, Args, FromArgMatches, ValueEnum};

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
    #[command(flatten)]
    pub(crate) guest: GuestOptions,
    /// CPUs of the machine, which they share [default: 2]
    #[arg(long, value_name = "M", value_parser = clap::value_parser!(u32).range(1..=255))]
    pub(crate) cpus: Option<u32>,
    /// Compare the nested page table with the memory slots after each change of them; panics on a
    /// difference
    #[arg(long, conflicts_with = "bare")]
    pub(crate) paranoid: bool,
    /// Additional memory of the machine beyond the guest's, for `ctl add`
    #[arg(long, value_name = "SIZE", value_parser = size::parse, conflicts_with = "bare")]
    pub(crate) spare: Option<u64>,
    /// Change the hypervisor's behaviour for a test, for instance zap=everything; may be repeated
    #[arg(long, value_name = "SWITCH=VALUE", hide = true)]
    pub(crate) set: Vec<String>,
    /// Run the guest directly on the emulated machine, without Quell, for comparison
    #[arg(long, conflicts_with_all = ["file", "vcpus", "flush", "reset", "devices", "restore", "incoming", "set"])]
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
    /// The options about the machine, which take the place of a machine file's keys.
    pub(crate) fn overrides(&self) -> Overrides {
        Overrides { platform: self.platform, cpus: self.cpus }
    }
}

/// The options that describe a guest: those of its [keys](KEYS) that have one. There are none
/// beside a machine file, which describes its guests itself.
#[derive(Clone, Debug, Default)]
pub(crate) struct GuestOptions {
    /// The keys that were given, with their values as a machine file has them.
    pub(crate) keys: Vec<(&'static str, String)>,
}

impl GuestOptions {
    /// Whether the option of this key was given.
    pub(crate) fn has(&self, key: &str) -> bool {
        self.keys.iter().any(|(name, _)| *name == key)
    }
}

/// The keys that have an option.
fn options() -> impl Iterator<Item = &'static Key> {
    KEYS.iter().filter(|key| !key.option.long.is_empty())
}

impl Args for GuestOptions {
    fn augment_args(command: clap::Command) -> clap::Command {
        command.args(options().map(|key| {
            let (option, action) =
                (&key.option, if key.option.repeats { ArgAction::Append } else { ArgAction::Set });
            let argument = Arg::new(key.name).long(option.long).help(option.help);
            // Words for a kernel may begin with a hyphen.
            let argument = argument.allow_hyphen_values(key.name == "cmdline");
            let argument = match option.value_name {
                "" => argument.num_args(0).default_missing_value("true"),
                name => argument.value_name(name),
            };
            let others =
                key.excludes.0.split_whitespace().filter(|name| options().any(|key| key.name == *name));
            argument
                .value_parser((option.parser)())
                .action(action)
                .conflicts_with_all(others)
                .conflicts_with("file")
        }))
    }

    fn augment_args_for_update(command: clap::Command) -> clap::Command {
        Self::augment_args(command)
    }
}

impl FromArgMatches for GuestOptions {
    fn from_arg_matches(matches: &ArgMatches) -> clap::error::Result<Self> {
        let mut options = Self::default();
        options.update_from_arg_matches(matches)?;
        Ok(options)
    }

    fn update_from_arg_matches(&mut self, matches: &ArgMatches) -> clap::error::Result<()> {
        for key in options() {
            let Some(values) = matches.get_raw(key.name) else { continue };
            let values: Vec<_> = values.map(|value| value.to_string_lossy()).collect();
            self.keys.extend(key.written(&values).map(|value| (key.name, value)));
        }
        Ok(())
    }
}

/// Options that take the place of a machine file's keys.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Overrides {
    pub(crate) platform: PlatformArgs,
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
