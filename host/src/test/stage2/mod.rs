//! Whether it is detected when the hypervisor for Arm leaves translations in place: by guests that
//! keep reading removed memory, and, where the emulator shows no difference, by the executed
//! instructions.
//!
//! QEMU's TLB has no VMID tags, keeps no entries of stage 2 alone except for pages with tables of
//! stage 1, and completes all maintenance at the next barrier of any kind: it cannot show the
//! effect of DSB ISHST and of the domain of the last DSB. It drops everything when TCR_EL1 is
//! written, so an arriving vCPU never finds stale entries.

mod script;
#[cfg(test)]
mod tests;

use super::script::Script;

use super::cases::{Body, Case, Expect, STALE, case, stock};
use crate::arch::{ArmCpu, Platform};
use crate::bench::phases::{Counts, Phases};
use crate::machine::signals::Signals;
use crate::machine::spec::{Clock, Counting, Spec};
use crate::run::switches;
use crate::size::MIB;
use crate::vm::{Guest, Hypervisor};
use anyhow::{Context, Result, anyhow, ensure};
use baremetal::pages::PAGE;
use hostlink::config::{FlushMode, NestedPage, Switches};
use hostlink::counters::Counter;
use hostlink::phase::Phase;
use std::path::Path;
use std::time::Duration;

/// The action, and the expected result. The defect of the hypervisor is in the case's settings.
pub(super) enum Test {
    /// Memory is removed and added again while all vCPUs read it. `true` if one of them has to keep
    /// seeing the old contents.
    Watch(bool),
    /// This many pages are removed, with these instructions.
    Counts(u64, Sequence),
    /// [`MANY`] pages are removed by range instructions, and the executed instructions are rejected
    /// for this reason.
    Refused(&'static str),
    /// Two vCPUs take turns on a CPU, which drops its entries when one arrives.
    Arrivals,
}

/// Maintenance for removed memory. There may be nothing else of these kinds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Sequence {
    /// Range instructions, and instructions for single pages.
    ripas2e1is: u64,
    ipas2e1is: u64,
    /// For entries of both stages, and for everything of the VMID.
    vmalle1is: u64,
    vmalls12e1is: u64,
    ish: u64,
}

const MAX: Platform = Platform::Aarch64(ArmCpu::Max);
const N1: Platform = Platform::Aarch64(ArmCpu::NeoverseN1);
const A72: Platform = Platform::Aarch64(ArmCpu::CortexA72);

/// Pages that are removed one by one if there are no range instructions, and a number above that
/// limit.
const FEW: u64 = 100;
const MANY: u64 = 2048;

/// Between the two. Instructions that are counted take no time, so no cost could be measured.
const LIMIT: &[&str] = &["flush_pages=200"];

/// One range, entries of both stages, a DSB for each.
const BY_RANGE: Sequence = Sequence { ripas2e1is: 1, ipas2e1is: 0, vmalle1is: 1, vmalls12e1is: 0, ish: 2 };
/// Page by page; this does not need more DSBs.
const BY_PAGE: Sequence = Sequence { ripas2e1is: 0, ipas2e1is: FEW, ..BY_RANGE };
const WHOLE: Sequence = Sequence { ripas2e1is: 0, ipas2e1is: 0, vmalle1is: 0, vmalls12e1is: 1, ish: 1 };

impl Sequence {
    /// With the last instruction and its DSB repeated, as the errata require.
    const fn repeated(self) -> Self {
        let by_address = self.vmalls12e1is == 0;
        Self {
            vmalle1is: self.vmalle1is + by_address as u64,
            vmalls12e1is: self.vmalls12e1is + !by_address as u64,
            ish: self.ish + 1,
            ..self
        }
    }

    /// Whether the counts match, without other maintenance.
    fn check(&self, counted: &Counts) -> Result<()> {
        let of = |name| counted.of_kind(name);
        ensure!(of("nsh") == 0, "DSB NSH waits for the own processor alone: {counted:?}");
        let found = Self {
            ripas2e1is: of("ripas2e1is"),
            ipas2e1is: of("ipas2e1is"),
            vmalle1is: of("vmalle1is"),
            vmalls12e1is: of("vmalls12e1is"),
            ish: of("ish"),
        };
        ensure!(found == *self, "{found:?} instead of {self:?}");
        let total = self.ripas2e1is + self.ipas2e1is + self.vmalle1is + self.vmalls12e1is;
        ensure!(counted.tlbi() == total, "there are other TLBIs: {counted:?}");
        ensure!(of("ishst") >= 1, "stores to tables are not ordered before the TLBI: {counted:?}");
        Ok(())
    }
}

