//! `quell test`: all tests. Host tests and linters by cargo, then guests under QEMU.

mod arm;
mod attack;
mod bochs;
mod budgets;
mod cases;
mod checks;
#[cfg(test)]
mod circles;
mod devices;
mod disks;
mod dma;
mod guests;
mod host;
mod inner;
#[cfg(test)]
mod invariants;
mod kernels;
mod lines;
mod litmus;
#[cfg(test)]
mod models;
mod mutants;
#[cfg(test)]
mod names;
mod own_kernel;
mod packages;
mod pages;
#[cfg(test)]
mod panics;
#[cfg(test)]
mod partners;
mod peers;
mod prelude;
mod progress;
#[cfg(test)]
mod publics;
mod releases;
mod room;
mod rows;
mod screens;
mod script;
mod second;
mod several;
mod siege;
#[cfg(test)]
mod size;
mod stage2;
mod storm;
mod style;
mod talk;
mod traces;
#[cfg(test)]
mod verdicts;
mod watch;

use crate::prelude::*;
pub(crate) use style::check as check_style;

use crate::cli::TestArgs;
use progress::ProgressView;
use std::collections::VecDeque;
use std::sync::LazyLock;

/// The most tests at one time, unless the command line requests more.
const JOBS_MAX: usize = 4;

const QUICK: &str = "\
    format unit-tests lint-host lint-docs lint-hypervisor lint-hypervisor-arm nproc_is_8 probe_all \
    o1_nothing_stale_with_hypercalls ctl_memory_comes_and_goes hostile_guest_is_alive \
    audit_counts_invalidations arm_nproc_is_8_on_max hostile_guest_is_alive_on_arm \
    p19_memory_that_goes_is_gone_on_max a3_arrivals_drop";

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Tally {
    passed: usize,
    failed: usize,
    /// Of the passed ones, those that passed at the second try.
    second: usize,
    /// Rows and steps that were left out, and all of which it is known what came of them.
    left_out: usize,
    rows: usize,
}

impl Tally {
    fn add(&mut self, other: Self) {
        self.passed += other.passed;
        self.failed += other.failed;
        self.second += other.second;
        self.left_out += other.left_out;
        self.rows += other.rows;
    }
}

pub(crate) fn test(args: &TestArgs, signals: &Signals) -> Result<u8> {
    let wanted = |name: &str| {
        (!args.quick || QUICK.split(' ').any(|quick| quick == name))
            && args.filter.as_ref().is_none_or(|texts| texts.split(',').any(|text| name.contains(text)))
    };
    if let Some(room) = &args.mutants {
        return mutants::test(args, room, signals);
    }
    if args.list {
        let names = host::STEPS.iter().map(|step| (&*step.name, &*step.about));
        let names = names.chain(ALL_CASES.iter().map(|case| (case.name, case.about)));
        for (name, about) in names.filter(|(name, _)| wanted(name)) {
            println!("{name:<40} {about}");
        }
        return Ok(0);
    }
    let due: Vec<_> =
        host::STEPS.iter().filter(|step| wanted(&step.name) && (args.long || !step.only_long)).collect();
    let is_due = |case: &&cases::Case| wanted(case.name) && (args.long || !case.only_long);
    let mut rows: Vec<_> = ALL_CASES.iter().filter(is_due).collect();
    // The long ones first: at the end no lane waits long for another.
    rows.sort_by_key(|case| case.body.is_short());
    let rows = rows.repeat(args.repeat as usize);
    let (progress, parts) = (ProgressView::new(), guests::Parts::new(&rows)?);
    let count = due.len() + rows.len();
    let (steps, cases) = (Queue::of(due.into_iter()), Queue::of(rows.into_iter()));
    // Cargo's steps wait for each other: one lane runs them all, then helps with guests.
    let lane = |is_first: bool| -> Result<Tally> {
        let mut tally = Tally::default();
        while let Some(step) = is_first.then(|| steps.next(signals)).flatten() {
            tally.add(step.run(&progress, signals)?);
        }
        tally.add(guests::run_all(|| cases.next(signals), &parts, args.long, &progress, signals)?);
        Ok(tally)
    };
    let mut total = Tally::default();
    let lanes = args.jobs.unwrap_or_else(jobs);
    thread::scope(|scope| {
        let lanes: Vec<_> = (0..lanes).map(|index| scope.spawn(move || lane(index == 0))).collect();
        for lane in lanes {
            total.add(lane.join().map_err(|_| anyhow!("a lane of the tests has panicked"))??);
        }
        Ok::<_, anyhow::Error>(())
    })?;
    drop(progress);
    let has_mutants = args.long && wanted("mutants");
    let status = if has_mutants && count == 0 { 0 } else { verdict(total, count, signals) };
    if status == 0 && has_mutants { mutants::try_some(signals) } else { Ok(status) }
}

