//! `quell bench` on the command line.

use super::SizeArgs;
use crate::arch::PlatformArgs;
use crate::guest::cache::XenVersion;
use crate::prelude::*;
use clap::{Args, Subcommand, ValueEnum};
use hostile::attacks::Attack;

/// The file for the results of a measurement, and the timeout of each of its machines: `SECONDS` by
/// default.
#[derive(Clone, Debug, Args)]
pub(crate) struct Output<const SECONDS: u64> {
    /// Write the results to this file, as docs/json.md describes
    #[arg(long, value_name = "FILE")]
    pub(crate) json: Option<PathBuf>,
    /// Give up on a machine after this many seconds (longer while other programs keep the CPUs
    /// busy)
    #[arg(long, value_name = "SECONDS", default_value = SECONDS.to_string(), value_parser = clap::value_parser!(u64).range(1..))]
    pub(crate) timeout: u64,
}

impl<const SECONDS: u64> Output<SECONDS> {
    /// The timeout of a machine.
    pub(crate) const fn timeout(&self) -> Duration {
        Duration::from_secs(self.timeout)
    }
}

/// The same of cases of `bench all`, each of which has a timeout of its own.
#[derive(Clone, Debug, Default, Args)]
pub(crate) struct CaseOutput<const RUNS: u32> {
    /// Number of rounds; the tables show medians. Counts that are the same each time are taken only
    /// once
    #[arg(long, value_name = "N", default_value = RUNS.to_string(), value_parser = clap::value_parser!(u32).range(1..=100))]
    pub(crate) runs: u32,
    /// Write the results to this file, as docs/json.md describes, and continue with those in it
    #[arg(long, value_name = "FILE")]
    pub(crate) json: Option<PathBuf>,
    /// Give up on a machine after this many seconds (longer while other programs keep the CPUs
    /// busy) [default: several times what the case usually takes]
    #[arg(long, value_name = "SECONDS", value_parser = clap::value_parser!(u64).range(1..))]
    pub(crate) timeout: Option<u64>,
}

/// The short form of some cases, with options of its own.
#[derive(Debug, Args)]
pub(crate) struct Short<O: Args, const RUNS: u32 = 1> {
    #[command(flatten)]
    pub(crate) options: O,
    #[command(flatten)]
    pub(crate) output: CaseOutput<RUNS>,
}

const ROUNDS: u32 = 100;

impl<const RUNS: u32> CaseOutput<RUNS> {
    /// What `bench all` is asked for by the short form of these cases.
    pub(crate) fn only(&self, cases: impl IntoIterator<Item: Into<String>>) -> AllArgs {
        let Self { runs, json, timeout } = self.clone();
        let only = cases.into_iter().map(Into::into).collect();
        AllArgs { only, rounds: ROUNDS, output: CaseOutput { runs, json, timeout }, ..AllArgs::default() }
    }
}

