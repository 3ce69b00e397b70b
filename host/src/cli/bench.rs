//! `quell bench` on the command line.

use super::SizeArgs;
use crate::arch::{ArmCpu, PlatformArgs};
use crate::check::subject::On;
use crate::size;
use clap::{Args, Subcommand, ValueEnum};
use hostlink::config::MAX_VCPUS;
use std::path::PathBuf;
use std::time::Duration;

/// Where the results of a measurement go, and how long each of its machines may take: `SECONDS`
/// unless something else is said.
#[derive(Clone, Debug, Args)]
pub(crate) struct Output<const SECONDS: u64> {
    /// Write the results to this file, as docs/json.md describes
    #[arg(long, value_name = "FILE")]
    pub(crate) json: Option<PathBuf>,
    /// Give up on a machine after so many seconds (longer ones while other programs keep the CPUs
    /// busy)
    #[arg(long, value_name = "SECONDS", default_value = SECONDS.to_string(), value_parser = clap::value_parser!(u64).range(1..))]
    pub(crate) timeout: u64,
}

impl<const SECONDS: u64> Output<SECONDS> {
    /// How long a machine may take.
    pub(crate) const fn timeout(&self) -> Duration {
        Duration::from_secs(self.timeout)
    }
}

#[derive(Debug, Subcommand)]
pub(crate) enum BenchCommand {
    All(AllArgs),
    Exits(ExitsArgs),
    /// Instructions per flush hypercall, by the same guest on the same kind of machine
    ///
    /// Counts the instructions of flush hypercalls from exit to entry, and what calls do to vCPUs
    /// that run, by the hypervisor's counters. Ends with status 1 if one of them is over its
    /// budget: 700 instructions, and 12 for each target that does not run; a kick and an exit for
    /// each that runs, and none for others; and where 8 vCPUs flush each other, a kick for every
    /// second target.
    Flush(ExitsArgs),
    /// What it costs when guest memory goes: entries visited, flushes, instructions
    ///
    /// A bare guest uses 256 MiB, 1 GiB and 2 GiB of memory in pages of 4 KiB while a ROM of 256
    /// KiB comes and goes: on a machine that counts instructions. The deletion may cost no more
    /// with more memory elsewhere, and visits the ROM's entries only. The same with everything
    /// zapped, for comparison; and a GiB that is added and taken away again. Then, by the clock, a
    /// Linux guest with 8 threads that use memory. Ends with status 1 if a target is missed.
    Memslot(MemslotArgs),
    /// How long a guest stands still while it is migrated in vain
    ///
    /// A bare guest keeps writing to a GiB in one large page. Its stores are logged by pages of 4
    /// KiB, which are copied for some rounds, and all of it is undone: small pages become a large
    /// one again. Reports the guest's longest stop before, meanwhile and while it is undone, and
    /// the hypervisor's longest step: on a machine that counts instructions, and by the clock. On
    /// aarch64 also with a flush for each page, for comparison. Ends with status 1 if a target is
    /// missed.
    Migrate(MigrateArgs),
    /// What it costs to flush other CPUs' TLBs, as tlbcheck measures it
    ///
    /// Shootdowns of 1 to 509 pages and of everything, on 1, 2, 4 and more CPUs, by each back end
    /// in turn: interrupts (local flush first, or meanwhile; the request by reference or inline;
    /// acknowledged after the flush, or before), and hypercalls where there are any. Ends with
    /// status 1 if a target is missed.
    Shootdown(ShootdownArgs),
    /// The page tables on this machine, beside those of other crates
    ///
    /// Maps and unmaps 512 MiB in pages of 4 KiB by our crate, by x86_64 and by
    /// page_table_multiarch in turn (criterion), and lets 1, 2 and 4 threads fault pages into one
    /// table. Ends with status 1 if another crate is faster, or threads hold each other up. Times
    /// are of this machine: let it have nothing else to do.
    Paging(PagingArgs),
    /// What it costs on Arm to take memory away, to log stores, and to install pages
    ///
    /// A bare guest uses a GiB in pages of 4 KiB on aarch64 machines that count instructions and
    /// TLB maintenance: it is taken away, by one flush and, for comparison, page by page; or stores
    /// to it are logged. Then the deletions by the clock. Ends with status 1 if a target is missed.
    Unmap(UnmapArgs),
    Boot(BootArgs),
}

/// Instructions per exit, by a tiny bare guest on a machine that counts them
///
/// Counts the instructions of common operations from exit to entry. QEMU executes one instruction
/// per nanosecond of virtual time, so the counts are exact and repeatable. Ends with status 1 if
/// one of them is over its budget.
#[derive(Debug, Args)]
pub(crate) struct ExitsArgs {
    #[command(flatten)]
    pub(crate) output: Output<120>,
}

/// What Quell is compared with.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Peer {
    /// Linux KVM in the same emulated machine: Debian's kernel, and this system's QEMU
    Kvm,
}

