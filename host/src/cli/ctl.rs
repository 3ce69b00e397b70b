//! `quell ctl` on the command line.

use crate::size;
use clap::{Args, Subcommand, ValueEnum};
use hostlink::ctl::{LogWay, parse_number};

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
