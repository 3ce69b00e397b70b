//! Counters that the hypervisor keeps per vCPU and the host tool reads from shared memory.
//!
//! The hypervisor's ELF has a symbol [`BEACON_SYMBOL`]: a [`Beacon`] at a physical address below 4
//! GiB, which is also the offset in the file that backs QEMU's memory. On Arm, where memory begins
//! at 1 GiB, the offset is 1 GiB less. The beacon has the address of the counters: `vcpu_count`
//! rows of [`Counter::COUNT`] little-endian `u64`, row after row. Counters only grow. A reader sees
//! each of them whole, but not all of them at one instant.

use core::sync::atomic::{AtomicU32, AtomicU64};

/// Name of the ELF symbol of the [`Beacon`].
pub const BEACON_SYMBOL: &str = "QUELL_BEACON";

/// First word of a beacon that has been filled in: `"QUELLCT1"` as little-endian bytes.
pub const BEACON_MAGIC: u64 = u64::from_le_bytes(*b"QUELLCT1");

/// The location of the counters. `magic` is written last, with release ordering.
#[repr(C)]
#[derive(Debug, Default)]
pub struct Beacon {
    /// [`BEACON_MAGIC`] once the rest is valid.
    pub magic: AtomicU64,
    /// Physical address of the first counter row.
    pub counters: AtomicU64,
    /// Ticks of the clock per second: of the TSC, or of the system counter.
    pub tsc_hz: AtomicU64,
    /// Number of rows.
    pub vcpu_count: AtomicU32,
    /// Counters in a row: [`Counter::COUNT`] of the hypervisor's build.
    pub counter_count: AtomicU32,
    /// Physical CPUs in use.
    pub cpu_count: AtomicU32,
    /// The end of the run, where the machine has no device for that (Arm): the
    /// [code](crate::exit::ExitCode), stored with release ordering before the machine is switched
    /// off. 0 until then. It is valid even before `magic` is written.
    pub exit: AtomicU32,
    /// Physical address of the first [trace ring](crate::trace), in an image that has them; 0
    /// otherwise.
    pub trace: AtomicU64,
    /// Number of rings.
    pub trace_rings: AtomicU32,
    /// Records in each.
    pub trace_records: AtomicU32,
    /// Physical address of the first [entry](crate::guests::GuestEntry) of a guest.
    pub guests: AtomicU64,
    /// Number of entries, free ones included; 0 if there is one guest, which uses the machine's
    /// serial ports, and an entry of which only the end counts. Only in that case are `counters`
    /// and `vcpu_count` valid: otherwise each entry has the rows of its guest.
    pub guest_count: AtomicU32,
}

impl Beacon {
    /// An empty beacon.
    pub const fn new() -> Self {
        Self {
            magic: AtomicU64::new(0),
            counters: AtomicU64::new(0),
            tsc_hz: AtomicU64::new(0),
            vcpu_count: AtomicU32::new(0),
            counter_count: AtomicU32::new(0),
            cpu_count: AtomicU32::new(0),
            exit: AtomicU32::new(0),
            trace: AtomicU64::new(0),
            trace_rings: AtomicU32::new(0),
            trace_records: AtomicU32::new(0),
            guests: AtomicU64::new(0),
            guest_count: AtomicU32::new(0),
        }
    }
}

