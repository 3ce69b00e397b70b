//! `test=svm`: the probe is a hypervisor itself, and checks the contract of nested SVM.
//! `test=svm-NAME` is one of the tests, `test=svm-nested` those of nested paging; `on=` names an
//! emulator on which the probe runs bare, whose deviations are known (`clauses.rs`).

mod block;
mod clauses;
mod discovery;
mod events;
mod exits;
mod init;
mod interrupts;
mod l2;
mod maps;
mod paging;
mod refused;
mod shared;
mod state;
mod storms;
mod tags;
mod world;

use core::sync::atomic::Ordering;

use crate::report::{self, Verdict, failure};

pub(crate) use clauses::{is_bare, run_on};
pub(crate) use l2::set_ram;
pub(crate) use shared::bench as bench_direct;
pub(crate) use storms::set_count;

type Test = (&'static str, fn() -> Verdict);

const TESTS: &[Test] = &[
    ("svm-discovery", discovery::discovery),
    ("svm-instructions", discovery::instructions),
    ("svm-refused", refused::refused),
    ("svm-taken", refused::taken),
    ("svm-intercepts", exits::intercepts),
    ("svm-exceptions", exits::exceptions),
    ("svm-soft-events", exits::soft_events),
    ("svm-shutdown", exits::shutdown),
    ("svm-ports", maps::ports),
    ("svm-msrs", maps::msrs),
    ("svm-loaded", state::loaded),
    ("svm-saved", state::saved),
    ("svm-extra", state::extra),
    ("svm-injected", events::injected),
    ("svm-interrupted", events::interrupted),
    ("svm-traps", events::traps),
    ("svm-gif", interrupts::gif),
    ("svm-pending", interrupts::pending),
    ("svm-masks", interrupts::masks),
    ("svm-injected-nmi", interrupts::injected_nmi),
    ("svm-virtual", interrupts::virtual_interrupts),
    ("svm-init", init::init),
    ("svm-halt", storms::halt),
    ("svm-tsc", tags::tsc),
    ("svm-flushes", tags::flushes),
    ("svm-processors", storms::processors_apart),
    ("svm-interrupts", storms::interrupted),
    ("svm-changed", storms::changed_meanwhile),
    ("svm-random", storms::random_blocks),
];

/// These need nested paging.
const NESTED_TESTS: &[Test] = &[
    ("svm-nested-translated", paging::translated),
    ("svm-nested-faults", paging::faults),
    ("svm-nested-bits", paging::bits),
    ("svm-nested-flushes", paging::flushes),
    ("svm-nested-roots", paging::roots),
    ("svm-nested-refused", paging::refused),
    ("svm-nested-modes", paging::modes),
    ("svm-nested-places", paging::places),
    ("svm-nested-processors", shared::by_asking),
    ("svm-nested-random", storms::random_tables),
    ("svm-nested-again", all_again),
];

/// These need Hyper-V's enlightenments, or devices of Quell's.
const TOLD_TESTS: &[Test] = &[
    ("svm-nested-told", shared::by_call),
    ("svm-nested-direct", shared::by_guest),
    ("svm-nested-slots", shared::by_slot),
];

fn run_one((name, run): &Test) {
    report::begin(name);
    report::end(name, &clauses::verdict(l2::enable().and_then(|()| run())));
}

/// All others, with nested paging.
fn all_again() -> Verdict {
    l2::IS_NESTED.store(true, Ordering::Relaxed);
    let ended = TESTS.iter().try_for_each(|(name, run)| {
        report::say(format_args!(" {name}"));
        l2::enable().and_then(|()| run())
    });
    l2::IS_NESTED.store(false, Ordering::Relaxed);
    ended
}

/// Those of nested paging, if there is any.
fn nested_tests() -> impl Iterator<Item = &'static Test> {
    let has_paging = l2::features().nested_paging();
    let is_told = has_paging && shared::is_offered();
    for (name, is_there) in [("svm-nested", has_paging), ("svm-nested-told", is_told)] {
        if !is_there {
            clauses::skip(name, "CPUID does not have it");
        }
    }
    let of = |is_there: bool, tests: &'static [Test]| if is_there { tests } else { &[] };
    of(has_paging, NESTED_TESTS).iter().chain(of(is_told, TOLD_TESTS))
}

/// Runs the test of that name, those of nested paging, or all.
pub(crate) fn run(asked: &'static str) -> Verdict {
    match asked {
        "svm" => {
            TESTS.iter().chain(nested_tests()).for_each(run_one);
            report::end("svm", &clauses::all_deviate());
        }
        "svm-nested" => nested_tests().for_each(run_one),
        _ => {
            let is_it = |test: &&Test| test.0 == asked;
            let test = TESTS.iter().chain(nested_tests()).find(is_it);
            test.map(run_one).ok_or_else(|| failure(format_args!("there is no test {asked}")))?;
        }
    }
    Ok(())
}
