//! Whether it is detected when the hypervisor for Arm leaves translations in place: by guests that
//! keep reading removed memory, and by the executed instructions.
//!
//! QEMU's TLB has no VMID tags, keeps no entries of stage 2 alone except for pages with tables of
//! stage 1, and completes all maintenance at the next barrier of any kind: it cannot show the
//! effect of DSB ISHST and of the domain of the last DSB. It drops everything when TCR_EL1 is
//! written, so an arriving vCPU never finds stale entries.

mod script;
#[cfg(test)]
mod tests;

use super::script::Script;
use crate::bench::phases::{Counts, Phases};
use crate::test::prelude::*;
use hostlink::config::NestedPage;

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

/// Pages that are removed one by one without range instructions, and a number above that limit.
const FEW: u64 = 100;
const MANY: u64 = 2048;

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

pub(super) const ACTS: &[Named] = &[
    ("p19_memory_that_goes_is_gone_on_max", is_gone),
    ("p19_memory_that_goes_is_gone_on_neoverse_n1", is_gone),
    ("p19_memory_that_goes_is_gone_on_cortex_a72", is_gone),
    ("p19_memory_that_goes_is_gone_whole", is_gone),
    ("p19_missing_combined_is_caught", is_stale),
    ("stage2_missing_tlbi_is_caught", is_stale),
    ("o12_sequence_on_max", |room| BY_RANGE.check(&counts(room, MANY)?)),
    ("o12_sequence_on_cortex_a72", |room| BY_PAGE.check(&counts(room, FEW)?)),
    ("o12_sequence_whole_on_cortex_a72", |room| WHOLE.check(&counts(room, MANY)?)),
    ("o2_sequence_is_repeated_on_neoverse_n1", |room| BY_PAGE.repeated().check(&counts(room, FEW)?)),
    ("o12_missing_ishst_is_counted", |room| is_refused(room, "not ordered before")),
    ("o11_dsb_nsh_is_counted", |room| is_refused(room, "DSB NSH waits")),
    ("stage2_missing_ranges_are_counted", |room| is_refused(room, "ripas2e1is: 0")),
    ("p19_missing_combined_is_counted", |room| is_refused(room, "vmalle1is: 0")),
    ("a3_arrivals_drop", arrivals),
];

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
/// When it is certain that a vCPU does not notice: memory is gone before the answer.
const NOTICING: Duration = Duration::from_secs(2);
const WATCHERS: usize = 2;

/// A machine whose guest accepts commands, and has its memory in small pages.
fn spec(room: &Room<'_>, (vcpus, cpus): (u32, u32), clock: Clock) -> Result<Spec> {
    let switches = Switches { nested_page: NestedPage::Small, ..room.switches };
    let guest = Guest::load(room.platform, vcpus, MEMORY, switches)?;
    Room { clock, ..*room }.on_quell(&guest, cpus, TIMEOUT)
}

/// Memory is removed and added again while all vCPUs read it. Whether all of them notice in time.
fn notice(room: &Room<'_>, noticing: Duration) -> Result<(bool, Outcome)> {
    let spec = spec(room, (WATCHERS as u32, WATCHERS as u32), Clock::Wall)?;
    Script::run(&spec, room.signals, PATIENCE, |script| script.watch(noticing))
}

fn is_gone(room: &Room<'_>) -> Result<()> {
    let (noticed, outcome) = notice(room, PATIENCE)?;
    ensure!(noticed, outcome.explain(anyhow!("a vCPU goes on reading memory that has gone")));
    Ok(())
}

fn is_stale(room: &Room<'_>) -> Result<()> {
    ensure!(!notice(room, NOTICING)?.0, "all vCPUs have noticed that memory has gone");
    Ok(())
}

/// Counts what a script makes the machine execute.
fn counted(
    room: &Room<'_>,
    size: (u32, u32),
    act: impl FnOnce(&mut Script) -> Result<()>,
) -> Result<(Phases, Outcome)> {
    let mut spec = spec(room, size, Clock::Instructions)?;
    let counting = Phases::counting(room.directory)?;
    spec.counting = Some(counting.clone());
    let ((), outcome) = Script::run(&spec, room.signals, PATIENCE, act)?;
    Ok((Phases::read(&counting)?, outcome))
}

/// The counts while `pages` pages are removed.
fn counts(room: &Room<'_>, pages: u64) -> Result<Counts> {
    let (phases, _) = counted(room, (1, 1), |script| script.come_and_go(pages * PAGE))?;
    Ok(phases.of(Phase::Blocking)?.and(phases.of(Phase::Reclaim)?))
}

/// [`MANY`] pages are removed by ranges, and what was executed is rejected for this reason.
fn is_refused(room: &Room<'_>, why: &str) -> Result<()> {
    let Err(error) = BY_RANGE.check(&counts(room, MANY)?) else {
        bail!("the instructions are those of a hypervisor without mistakes")
    };
    let error = error.to_string();
    ensure!(error.contains(why), "the instructions are wrong, but not for '{why}': {error}");
    Ok(())
}

/// Two vCPUs take turns on a CPU, which drops its entries when one arrives.
fn arrivals(room: &Room<'_>) -> Result<()> {
    let (phases, outcome) = counted(room, (WATCHERS as u32, 1), Script::take_turns)?;
    let counters = outcome.counters.context("there are no counters")?;
    let arrivals = counters.get(Counter::FlushArrival);
    ensure!(arrivals >= ARRIVALS_MIN, "{arrivals} arrivals are too few to tell anything");
    check_drops(phases.of(Phase::None)?, arrivals)
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
