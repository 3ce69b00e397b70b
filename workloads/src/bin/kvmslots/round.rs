//! The measured operations.

use crate::guest::{Pass, Stop};
use crate::machine::{LogWay, Machine, wrong};
use hostlink::phase::Phase;
use std::io;
use std::ops::Range;
use std::time::Instant;
use workloads::phase::marked;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Part {
    Delete,
    Log,
}

/// Nanoseconds of a step, by its name.
type Step = (&'static str, u64);

impl Part {
    pub(crate) const fn name(self) -> &'static str {
        match self {
            Self::Delete => "delete",
            Self::Log => "log",
        }
    }

    /// Runs it on a machine without the slot, and removes the slot again.
    pub(crate) fn run(self, machine: &mut Machine) -> io::Result<Vec<Step>> {
        let (added, add) = timed(|| machine.add(false));
        added?;
        let pass = machine.next_pass(0, machine.pages());
        let fault_in = stores(machine, pass, Phase::FaultIn)?;
        let mut steps = vec![("add", add), ("fault_in", fault_in)];
        steps.extend(match self {
            Self::Delete => delete(machine)?,
            Self::Log => log(machine)?,
        });
        Ok(steps)
    }
}

/// The result of a function, and its duration in nanoseconds.
fn timed<R>(act: impl FnOnce() -> R) -> (R, u64) {
    let begin = Instant::now();
    let result = act();
    (result, u64::try_from(begin.elapsed().as_nanos()).unwrap_or(u64::MAX))
}

/// Lets the guest make stores, and checks them.
fn stores(machine: &mut Machine, pass: Pass, phase: Phase) -> io::Result<u64> {
    machine.tell(pass)?;
    let (done, ns) = marked(phase, || timed(|| machine.expect(Stop::Waits)));
    done?;
    machine.check_stores(pass)?;
    Ok(ns)
}

/// Lets the guest store to each page that stays.
pub(crate) fn store_elsewhere(machine: &mut Machine) -> io::Result<u64> {
    let pass = machine.next_pass_elsewhere();
    stores(machine, pass, Phase::None)
}

/// Deletes the slot while the guest waits, and lets it store to where the slot was.
fn delete(machine: &mut Machine) -> io::Result<Vec<Step>> {
    let pass = machine.next_pass(0, 1);
    machine.tell(pass)?;
    let mut remove = 0;
    let (gone_on, until_on) = marked(Phase::Blocking, || {
        timed(|| {
            let deleted;
            (deleted, remove) = timed(|| machine.delete());
            deleted?;
            machine.expect(Stop::Device { at: pass.at, value: pass.value(pass.at) })
        })
    });
    gone_on?;
    // The store is over when the guest continues; it was the only one.
    machine.expect(Stop::Waits)?;
    // That store has not reached the memory, which is as the previous pass left it.
    let last = Pass { count: machine.pages() as u64, salt: pass.salt.wrapping_sub(1), ..pass };
    machine.check_stores(last)?;
    let mut steps = vec![("remove", remove), ("until_on", until_on)];
    if machine.pages_elsewhere() != 0 {
        steps.push(("again", store_elsewhere(machine)?));
    }
    Ok(steps)
}

/// Logs stores to each page.
fn log(machine: &mut Machine) -> io::Result<Vec<Step>> {
    let (enabled, enable) = marked(Phase::DirtyEnable, || timed(|| machine.add(true)));
    enabled?;
    let pass = machine.next_pass(0, machine.pages());
    let write = stores(machine, pass, Phase::None)?;
    let (fetched, fetch) = marked(Phase::DirtyFetch, || timed(|| machine.fetch_log()));
    let mut fetched = fetched?;
    expect_pages(&fetched, 0..machine.pages())?;
    let mut steps = vec![("enable", enable), ("write", write), ("fetch", fetch)];
    if machine.log_way() == LogWay::Manual {
        let (cleared, clear) = marked(Phase::DirtyFetch, || timed(|| machine.clear_log(&mut fetched)));
        cleared?;
        steps.push(("clear", clear));
    }
    // The next log has exactly the stores from now on.
    let page = machine.pages() / 2;
    let pass = machine.next_pass(page, 1);
    machine.tell(pass)?;
    machine.expect(Stop::Waits)?;
    machine.check_stores(pass)?;
    expect_pages(&machine.fetch_log()?, page..page + 1)?;
    machine.delete()?;
    Ok(steps)
}

/// A log must name these pages and no others.
pub(crate) fn expect_pages(log: &[u64], expected: Range<usize>) -> io::Result<()> {
    let is_named = |page: usize| log.get(page / 64).is_some_and(|word| word & 1 << (page % 64) != 0);
    let pages = (log.len() * 64).max(expected.end);
    match (0..pages).find(|&page| is_named(page) != expected.contains(&page)) {
        None => Ok(()),
        Some(page) if expected.contains(&page) => {
            Err(wrong(format!("the log lacks page {page}, which was stored to")))
        }
        Some(page) => Err(wrong(format!("the log names page {page}, which was not stored to"))),
    }
}