/// The default number of concurrent tests: as many as there are CPUs, up to a number at which
/// machines of two CPUs each do not strain memory. A third on two CPUs gains nothing: none is idle.
fn jobs() -> usize {
    thread::available_parallelism().map_or(1, usize::from).min(JOBS_MAX)
}

/// Tests that remain to be run, shared by several lanes.
struct Queue<T>(Mutex<VecDeque<T>>);

impl<T> Queue<T> {
    fn of(all: impl Iterator<Item = T>) -> Self {
        Self(Mutex::new(all.collect()))
    }

    /// The next one; `None` after a signal.
    fn next(&self, signals: &Signals) -> Option<T> {
        let mut left = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if signals.caught().is_some() { None } else { left.pop_front() }
    }
}

static ALL_CASES: LazyLock<Vec<cases::Case>> = LazyLock::new(|| {
    let acts = [
        cases::ACTS,
        checks::ACTS,
        screens::ACTS,
        arm::ACTS,
        stage2::ACTS,
        packages::ACTS,
        releases::ACTS,
        traces::ACTS,
        bochs::ACTS,
        budgets::ACTS,
        devices::ACTS,
        disks::ACTS,
        kernels::ACTS,
        inner::ACTS,
        own_kernel::ACTS,
        dma::ACTS,
        litmus::ACTS,
        peers::ACTS,
        several::ACTS,
        pages::ACTS,
        attack::ACTS,
        attack::isolation::ACTS,
        attack::operator::ACTS,
    ];
    let acts = acts.into_iter().flatten().copied().collect();
    let mut rows = rows::read(&acts).expect("rows.toml is right");
    let is_there =
        |case: &cases::Case| pages::can_be_shown() || pages::ACTS.iter().all(|(name, _)| *name != case.name);
    rows.retain(is_there);
    rows.into_iter().flat_map(cases::Case::rows).collect()
});

/// Prints the last line, and returns the process's status: 0 if some have passed, none has failed,
/// and it is known of all `due` rows and steps what came of them.
fn verdict(total: Tally, due: usize, signals: &Signals) -> u8 {
    if let Some(signal) = signals.caught() {
        eprintln!("quell: stopped by signal {signal}");
        return u8::try_from(128 + signal).unwrap_or(1);
    }
    let others = [
        (total.second, "at the second try"),
        (total.left_out, "left out"),
        (due.abs_diff(total.rows), "not run"),
    ];
    let others =
        others.iter().filter(|(count, _)| *count != 0).map(|(count, what)| format!(", {count} {what}"));
    println!("{} passed, {} failed{}", total.passed, total.failed, others.collect::<String>());
    u8::from(total.failed > 0 || total.passed == 0 || total.rows != due)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn u50_the_status_is_0_only_if_some_have_passed_and_none_has_failed() {
        let right = Tally { passed: 9, failed: 0, second: 1, left_out: 1, rows: 3 };
        let status = |tally| verdict(tally, 3, &Signals::default());
        assert_eq!(status(right), 0);
        for wrong in [
            Tally { failed: 1, ..right },
            Tally { passed: 0, ..right },
            Tally { rows: 2, ..right },
            Tally { rows: 4, ..right },
        ] {
            assert_eq!(status(wrong), 1, "{wrong:?}");
        }
        let signals = Signals::default();
        signals.catch(2);
        assert_eq!(verdict(right, 3, &signals), 130);
    }

    fn names() -> impl Iterator<Item = &'static str> {
        host::STEPS.iter().map(|step| &*step.name).chain(ALL_CASES.iter().map(|case| case.name))
    }

    #[test]
    fn each_row_has_a_name_of_its_own_and_says_what_it_shows() {
        names().for_each(|name| assert_eq!(names().filter(|other| *other == name).count(), 1, "{name}"));
        ALL_CASES.iter().for_each(|case| assert!(!case.about.is_empty(), "{}", case.name));
    }

    #[test]
    fn what_is_quick_exists() {
        let names: Vec<_> = names().collect();
        for quick in QUICK.split(' ') {
            assert!(names.contains(&quick), "{quick}");
        }
    }
}