#[derive(Debug, Subcommand)]
pub(crate) enum BenchCommand {
    All(Box<AllArgs>),
    /// Measure instructions per transfer of a guest that owns a disk and a network card
    ///
    /// On a machine of one CPU that counts instructions, the guest reads and writes its NVMe disk
    /// by fio, and sends a TCP stream: a fixed number of transfers each. The same guest does the
    /// same on the bare machine, on Quell, and on Linux KVM, which gives it the same devices by
    /// vfio. Waits cost nothing; the work of the hypervisor counts. Exits with status 1 if Quell
    /// has less than 0.9 of the bare machine's transfers per instruction, or less than 1.5 times
    /// KVM's, or more than 2 exits for a transfer. The disk with fio is that of `./quell image-
    /// debian`, which is made if there is none; it is only read.
    Devices(Short<DeviceOptions>),
    /// Measure instructions per exit, with a tiny bare guest on a machine that counts them
    ///
    /// Counts the instructions of common operations from exit to entry. QEMU executes one
    /// instruction per nanosecond of virtual time, so the counts are exact and repeatable; on
    /// aarch64 its plugin counts them. Exits with status 1 if one of them is over its budget.
    Exits(Short<PlatformArgs>),
    /// Measure instructions per flush hypercall, with the same guest on the same kind of machine
    ///
    /// Counts the instructions of flush hypercalls from exit to entry, and the effects of calls on
    /// running vCPUs, by the hypervisor's counters. Exits with status 1 if one of them is over its
    /// budget: 700 instructions, plus 12 for each target that is not running; a kick and an exit
    /// for each target that is running, and none for others; and if 8 vCPUs flush each other, a
    /// kick for every second target.
    Flush(Short<PlatformArgs>),
    /// Measure what a guest loses while another one attacks it
    ///
    /// Two guests share 2 CPUs. The attacker, on 4 vCPUs, does all that may disturb others:
    /// flushes, interrupts, timers, faults, resets, garbage in its devices and more, one after the
    /// other. The bystander, on 2 vCPUs, checks its memory and its registers, looks for stale
    /// translations, and takes the time of its flushes. Exits with status 1 if anything of it has
    /// changed, if it has less than 0.95 of the share of the CPUs that its weight means, or if 1 %
    /// of its flushes take more than twice as long as on the quiet machine, and a slice. The
    /// machine should be otherwise idle.
    Isolation(Short<AttackOptions>),
    /// Measure the cost of removing guest memory: entries visited, flushes, instructions
    ///
    /// On a machine that counts instructions, a bare guest uses 256 MiB, 1 GiB and 2 GiB of memory
    /// in pages of 4 KiB while a ROM of 256 KiB is repeatedly added and removed. The deletion may
    /// not cost more with more memory elsewhere, and must visit only the ROM's entries. The same is
    /// measured with everything zapped, for comparison, and with a GiB that is added and removed
    /// again. Then, by the clock, a Linux guest runs 8 threads that use memory. Exits with status 1
    /// if a target is missed.
    Memslot(Short<MemslotArgs, 3>),
    /// Measure how long a guest stops during a cancelled migration
    ///
    /// A bare guest keeps writing to a GiB in one large page. Its stores are logged by pages of 4
    /// KiB, which are copied for some rounds. Then the migration is cancelled: small pages become a
    /// large one again. Reports the guest's longest stop before, during and while undoing the
    /// migration, and the hypervisor's longest step: on a machine that counts instructions, and by
    /// the clock. On aarch64 also with a flush for each page, for comparison. Exits with status 1
    /// if a target is missed.
    Migrate(Short<MigrateOptions>),
    /// Measure the cost of flushing other CPUs' TLBs with tlbcheck
    ///
    /// Shootdowns of 1 to 509 pages and of everything, on 1, 2, 4 and more CPUs, by each back end
    /// in turn: interrupts (local flush first or concurrently; request by reference or inline;
    /// acknowledged after the flush or before), and hypercalls where available. Exits with status 1
    /// if a target is missed.
    Shootdown(Short<ShootdownArgs>),
    /// Compare the page tables with those of other crates on this machine
    ///
    /// Maps and unmaps 512 MiB in pages of 4 KiB with our crate, x86_64 and page_table_multiarch in
    /// turn (criterion), and lets 1, 2 and 4 threads fault pages into one table. Exits with status
    /// 1 if another crate is faster, or if threads block each other. The times are those of this
    /// machine, which should be otherwise idle.
    Paging(PagingArgs),
    /// Measure the cost on Arm of removing memory, logging stores, and installing pages
    ///
    /// On aarch64 machines that count instructions and TLB maintenance, a bare guest uses a GiB in
    /// pages of 4 KiB. The memory is removed, with one flush and, for comparison, page by page; or
    /// stores to it are logged. Then the deletions are measured by the clock. Exits with status 1
    /// if a target is missed.
    Unmap(Short<UnmapArgs>),
    /// Measure the time from power-on to the guest's first process, on Quell and directly on the
    /// machine
    ///
    /// Boots the same kernel, initial RAM disk and command line on Quell and directly on the
    /// emulated machine, in turn.
    Boot(Short<BootArgs, 5>),
}