pub(super) const ROWS: [Case; 18] = [
    watch(
        "p19_memory_that_goes_is_gone_on_max",
        "all vCPUs notice, and see zeroes when other memory is added",
        false,
    ),
    watch("p19_memory_that_goes_is_gone_on_neoverse_n1", "and on a neoverse-n1", false).on(N1),
    watch("p19_memory_that_goes_is_gone_on_cortex_a72", "and on a cortex-a72", false).on(A72),
    watch("p19_memory_that_goes_is_gone_whole", "and where all that the VMID tags is dropped", false)
        .with(&["stage2_unmap=whole"]),
    watch("p19_missing_combined_is_caught", "without VMALLE1IS a vCPU goes on reading", true)
        .with(&["defect=stage2-no-combined"]),
    watch("stage2_missing_tlbi_is_caught", "and so it does without VMALLS12E1IS", true)
        .with(&["defect=stage2-no-tlbi", "stage2_unmap=whole"]),
    counts(
        "o12_sequence_on_max",
        "one range instruction, VMALLE1IS, two DSB ISH, DSB ISHST before",
        MANY,
        BY_RANGE,
    ),
    counts("o12_sequence_on_cortex_a72", "without range instructions, one for each page", FEW, BY_PAGE)
        .on(A72)
        .with(LIMIT),
    counts("o12_sequence_whole_on_cortex_a72", "and VMALLS12E1IS where that is too many", MANY, WHOLE)
        .on(A72)
        .with(LIMIT),
    counts("o2_sequence_is_repeated_on_neoverse_n1", "its errata demand one more", FEW, BY_PAGE.repeated())
        .on(N1)
        .with(LIMIT),
    refused("o12_missing_ishst_is_counted", "without DSB ISHST", "not ordered before")
        .with(&["defect=stage2-no-ishst"]),
    refused("o11_dsb_nsh_is_counted", "with DSB NSH for ISH", "DSB NSH waits")
        .with(&["defect=stage2-dsb-nsh"]),
    refused("stage2_missing_ranges_are_counted", "without RIPAS2E1IS", "ripas2e1is: 0")
        .with(&["defect=stage2-no-tlbi"]),
    refused("p19_missing_combined_is_counted", "without VMALLE1IS", "vmalle1is: 0")
        .with(&["defect=stage2-no-combined"]),
    case(
        "a3_arrivals_drop",
        "each arrival of another vCPU on a CPU flushes that CPU's translations",
        Body::Stage2(Test::Arrivals),
    )
    .on(MAX),
    stock(
        "a3_missing_arrival_flush_is_audited",
        "and the auditor detects a missing flush",
        (4, 2),
        FlushMode::Hypercall,
        STALE,
        Expect::Panic("audit: the CPU holds translations of vCPU"),
    )
    .on(MAX)
    .with(&["defect=no-arrival-flush"]),
    stock(
        "a4_nothing_stale_while_generations_roll_over",
        "other machines constantly take VMIDs, of which there are three",
        (4, 2),
        FlushMode::Hypercall,
        STALE,
        Expect::NothingStale,
    )
    .with(&["vmid_bits=2", "vmid_churn=3"])
    .on(MAX),
    super::cases::tool(
        "arm_foreign_defect_is_refused",
        "the hypervisor for Arm refuses a defect of flush hypercalls",
        &["check", "--arch", "aarch64", "--on", "quell", "--defect", "ring3"],
        super::cases::TestFile::None,
        (1, "architecture"),
    ),
];

const fn watch(name: &'static str, about: &'static str, is_stale: bool) -> Case {
    case(name, about, Body::Stage2(Test::Watch(is_stale))).on(MAX)
}

const fn counts(name: &'static str, about: &'static str, pages: u64, sequence: Sequence) -> Case {
    case(name, about, Body::Stage2(Test::Counts(pages, sequence))).on(MAX)
}

const fn refused(name: &'static str, about: &'static str, why: &'static str) -> Case {
    case(name, about, Body::Stage2(Test::Refused(why))).on(MAX)
}

/// Memory of the guest itself.
const MEMORY: u64 = 64 * MIB;
/// Address of the memory that is added and removed.
const AT: u64 = 4 << 30;
/// A word of its second page, and the value that `touch` in steps of words has left there.
const WORD: u64 = AT + PAGE + 8;
const LEFT: u64 = (PAGE + 8) / 8;
/// Longest time for a step, and for a whole run.
const PATIENCE: Duration = Duration::from_secs(20);
const TIMEOUT: Duration = Duration::from_secs(60);
/// How long it takes to be sure that a vCPU does not notice: memory is removed before the request
/// is answered.
const NOTICING: Duration = Duration::from_secs(2);
/// vCPUs that watch.
const WATCHERS: usize = 2;

