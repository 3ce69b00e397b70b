//! `quell ctl` on the command line.

use crate::migration::Address;
use crate::prelude::*;
use clap::builder::{PossibleValue, PossibleValuesParser, TypedValueParser};
use clap::{Args, Subcommand};
use hostlink::ctl::{LogWay, parse_number};

/// Talk to the hypervisor of a running machine: guests, memory slots, dirty logging, counters
///
/// Start `./quell run` in one terminal and `./quell ctl slots` in another. A refused request
/// changes nothing; the message gives the reason, and the exit status is 1.
#[derive(Debug, Args)]
pub(crate) struct CtlArgs {
    /// The machine, as `./quell ctl vms` names it [default: the only one]
    #[arg(long, value_name = "NAME", global = true)]
    pub(crate) vm: Option<String>,
    /// The guest of the machine that the request is about [default: the first one]
    #[arg(long, value_name = "NAME", global = true, value_parser = guest)]
    pub(crate) guest: Option<Name>,
    /// Answer in JSON
    #[arg(long, global = true)]
    pub(crate) json: bool,
    #[command(subcommand)]
    pub(crate) command: CtlCommand,
}

#[derive(Debug, Subcommand)]
pub(crate) enum CtlCommand {
    /// List the running virtual machines
    Vms,
    /// List the memory slots
    Slots,
    /// Add zeroed memory to the guest
    ///
    /// The guest is not notified, by ACPI or otherwise: the memory is for programs that know its
    /// address, like a device's memory. It is allocated from the machine's free memory.
    Add {
        /// First guest physical address, a multiple of 4096
        #[arg(value_parser = number)]
        gpa: u64,
        /// Size, for example 64M; a multiple of 4096
        #[arg(value_parser = size::parse)]
        size: u64,
        /// Allow the guest only to read it
        #[arg(long)]
        read_only: bool,
    },
    /// Remove memory that was added
    Delete(OfSlot),
    /// Log which pages of a slot are written
    #[command(subcommand)]
    Log(LogCommand),
    /// Create, start, pause, resume, wake, reset, save, migrate or destroy a guest
    ///
    /// Example: ./quell ctl guest pause web. docs/migration.md describes saving and migrating
    /// guests.
    #[command(subcommand)]
    Guest(GuestCommand),
    /// Show how much memory is free
    Memory,
    /// Show the hypervisor's counters, summed over the vCPUs of a guest
    Stats,
}

/// What is done with a guest. A guest is named as in the machine file.
#[derive(Clone, Debug, Subcommand)]
pub(crate) enum GuestCommand {
    /// List the guests of the machine file, and what they do
    List,
    /// Create a guest that does not exist: it gets its memory, and its kernel is loaded
    Create(OfGuest),
    /// Start a guest that has been created, or that has ended
    Start(OfGuest),
    /// Stop all vCPUs of a guest, for a while
    Pause(OfGuest),
    /// Let a paused guest go on
    Resume(OfGuest),
    /// Wake a guest that sleeps (`echo freeze > /sys/power/state`), as its sleep button would
    Wake(OfGuest),
    /// Restart a guest, as its reset button would
    Reset(OfGuest),
    /// End a guest, whatever it does, and free its memory
    Destroy(OfGuest),
    /// Save a guest to a file, from which `./quell run --restore FILE` lets it go on
    ///
    /// The file is complete or absent. When it is complete the guest is gone here, unless
    /// --keep-running is given: then it runs on, and stands still only while the last of it is
    /// copied.
    Save(SaveArgs),
    /// Move a guest to another machine, which `./quell run --incoming ADDRESS` has started
    ///
    /// The guest runs while it is sent, and stands still for the last of it. Whatever fails, it
    /// never runs on both machines. Ctrl-C cancels: it runs on here. Exit status: 1 if it
    /// was not moved, and runs on here; 3 if it was given away and nobody answers who knows what
    /// came of it: then it stands still, and the same command finds out.
    Migrate(MigrateArgs),
}