/// The hypervisor to compare Quell with.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Peer {
    /// Linux KVM in the same emulated machine: Debian's kernel, and this system's QEMU
    Kvm,
    /// Xen in the same emulated machine: Debian's, with its tools in an initial RAM disk
    Xen,
}

impl Peer {
    pub(crate) const fn subject(self) -> Subject {
        match self {
            Self::Kvm => Subject::Kvm,
            Self::Xen => Subject::Xen,
        }
    }
}

/// Measure everything in one go, also on Linux KVM or Xen in the same emulated machine
///
/// Both hypervisors have the same guest kernel, initial RAM disk, commands, and numbers of vCPUs
/// and CPUs. The ways to flush take turns: by hypercall and by IPI on Quell; by Hyper-V's
/// hypercalls, by IPI and by KVM's own paravirtual flush on KVM; on Xen by Hyper-V's hypercalls
/// (bare guests), by IPIs (Linux in a PVH domain) and by Xen's own calls (Linux in a PV domain). On
/// Arm, where guests flush by their own instructions, KVM is that of the stock kernel and that of a
/// newer one. Ratios compare the runs of one round, pair by pair; targets are for KVM. If a peer's
/// machine dies or hangs, the run is repeated and the death is counted. Results are written after
/// each run, and the same command continues with those in --json FILE. Exits with status 1 if a
/// target is missed or a run fails.
#[derive(Clone, Debug, Default, Args)]
pub(crate) struct AllArgs {
    /// The hypervisor to compare with
    #[arg(long, value_name = "WHAT")]
    pub(crate) peer: Option<Peer>,
    /// The version of Xen, with --peer xen [default: 4.17]
    #[arg(long, value_name = "VERSION")]
    pub(crate) xen: Option<XenVersion>,
    /// Run the cases on this system only, if they have it
    #[arg(long, value_name = "WHAT", conflicts_with = "peer")]
    pub(crate) on: Vec<Subject>,
    /// Run only the cases of this architecture [default: of both]
    #[arg(long, value_name = "ARCH")]
    pub(crate) arch: Option<Arch>,
    /// Run only this case, or those whose names go on from this with a hyphen; may be repeated
    #[arg(long, value_name = "CASE")]
    pub(crate) only: Vec<String>,
    /// Also run the cases that take long
    #[arg(long)]
    pub(crate) long: bool,
    /// Only print the list of cases
    #[arg(long)]
    pub(crate) list: bool,
    /// Rounds of each of thrash's threads
    #[arg(long, value_name = "N", default_value_t = ROUNDS, value_parser = clap::value_parser!(u32).range(1..=1_000_000))]
    pub(crate) rounds: u32,
    /// Continue with the results in this file; they are written back unless --json names another
    #[arg(long, value_name = "FILE")]
    pub(crate) resume: Option<PathBuf>,
    #[arg(skip)]
    pub(crate) size: Option<SizeArgs>,
    /// CPUs and samples of tlbcheck.
    #[arg(skip)]
    pub(crate) tlbcheck: Option<[u32; 2]>,
    #[arg(skip)]
    pub(crate) append: Option<String>,
    #[arg(skip)]
    pub(crate) migrate: MigrateOptions,
    #[arg(skip)]
    pub(crate) devices: DeviceOptions,
    #[arg(skip)]
    pub(crate) isolation: AttackOptions,
    #[command(flatten)]
    pub(crate) output: CaseOutput<5>,
}

#[derive(Clone, Debug, Default, Args)]
pub(crate) struct DeviceOptions {
    /// The disk with Debian that has fio [default: target/debian-amd64.img]
    #[arg(long, value_name = "FILE")]
    pub(crate) disk: Option<PathBuf>,
    /// Run only this side; may be repeated [default: all]
    #[arg(long, value_name = "WHAT")]
    pub(crate) on: Vec<Subject>,
    /// Let KVM poll for up to 200 us before it halts, as it does by default. That counts as work
    #[arg(long)]
    pub(crate) kvm_polls: bool,
}