/// Runs a test.
pub(super) fn run(
    case: &Case,
    test: &Test,
    hypervisor: &Hypervisor,
    directory: &Path,
    signals: &Signals,
) -> Result<()> {
    let mut switches = switches(case.settings)?;
    switches.nested_page = NestedPage::Small;
    let lab = Lab { case, hypervisor, directory, signals, switches };
    match test {
        Test::Watch(is_stale) => lab.watch(*is_stale),
        Test::Counts(pages, sequence) => sequence.check(&lab.counts(*pages)?),
        Test::Refused(why) => match BY_RANGE.check(&lab.counts(MANY)?) {
            Ok(()) => Err(anyhow!("the instructions are those of a hypervisor without mistakes")),
            Err(error) => {
                let error = error.to_string();
                ensure!(error.contains(why), "the instructions are wrong, but not for '{why}': {error}");
                Ok(())
            }
        },
        Test::Arrivals => lab.arrivals(),
    }
}

struct Lab<'a> {
    case: &'a Case,
    hypervisor: &'a Hypervisor,
    directory: &'a Path,
    signals: &'a Signals,
    switches: Switches,
}

impl Lab<'_> {
    /// A machine whose guest accepts commands.
    fn spec(&self, (vcpus, cpus): (u32, u32), clock: Clock) -> Result<Spec> {
        let guest = Guest::load(self.case.platform, vcpus, MEMORY, self.switches)?;
        let mut spec = guest.on_quell(self.hypervisor, cpus, clock, self.directory)?;
        spec.timeout = Some(TIMEOUT);
        Ok(spec)
    }

    fn start(&self, spec: &Spec) -> Result<Script> {
        Script::start(spec, self.signals, PATIENCE)
    }

    fn watch(&self, is_stale: bool) -> Result<()> {
        let mut script = self.start(&self.spec((WATCHERS as u32, WATCHERS as u32), Clock::Wall)?)?;
        let watched = script.watch(if is_stale { NOTICING } else { PATIENCE });
        let outcome = script.end()?;
        let noticed = watched.map_err(|error| outcome.explain(error))?;
        ensure!(
            noticed != is_stale,
            match is_stale {
                true => anyhow!("all vCPUs have noticed that memory has gone"),
                false => outcome.explain(anyhow!("a vCPU goes on reading memory that has gone")),
            }
        );
        Ok(())
    }

    fn counted(&self, spec: &mut Spec) -> Result<Counting> {
        let counting = Phases::counting(self.directory)?;
        spec.counting = Some(counting.clone());
        Ok(counting)
    }

    /// The counts while `pages` pages are removed.
    fn counts(&self, pages: u64) -> Result<Counts> {
        let mut spec = self.spec((1, 1), Clock::Instructions)?;
        let counting = self.counted(&mut spec)?;
        let mut script = self.start(&spec)?;
        let worked = script.come_and_go(pages * PAGE);
        let outcome = script.end()?;
        worked.map_err(|error| outcome.explain(error))?;
        let phases = Phases::read(&counting)?;
        Ok(phases.of(Phase::Blocking)?.and(phases.of(Phase::Reclaim)?))
    }

    fn arrivals(&self) -> Result<()> {
        let mut spec = self.spec((WATCHERS as u32, 1), Clock::Instructions)?;
        let counting = self.counted(&mut spec)?;
        let mut script = self.start(&spec)?;
        let worked = script.take_turns();
        let outcome = script.end()?;
        worked.map_err(|error| outcome.explain(error))?;
        let counters = outcome.counters.context("there are no counters")?;
        let arrivals = counters.get(Counter::FlushArrival);
        ensure!(arrivals >= ARRIVALS_MIN, "{arrivals} arrivals are too few to tell anything");
        check_drops(Phases::read(&counting)?.of(Phase::None)?, arrivals)
    }
}

/// Barriers that a hypervisor without mistakes executes outside of the maintenance of stage 2.
const BARRIERS: [&str; 6] = ["nsh", "ish", "ishst", "sy", "st", "ld"];

/// Checks that each arrival drops what the processor holds, and waits until that is done.
fn check_drops(counted: &Counts, arrivals: u64) -> Result<()> {
    let drops = counted.of_kind("vmalle1");
    ensure!(drops >= arrivals, "{drops} VMALLE1 for {arrivals} arrivals");
    let (waits, local) = (counted.of_kind("nsh"), counted.local_tlbi());
    ensure!(waits >= local, "{waits} DSB NSH for {local} local TLBIs: {counted:?}");
    let other = counted.dsb_kinds().find(|kind| !BARRIERS.contains(kind));
    ensure!(other.is_none(), "DSB {} is none of the hypervisor's: {counted:?}", other.unwrap_or_default());
    Ok(())
}

/// The minimum number of arrivals: the guest's own instructions are few in comparison.
const ARRIVALS_MIN: u64 = 20;
