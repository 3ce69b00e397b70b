//! `quell bench`: standalone measurements.

mod all;
mod arm_exits;
mod boot;
pub(crate) mod counts;
mod devices;
pub(crate) mod isolation;
mod memslot;
pub(crate) mod migrate;
mod paging;
pub(crate) mod phases;
mod running;
mod shootdown;
mod unmap;

use crate::cli::BenchCommand;
use crate::machine::signals::Signals;
use anyhow::Result;

/// Runs one; the result is the process's exit status.
pub(crate) fn run(command: &BenchCommand, signals: &Signals) -> Result<u8> {
    match command {
        BenchCommand::All(args) => all::all(args, signals),
        BenchCommand::Devices(args) => devices::devices(args, signals),
        BenchCommand::Exits(args) => counts::exits(args, signals),
        BenchCommand::Flush(args) => counts::flush(args, signals),
        BenchCommand::Isolation(args) => isolation::isolation(args, signals),
        BenchCommand::Memslot(args) => memslot::memslot(args, signals),
        BenchCommand::Migrate(args) => migrate::migrate(args, signals),
        BenchCommand::Paging(args) => paging::paging(args),
        BenchCommand::Shootdown(args) => shootdown::shootdown(args, signals),
        BenchCommand::Unmap(args) => unmap::unmap(args, signals),
        BenchCommand::Boot(args) => boot::boot(args, signals),
    }
}
