//! `quell bench`: measurements, and their limits.
//!
//! | module | contents |
//! |---|---|
//! | `lab` | the parts of machines, how they are run, and how every benchmark ends |
//! | `limits` | figures that have a limit: their table, and what is missed |
//! | `load` | a bare guest that uses memory which was added to it; of `unmap` and `migrate` |
//! | `phases` | the counts of QEMU's plugin |
//! | `counts`, `running` | instructions of exits and flushes |
//! | `all` | the same work on Quell and on Linux KVM, in turn |
//! | the others | one benchmark each |

mod all;
mod boot;
pub(crate) mod counts;
mod devices;
pub(crate) mod isolation;
pub(crate) mod lab;
pub(crate) mod limits;
pub(crate) mod load;
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
    let status = match command {
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
    };
    match (status, signals.caught()) {
        (Err(_), Some(signal)) => Ok(u8::try_from(128 + signal).unwrap_or(128)),
        (status, _) => status,
    }
}