/// Everything in one go, and beside Linux KVM in the same emulated machine
///
/// The same guest kernel, initial RAM disk, commands and number of vCPUs, on as many CPUs: on
/// Quell, by hypercall and by IPI, and on KVM by Hyper-V's hypercalls, by IPI and by KVM's own
/// paravirtual flush, in turn. Ratios are of the runs of one round, pair by pair. A machine of
/// KVM's that dies or hangs is started again, and counted. Results are written after each run, and
/// the same command goes on with what it finds in --json FILE. Ends with status 1 if a target is
/// missed or a run fails.
#[derive(Debug, Args)]
pub(crate) struct AllArgs {
    /// Compare with this
    #[arg(long, value_name = "WHAT")]
    pub(crate) peer: Option<Peer>,
    /// Rounds; counts of instructions, which are the same each time, are taken in the first
    #[arg(long, value_name = "N", default_value_t = 5, value_parser = clap::value_parser!(u32).range(1..=100))]
    pub(crate) runs: u32,
    /// Run this case only; may be repeated
    #[arg(long, value_name = "CASE")]
    pub(crate) only: Vec<String>,
    /// Run those cases as well that take long
    #[arg(long)]
    pub(crate) long: bool,
    /// Only print the cases that there are
    #[arg(long)]
    pub(crate) list: bool,
    /// Rounds of each of thrash's threads
    #[arg(long, value_name = "N", default_value_t = 100, value_parser = clap::value_parser!(u32).range(1..=1_000_000))]
    pub(crate) rounds: u32,
    /// Go on with the results in this file; they are written back unless --json names another
    #[arg(long, value_name = "FILE")]
    pub(crate) resume: Option<PathBuf>,
    /// Write the results to this file, as docs/json.md describes, and go on with those in it
    #[arg(long, value_name = "FILE")]
    pub(crate) json: Option<PathBuf>,
}

/// Arguments of `bench memslot`.
#[derive(Debug, Args)]
pub(crate) struct MemslotArgs {
    /// Memory of the Linux guest whose 8 threads use most of it, for example 2304M
    #[arg(long, value_name = "SIZE", default_value = "2304M", value_parser = size::parse)]
    pub(crate) memory: u64,
    /// Runs of each side of it; the table shows medians
    #[arg(long, value_name = "N", default_value_t = 3, value_parser = clap::value_parser!(u32).range(1..=100))]
    pub(crate) runs: u32,
    #[command(flatten)]
    pub(crate) output: Output<180>,
}

/// Arguments of `bench migrate`.
#[derive(Debug, Args)]
pub(crate) struct MigrateArgs {
    #[command(flatten)]
    pub(crate) platform: PlatformArgs,
    /// How often what was written meanwhile is copied again
    #[arg(long, value_name = "N", default_value_t = 2, value_parser = clap::value_parser!(u16).range(..=100))]
    pub(crate) rounds: u16,
    /// How much the guest writes, in 10^6 bytes a second
    #[arg(long, value_name = "MB", default_value_t = 64, value_parser = clap::value_parser!(u32).range(1..=100_000))]
    pub(crate) rate: u32,
    /// Runs by the clock; the table shows medians. Counts are the same each time
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..=100))]
    pub(crate) runs: u32,
    #[command(flatten)]
    pub(crate) output: Output<180>,
}

/// Arguments of `bench paging`.
#[derive(Debug, Args)]
pub(crate) struct PagingArgs {
    /// Write what was measured to this file, as docs/json.md describes
    #[arg(long, value_name = "FILE")]
    pub(crate) json: Option<PathBuf>,
}

/// Arguments of `bench unmap`.
#[derive(Debug, Args)]
pub(crate) struct UnmapArgs {
    /// Model of CPU; may be repeated [default: each there is]
    #[arg(long, value_name = "MODEL")]
    pub(crate) cpu: Vec<ArmCpu>,
    /// Runs of each deletion by the clock; the table shows medians. Counts are the same each time
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..=100))]
    pub(crate) runs: u32,
    #[command(flatten)]
    pub(crate) output: Output<300>,
}

/// Arguments of `bench shootdown`.
#[derive(Debug, Args)]
pub(crate) struct ShootdownArgs {
    /// What it is measured on
    #[arg(long, value_name = "WHAT", default_value = "bare")]
    pub(crate) on: On,
    /// Most CPUs that take part
    #[arg(long, value_name = "N", default_value_t = 4, value_parser = clap::value_parser!(u32).range(1..=MAX_VCPUS as i64))]
    pub(crate) cpus: u32,
    /// CPUs that are flushed sleep, rather than spin: for more of them than there are cores to
    /// emulate them
    #[arg(long)]
    pub(crate) halted: bool,
    /// Machines, one after the other; the table shows medians of theirs
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..=100))]
    pub(crate) runs: u32,
    /// Shootdowns of each kind in each of them
    #[arg(long, value_name = "N", default_value_t = 301, value_parser = clap::value_parser!(u32).range(11..=1000))]
    pub(crate) samples: u32,
    #[command(flatten)]
    pub(crate) output: Output<900>,
}

/// Time from power-on to the guest's first process, on Quell and directly on the machine
///
/// Boots the same kernel, initial RAM disk and command line on Quell and directly on the emulated
/// machine, in turn.
#[derive(Debug, Args)]
pub(crate) struct BootArgs {
    #[command(flatten)]
    pub(crate) platform: PlatformArgs,
    #[command(flatten)]
    pub(crate) size: SizeArgs,
    /// Runs of each side
    #[arg(long, value_name = "N", default_value_t = 5, value_parser = clap::value_parser!(u32).range(1..=100))]
    pub(crate) runs: u32,
    /// Words for the kernel's command line, after those with its console and `quiet`
    #[arg(long, value_name = "WORDS", allow_hyphen_values = true)]
    pub(crate) append: Option<String>,
    #[command(flatten)]
    pub(crate) output: Output<120>,
}