#[derive(Clone, Debug, Args)]
pub(crate) struct SaveArgs {
    /// The guest
    #[arg(value_parser = guest)]
    pub(crate) name: Name,
    /// The file
    pub(crate) file: PathBuf,
    /// Let the guest run on, and copy what it writes meanwhile
    #[arg(long)]
    pub(crate) keep_running: bool,
    /// Write at most so many bytes per second, for example 100M
    #[arg(long, value_name = "SIZE", value_parser = size::parse)]
    pub(crate) bandwidth: Option<u64>,
}

#[derive(Clone, Debug, Args)]
pub(crate) struct MigrateArgs {
    /// The guest
    #[arg(value_parser = guest)]
    pub(crate) name: Name,
    /// Where it goes: unix:PATH
    #[arg(long, value_name = "ADDRESS", value_parser = Address::parse, requires = "secret")]
    #[arg(required_unless_present = "target_is_gone")]
    pub(crate) to: Option<Address>,
    /// File with the secret that the other machine was given, too; only you may have access to it
    #[arg(long, value_name = "FILE", requires = "to")]
    pub(crate) secret: Option<PathBuf>,
    /// Let a guest that stands still in doubt run on here: you know that the machine, or the file,
    /// that it was given to is gone for good. If it is not, the guest runs twice
    #[arg(long)]
    pub(crate) target_is_gone: bool,
    /// The guest may stand still for so long
    #[arg(long, value_name = "TIME", default_value = "50ms", value_parser = duration)]
    pub(crate) downtime: Duration,
    /// Give up if what the guest has written does not fit the downtime after so many rounds
    #[arg(long, value_name = "N", default_value_t = 30, value_parser = clap::value_parser!(u32).range(1..=1000))]
    pub(crate) rounds: u32,
    /// Send at most so many bytes per second, for example 100M
    #[arg(long, value_name = "SIZE", value_parser = size::parse)]
    pub(crate) bandwidth: Option<u64>,
    /// Slow the guest down, more and more, if it writes faster than it is sent
    #[arg(long)]
    pub(crate) throttle: bool,
}

/// Parses a time with its unit: `50ms` or `2s`.
fn duration(text: &str) -> Result<Duration, String> {
    let bad = || format!("'{text}' is no time; write for example 50ms or 2s");
    let (number, unit) = text.split_at(text.trim_end_matches(|c: char| c.is_ascii_alphabetic()).len());
    let micros = match unit {
        "us" | "µs" => 1,
        "ms" => 1000,
        "s" => 1_000_000,
        _ => return Err(bad()),
    };
    let number: u64 = number.parse().map_err(|_| bad())?;
    number.checked_mul(micros).map(Duration::from_micros).filter(|time| !time.is_zero()).ok_or_else(bad)
}

#[derive(Clone, Copy, Debug, Args)]
pub(crate) struct OfGuest {
    /// The guest
    #[arg(value_parser = guest)]
    pub(crate) name: Name,
}

#[derive(Clone, Copy, Debug, Args)]
pub(crate) struct OfSlot {
    /// Number of the slot, as `slots` shows it
    pub(crate) slot: u16,
}

fn guest(text: &str) -> Result<Name, String> {
    Name::parse(text).ok_or_else(|| format!("'{text}' is no name of a guest: write {}", Name::EXPECTED))
}

#[derive(Debug, Subcommand)]
pub(crate) enum LogCommand {
    /// Start logging
    Start {
        /// Number of the slot
        slot: u16,
        /// How the hypervisor notices stores
        #[arg(long, value_name = "WAY", default_value = "dirty-bits", value_parser = log_way())]
        way: LogWay,
    },
    /// Show the pages written since the last fetch, and clear them
    Fetch(OfSlot),
    /// Stop logging
    Stop(OfSlot),
}

fn log_way() -> impl TypedValueParser<Value = LogWay> {
    let words = [
        (LogWay::DirtyBits, "By the dirty bits of the nested page tables: no exits"),
        (LogWay::WriteProtection, "By write faults: an exit for the first store to each page"),
    ];
    let words = words.map(|(way, about)| PossibleValue::new(way.name()).help(about));
    PossibleValuesParser::new(words).try_map(|word| LogWay::named(&word).ok_or(LogWay::EXPECTED))
}

/// Parses a decimal number, or a hexadecimal one after `0x`.
fn number(text: &str) -> Result<u64, String> {
    parse_number(text).map_err(|_| format!("'{text}' is not a number; write for example 0x100000000"))
}
