//! What the rows in `rows.toml` do, which boot guests under QEMU, and what they expect.

use super::checks::Check;
use super::room::{Act, Named};
use crate::prelude::*;
use hostlink::config::FlushMode;
use hostlink::ctl::LogWay;
use std::iter;

#[derive(Clone, Copy)]
pub(super) struct Case {
    pub(super) name: &'static str,
    pub(super) about: &'static str,
    pub(super) body: Body,
    /// With `--long` the guest gets this instead of the text in `body`.
    pub(super) long: Option<&'static str>,
    /// Run only with `--long`.
    pub(super) only_long: bool,
    /// Changed settings of the hypervisor, as in `hostlink::config`.
    pub(super) settings: &'static [String],
    pub(super) memory: u64,
    /// Words added to its kernel's command line.
    pub(super) words: &'static str,
    pub(super) flush: FlushMode,
    pub(super) is_newer: bool,
    pub(super) is_counted: bool,
    /// Quell runs on KVM in the machine: a bare guest.
    pub(super) is_on_kvm: bool,
    /// Nothing runs below the bare guest.
    pub(super) is_bare: bool,
    /// The bare guest may have guests.
    pub(super) is_nested: bool,
    /// The platform. Tests of the tool itself name it in their arguments.
    pub(super) platform: Platform,
    /// Another platform with a row, and how that row's name ends.
    pub(super) also: Option<(&'static str, Platform)>,
}

#[derive(Clone, Copy)]
pub(super) enum Body {
    /// A stock guest runs a command.
    Stock(Stock),
    /// The bare guest makes one of its invalid requests.
    Probe(&'static str, ProbeEnd),
    /// The bare guest that tries everything runs one of its tests.
    Hostile(Hostile),
    /// tlbcheck runs.
    Check(&'static Check),
    /// A stock guest works while the test talks to its hypervisor.
    Talk { command: &'static str, about: Talk },
    /// Anything else, which is not made of values.
    Act(Act),
    /// The tool itself is called with arguments, separated by spaces outside of quotes. `{text}` is
    /// a file that is not a kernel, `{zeroes}` one of 65 MiB; `{arm}`, `{seven}`: `guests::tools`.
    Tool { args: &'static str, status: i32, message: &'static str },
}

#[derive(Clone, Copy)]
pub(super) struct Stock {
    pub(super) vcpus: u32,
    pub(super) cpus: u32,
    pub(super) command: &'static str,
    pub(super) expect: Expect,
}

impl Body {
    /// Whether it takes seconds only. Most acts and runs of tlbcheck take much longer.
    pub(super) const fn is_short(&self) -> bool {
        !matches!(self, Self::Act(_) | Self::Check(_))
    }
}

/// Text that stays, which no file lends.
pub(super) type Words = &'static str;

#[derive(Clone, Copy, Default, Deserialize)]
pub(super) enum Expect {
    #[default]
    Success,
    /// The command reports the correct time.
    Date,
    /// The guest switches itself off before the command ends.
    PowerOff,
    /// Thrash runs to its end, with or without TLB IPIs, and the reverse with flush hypercalls.
    TlbIpis(bool),
    /// Thrash runs to its end, and few wake-ups were lost meanwhile.
    FewLost,
    /// The hunter for stale translations has examined pages remapped in all ways, and found none.
    NothingStale,
    /// Flushes are broken because they kick no target, and the hunter detects it.
    Stale,
    /// The guest's kernel or programs break, whatever comes first; how it ends is a matter of that.
    Damage,
    /// Mmtest has toggled the ROM the expected number of times, and found everything correct.
    Intact,
    /// Each of the loops and the mixed run have finished, and their own checks have passed.
    Loops,
    /// Work of several processors on fewer CPUs: the guest knows how long they waited.
    Stolen,
    /// The guest's output exceeds the kept amount, and imitates the hypervisor as well.
    Flood,
    #[serde(skip)]
    Panic(Words),
    /// The command's status is 0, and the machine runs without exactly these of its CPUs.
    #[serde(skip)]
    WithoutCpus(&'static [u32]),
}

#[derive(Clone, Copy)]
pub(super) enum Talk {
    /// Requests that must be refused, and change nothing.
    Refusals,
    /// Memory over the registers of devices, which must be refused.
    Devices,
    Memory,
    /// Dirty logs, compared with the changes in memory.
    DirtyLog(LogWay),
    /// Not at all: another process watches it.
    Watch,
}

#[derive(Clone, Copy, Default, Deserialize)]
pub(super) enum ProbeEnd {
    /// It reports that the test passed and switches itself off.
    #[default]
    Passed,
    SecondPassed,
    /// The same for a test that needs a second processor, with both on one CPU.
    SharedPassed,
    /// The same for all its tests, some of which need a second processor.
    AllPassed,
    /// The same on KVM, which replaces the other vendor's hypercall by the processor's own.
    AllPassedOnKvm,
    /// No exit takes more instructions than it may where KVM emulates the processor.
    WithinBudgetsOnKvm,
    /// It reports that the test failed, on as many processors on so many CPUs.
    Failed(u32, u32),
    /// The run ends like this, and the log has its registers.
    #[serde(skip)]
    Ended(ExitCode),
}

/// A test of the bare guest that tries everything.
#[derive(Clone, Copy)]
pub(super) struct Hostile {
    /// Its name, and more words of the guest's command line.
    pub(super) test: &'static str,
    pub(super) vcpus: u32,
    pub(super) cpus: u32,
    /// How the machine ends. By power off: with the guest's report that the test has passed.
    pub(super) end: ExitCode,
}

impl Case {
    /// The row, and the one on the other platform.
    pub(super) fn rows(self) -> impl Iterator<Item = Self> {
        let other = self.also.map(|(end, platform)| {
            let name = format!("{}{end}", self.name).leak();
            Self { name, platform, ..self }
        });
        iter::once(self).chain(other)
    }
}

/// A stock guest is rebooted and switched off.
pub(super) const REBOOTS: Act = |room| room.lab.typed(room.platform, &["reboot\n", "poweroff\n"]);
/// The number of a flood's reports, and the text of its last line.
pub(super) const FLOOD_REPORTS: usize = 2500;
pub(super) const FLOOD_CLAIM: &str = "panic: the guest says so";
/// The loops, the rounds of all threads together, and the tasks of the run that resembles a build.
pub(super) const LOOPS: &str =
    "page_fault mmap mprotect context_switch futex futex_lock tlb_flush1 tlb_flush2 tlb_flush3";
pub(super) const LOOPS_COUNT: usize = 9;
pub(super) const LOOPS_ROUNDS: u64 = 800;
pub(super) const LOOPS_TASKS: u64 = 4;

pub(super) const ACTS: &[Named] = &[
    ("p14_migration_in_vain_changes_nothing", |room| room.lab.migrate(room.case)),
    ("reboot_reboots", REBOOTS),
    ("audit_counts_invalidations", |room| room.lab.invalidations(room.case, "list_in_parts")),
];