#[derive(Clone, Debug, Args)]
pub(crate) struct AttackOptions {
    #[command(flatten)]
    pub(crate) platform: PlatformArgs,
    /// Run only this attack, and the quiet machine; may be repeated, or names separated by commas
    #[arg(long, value_name = "NAME", value_delimiter = ',', value_parser = parse_attack)]
    pub(crate) attack: Vec<Attack>,
    /// Batches of 100 flushes that are measured in each case
    #[arg(long, value_name = "N", default_value_t = Self::default().batches, value_parser = clap::value_parser!(u32).range(1..=10_000))]
    pub(crate) batches: u32,
    /// Determines what is random in the attacks
    #[arg(long, value_name = "N", default_value_t = Self::default().seed, value_parser = clap::value_parser!(u64).range(1..))]
    pub(crate) seed: u64,
}

impl Default for AttackOptions {
    fn default() -> Self {
        Self { platform: PlatformArgs::default(), attack: Vec::new(), batches: 15, seed: 1 }
    }
}

fn parse_attack(name: &str) -> Result<Attack, String> {
    Attack::parse(name).ok_or_else(|| {
        let names: Vec<_> = Attack::ALL.iter().map(|attack| attack.name()).collect();
        format!("there is no such attack; there are {}", names.join(", "))
    })
}

#[derive(Debug, Args)]
pub(crate) struct MemslotArgs {
    /// Memory of the Linux guest, most of which its 8 threads use; for example 2304M
    #[arg(long, value_name = "SIZE", default_value = "2304M", value_parser = size::parse)]
    pub(crate) memory: u64,
}

#[derive(Clone, Copy, Debug, Args)]
pub(crate) struct MigrateOptions {
    #[command(flatten)]
    pub(crate) platform: PlatformArgs,
    /// How many times the pages written meanwhile are copied again
    #[arg(long, value_name = "N", default_value_t = Self::default().rounds, value_parser = clap::value_parser!(u16).range(..=100))]
    pub(crate) rounds: u16,
    /// The guest's write rate, in 10^6 bytes per second
    #[arg(long, value_name = "MB", default_value_t = Self::default().rate, value_parser = clap::value_parser!(u32).range(1..=100_000))]
    pub(crate) rate: u32,
}

impl Default for MigrateOptions {
    fn default() -> Self {
        Self { platform: PlatformArgs::default(), rounds: 2, rate: 64 }
    }
}

#[derive(Debug, Args)]
pub(crate) struct PagingArgs {
    /// Write the results to this file, as docs/json.md describes
    #[arg(long, value_name = "FILE")]
    pub(crate) json: Option<PathBuf>,
}

#[derive(Debug, Args)]
pub(crate) struct UnmapArgs {
    /// CPU model; may be repeated [default: all models]
    #[arg(long, value_name = "MODEL")]
    pub(crate) cpu: Vec<ArmCpu>,
}

#[derive(Debug, Args)]
pub(crate) struct ShootdownArgs {
    /// The system to measure
    #[arg(long, value_name = "WHAT", default_value = "bare")]
    pub(crate) on: Subject,
    /// The most CPUs that take part
    #[arg(long, value_name = "N", default_value_t = 4, value_parser = clap::value_parser!(u32).range(1..=MAX_VCPUS as i64))]
    pub(crate) cpus: u32,
    /// Let target CPUs sleep rather than spin, for when there are more of them than cores to
    /// emulate them
    #[arg(long)]
    pub(crate) halted: bool,
    /// Shootdowns of each kind on each machine
    #[arg(long, value_name = "N", default_value_t = 301, value_parser = clap::value_parser!(u32).range(11..=1000))]
    pub(crate) samples: u32,
}

#[derive(Debug, Args)]
pub(crate) struct BootArgs {
    #[command(flatten)]
    pub(crate) platform: PlatformArgs,
    #[command(flatten)]
    pub(crate) size: SizeArgs,
    /// Words to append to the kernel's command line, after the console and `quiet`
    #[arg(long, value_name = "WORDS", allow_hyphen_values = true)]
    pub(crate) append: Option<String>,
}