macro_rules! counters {
    ($($(#[doc = $doc:literal])+ $variant:ident = $name:literal,)+) => {
        /// One counter of a vCPU.
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        #[repr(usize)]
        pub enum Counter {
            $($(#[doc = $doc])+ $variant,)+
        }

        impl Counter {
            /// Every counter, in the order of a row.
            pub const ALL: [Self; [$($name),+].len()] = [$(Self::$variant),+];
            /// Number of counters in a row.
            pub const COUNT: usize = Self::ALL.len();

            /// The counter's name in reports and JSON: lower case, starting with a group and a dot.
            pub const fn name(self) -> &'static str {
                match self { $(Self::$variant => $name,)+ }
            }
        }
    };
}

impl Counter {
    /// The counters of waits, shortest first: each covers up to twice the time of the previous one.
    pub const WAITS: [Self; 16] = [
        Self::FlushWait1us,
        Self::FlushWait2us,
        Self::FlushWait4us,
        Self::FlushWait8us,
        Self::FlushWait16us,
        Self::FlushWait32us,
        Self::FlushWait64us,
        Self::FlushWait128us,
        Self::FlushWait256us,
        Self::FlushWait512us,
        Self::FlushWait1ms,
        Self::FlushWait2ms,
        Self::FlushWait4ms,
        Self::FlushWait8ms,
        Self::FlushWait16ms,
        Self::FlushWaitMore,
    ];

    /// The counter of a wait that took `us` microseconds, rounded up.
    pub const fn of_wait(us: u64) -> Self {
        let power = (u64::BITS - us.saturating_sub(1).leading_zeros()) as usize;
        Self::WAITS[if power < Self::WAITS.len() { power } else { Self::WAITS.len() - 1 }]
    }
}

counters! {
    /// Exits for CPUID (x86-64).
    ExitCpuid = "exit.cpuid",
    /// Exits for waiting for an interrupt: HLT, WFI.
    ExitWait = "exit.wait",
    /// Exits for spinning: PAUSE, WFE.
    ExitPause = "exit.pause",
    /// Exits for port I/O (x86-64).
    ExitIo = "exit.io",
    /// Exits for reads of system registers: RDMSR, MRS.
    ExitRegisterRead = "exit.register.read",
    /// Exits for writes of system registers: WRMSR, MSR.
    ExitRegisterWrite = "exit.register.write",
    /// Exits for hypercalls.
    ExitHypercall = "exit.hypercall",
    /// Exits for nested page faults: stage-2 aborts.
    ExitNested = "exit.nested",
    /// Exits for a physical interrupt or NMI.
    ExitInterrupt = "exit.interrupt",
    /// Exits because the guest became ready to take an interrupt (x86-64).
    ExitWindow = "exit.window",
    /// Exits for control register writes, XSETBV and the like (x86-64).
    ExitControl = "exit.control",
    /// Exits for SVM's instructions, of a guest that has guests (AMD64).
    ExitSvm = "exit.svm",
    /// Exits of a guest of its own that were not served like its own exits: nearly all are passed
    /// on to it (AMD64).
    ExitInner = "exit.inner",
    /// All other exits.
    ExitOther = "exit.other",
    /// Interrupts delivered into the guest (x86-64).
    IrqInjected = "irq.injected",
    /// IPIs that the guest sent through its APIC, one per target.
    IrqIpi = "irq.ipi",
    /// Timer expiries delivered to the guest.
    IrqTimer = "irq.timer",
    /// Target vCPUs of its flushes that were in guest mode.
    FlushBusy = "flush.busy",
    /// Targets that were not in guest mode, including the caller: flushed at their next entry,
    /// neither kicked nor waited for.
    FlushDeferred = "flush.deferred",
    /// Targets that had halted in an address space other than the flushed one: no request was sent.
    FlushElsewhere = "flush.elsewhere",
    /// Targets that already had a request of the same kind in progress and joined it.
    FlushMerged = "flush.merged",
    /// Kicks sent to physical CPUs on behalf of flushes.
    FlushKicks = "flush.kicks",
    /// Targets of its lists that had not taken an earlier request yet: one flush serves both.
    FlushJoined = "flush.joined",
    /// Targets of its lists that flush everything because their mailboxes were full of others'
    /// ranges.
    FlushOverflows = "flush.overflows",
    /// Flush hypercalls of this vCPU with a list that went to the targets as ranges.
    FlushLists = "flush.lists",
    /// Parts of its lists that were done in several parts, not counting the last part of each list.
    FlushContinued = "flush.continued",
    /// Flush hypercalls of this vCPU that requested everything.
    FlushWholeAsked = "flush.whole.asked",
    /// Its lists that became a flush of everything because they had more ranges than a mailbox
    /// holds.
    FlushWholeRanges = "flush.whole.ranges",
    /// Its lists that became a flush of everything because they had too many pages to be
    /// worthwhile.
    FlushWholePages = "flush.whole.pages",
    /// Times that this vCPU took its pending flush requests: all requests since the previous time
    /// are one merged generation.
    FlushTaken = "flush.taken",
    /// Ranges flushed page by page on this vCPU.
    FlushRanges = "flush.ranges",
    /// Pages in them.
    FlushPages = "flush.pages",
    /// Flushes of this vCPU's whole address space tag.
    FlushWhole = "flush.whole",
    /// Of these, flushes of ranges that were not done page by page because the vCPU uses PCIDs.
    FlushWholePcid = "flush.whole.pcid",
    /// Because it may have pages of 4 MiB.
    FlushWholeLegacy = "flush.whole.legacy",
    /// Because its memory may be mapped in pages smaller than its own.
    FlushWholePieces = "flush.whole.pieces",
    /// Because the ranges of several initiators together have too many pages to be worthwhile.
    FlushWholeMerged = "flush.whole.merged",
    /// Times that it arrived on a CPU where another vCPU of its machine had run, or from another
    /// CPU, and that CPU's entries were dropped (Arm).
    FlushArrival = "flush.arrival",
    /// Times that a CPU dropped everything before it entered because a generation of VMIDs had
    /// begun (Arm).
    VmidFlushes = "flush.vmid",
    /// Flushes of this vCPU that waited for targets in guest mode for at most 1 µs.
    FlushWait1us = "flush.wait.1us",
    /// For more than 1 µs and at most 2 µs, and so on.
    FlushWait2us = "flush.wait.2us",
    /// At most 4 µs.
    FlushWait4us = "flush.wait.4us",
    /// At most 8 µs.
    FlushWait8us = "flush.wait.8us",
    /// At most 16 µs.
    FlushWait16us = "flush.wait.16us",
    /// At most 32 µs.
    FlushWait32us = "flush.wait.32us",
    /// At most 64 µs.
    FlushWait64us = "flush.wait.64us",
    /// At most 128 µs.
    FlushWait128us = "flush.wait.128us",
    /// At most 256 µs.
    FlushWait256us = "flush.wait.256us",
    /// At most 512 µs.
    FlushWait512us = "flush.wait.512us",
    /// At most 1024 µs.
    FlushWait1ms = "flush.wait.1ms",
    /// At most 2048 µs.
    FlushWait2ms = "flush.wait.2ms",
    /// At most 4096 µs.
    FlushWait4ms = "flush.wait.4ms",
    /// At most 8192 µs.
    FlushWait8ms = "flush.wait.8ms",
    /// At most 16384 µs.
    FlushWait16ms = "flush.wait.16ms",
    /// For longer.
    FlushWaitMore = "flush.wait.more",
    /// Kicks sent for interrupts and rescheduling.
    KickEvent = "kick.event",
    /// Times that all CPUs were kicked again because a target of a flush had not left guest mode
    /// for a long time; counted for the waiting vCPU, or for the first one.
    KickAgain = "kick.again",
    /// Kicks that were sent half a tick before the tick was due and still not taken then: the
    /// notification was lost. Counted for the vCPU on the kicked CPU, or for the first one.
    KickLate = "kick.late",
    /// Times that an idle CPU that had not been kicked found this vCPU ready to run when its tick
    /// was due.
    KickMissing = "kick.missing",
    /// Times the vCPU was put on a CPU.
    SchedIn = "sched.in",
    /// Times it was preempted because its slice was over or another vCPU had priority.
    SchedPreempted = "sched.preempted",
    /// Times it yielded while spinning.
    SchedYield = "sched.yield",
    /// Times it yielded while it waited for a word in memory, to be skipped until that word
    /// changes.
    SchedPassive = "sched.passive",
    /// Times it blocked, in HLT or WFI.
    SchedHalt = "sched.halt",
    /// Times it ran on a different CPU than before.
    SchedMigrated = "sched.migrated",
    /// Ticks of the hypervisor's clock for which it could have run and another one had the CPU.
    SchedSteal = "sched.steal",
    /// Nested page table entries installed for it.
    NestedInstalled = "nested.installed",
    /// Nested page table entries to which the right to store was added for it.
    NestedUpgraded = "nested.upgraded",
    /// Times that it ran a guest of its own (AMD64).
    InnerRuns = "inner.runs",
    /// Of these, times that began with a flush of that guest's tag.
    InnerFlushes = "inner.flushes",
    /// Times that it got an exit of a guest of its own.
    InnerExits = "inner.exits",
    /// Its hypercalls that flushed what comes from its nested page tables.
    InnerCalls = "inner.calls",
    /// Flushes of guests of its own that were served without it.
    InnerDirect = "inner.direct",
    /// Leaves that were filled into a shadow of its nested page tables.
    InnerFills = "inner.fills",
    /// Times that such a shadow was emptied.
    InnerEmptied = "inner.emptied",
    /// Its accesses to addresses without memory that it had remembered.
    MmioCached = "mmio.cached",
    /// Those found by a mark in the nested page table.
    MmioMarked = "mmio.marked",
    /// Those found by a search of the memory slots.
    MmioSearched = "mmio.searched",
    /// Changes of the memory slots that its accesses to devices caused.
    SlotChanges = "slots.changes",
    /// Entries of the nested page table that these changes visited.
    ZapVisited = "slots.visited",
    /// Tables that they freed.
    ZapTables = "slots.tables",
    /// Flushes of all vCPUs that they needed.
    ZapFlushes = "slots.flushes",
    /// Resets of its machine; counted for the first vCPU.
    Resets = "reset.count",
    /// Steps of external requests that were served during resets.
    ResetRequests = "reset.requests",
    /// Lines of the log that it caused and that were dropped because there were too many.
    LogLinesLeftOut = "log.left_out",
    /// Crashes that it reported and that were not logged.
    CrashesLeftOut = "log.crashes_left_out",
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn waits_are_counted_by_powers_of_two() {
        for (us, counter) in [
            (0, Counter::FlushWait1us),
            (1, Counter::FlushWait1us),
            (2, Counter::FlushWait2us),
            (3, Counter::FlushWait4us),
            (4, Counter::FlushWait4us),
            (5, Counter::FlushWait8us),
            (1024, Counter::FlushWait1ms),
            (1025, Counter::FlushWait2ms),
            (16384, Counter::FlushWait16ms),
            (16385, Counter::FlushWaitMore),
            (u64::MAX, Counter::FlushWaitMore),
        ] {
            assert_eq!(Counter::of_wait(us), counter, "{us}");
        }
    }

    #[test]
    fn names_are_unique_and_grouped() {
        let names: std::vec::Vec<_> = Counter::ALL.iter().map(|c| c.name()).collect();
        for (index, name) in names.iter().enumerate() {
            assert!(name.contains('.'), "{name}");
            assert!(!names[..index].contains(name), "{name} twice");
            assert_eq!(Counter::ALL[index] as usize, index);
        }
    }
}
