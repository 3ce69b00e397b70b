//! What a test checks: clauses of the contract, by their names, and where they do not hold.

use core::fmt::Arguments;

use baremetal::x86_64::serial::{CONSOLE, REPORTS};
use spin::Mutex;

use crate::report::{Failure, Verdict, ensure, failure, say};

/// Where the probe may run, by `on=` of the command line: emulators, and Quell on them.
pub(super) const QEMU: u8 = 1;
pub(super) const BOCHS: u8 = 2;
const QUELL_ON_QEMU: u8 = 4;
const QUELL_ON_BOCHS: u8 = 8;

/// A clause that an emulator breaks: it must not hold there, or its entry here is wrong.
struct Deviation {
    clause: &'static str,
    on: u8,
}

const fn deviation(clause: &'static str, on: u8) -> Deviation {
    Deviation { clause, on }
}

/// `docs/qemu.md` says what each is.
const DEVIATIONS: &[Deviation] = &[
    deviation("svm-disable-refused", QEMU | BOCHS),
    deviation("invalid-is-64-bits", QEMU),
    deviation("hsave-misaligned", BOCHS),
    deviation("hsave-beyond", BOCHS),
    deviation("refused-pe", BOCHS),
    deviation("refused-cr3-high", BOCHS),
    deviation("refused-msr-map-end", BOCHS),
    deviation("refused-io-map-end", BOCHS),
    deviation("refused-event-overflow", QEMU | BOCHS | QUELL_ON_QEMU | QUELL_ON_BOCHS),
    deviation("refused-event-bound", QEMU | BOCHS | QUELL_ON_QEMU | QUELL_ON_BOCHS),
    deviation("mov-from-cr3", QEMU | QUELL_ON_QEMU),
    deviation("mov-from-cr4", QEMU | QUELL_ON_QEMU),
    deviation("mov-from-cr8", QEMU | QUELL_ON_QEMU),
    deviation("rdtscp", QEMU | QUELL_ON_QEMU),
    deviation("exception-3", QEMU | QUELL_ON_QEMU),
    deviation("exception-12", QEMU | QUELL_ON_QEMU),
    deviation("port-address-size", QEMU | QUELL_ON_QEMU),
    deviation("msr-upper-half", QEMU | QUELL_ON_QEMU),
    deviation("double-fault", QEMU | QUELL_ON_QEMU),
    deviation("virtual-at-tpr", QEMU | QUELL_ON_QEMU),
    deviation("virtual-after-tpr", QEMU),
    deviation("virtual-ends-halt", BOCHS),
    deviation("fault-without-next-rip", BOCHS | QUELL_ON_BOCHS),
    deviation("tsc-offset-msr", QEMU),
    deviation("halt-ends-without-if", BOCHS),
    deviation("random-nested-bits", BOCHS),
    deviation("random-clean-bits", BOCHS),
    deviation("random-flags", BOCHS | QUELL_ON_BOCHS),
    deviation("invlpga-unknown", BOCHS),
    deviation("inject-nmi-blocks-none", BOCHS),
    deviation("taken-tlb-control", BOCHS),
    deviation("skinit-not-offered", BOCHS),
    deviation("trap-dr6", QUELL_ON_BOCHS),
    deviation("init-waits-for-gif", QEMU),
    deviation("init-exits", QEMU),
    deviation("nested-reserved-present", QEMU),
    deviation("nested-refused-cr3", QEMU),
    deviation("nested-refused-pat", QEMU),
    deviation("nested-pat-loaded", QEMU),
    deviation("nested-pat-saved", QEMU),
    deviation("nested-pat-of-host", QEMU),
    deviation("nested-ones", QEMU),
    deviation("nested-no-table", QEMU),
];

struct State {
    machine: u8,
    /// By the deviations' indices: those that were looked at, and those that showed.
    seen: u64,
    shown: u64,
    /// Of the running test: the number of clauses that did not hold, and the first of them.
    failures: u32,
    first: Option<Failure>,
    checked: u32,
}

static STATE: Mutex<State> =
    Mutex::new(State { machine: 0, seen: 0, shown: 0, failures: 0, first: None, checked: 0 });

/// Most failures of a test that are reported in words.
const SAID_MAX: u32 = 12;

/// Sets the machine that the probe runs on. An emulator has ports that nobody has set up.
pub(crate) fn run_on(name: Option<&str>) -> Verdict {
    STATE.lock().machine = match name {
        None => 0,
        Some("qemu") => QEMU,
        Some("bochs") => BOCHS,
        Some("quell-on-qemu") => QUELL_ON_QEMU,
        Some("quell-on-bochs") => QUELL_ON_BOCHS,
        Some(name) => return Err(failure(format_args!("on={name} is not known"))),
    };
    if is_bare() {
        CONSOLE.set_up();
        REPORTS.set_up();
    }
    Ok(())
}

/// Whether it is an emulator's.
pub(crate) fn is_bare() -> bool {
    STATE.try_lock().is_some_and(|state| state.machine & (QEMU | BOCHS) != 0)
}

/// The bit of a clause that the machine is known to break, or 0.
fn known(clause: &str, machine: u8) -> u64 {
    let is_it = |it: &Deviation| it.clause == clause && it.on & machine != 0;
    DEVIATIONS.iter().position(is_it).map_or(0, |index| 1 << index)
}

/// Whether the machine is known to break a clause that cannot be tried there.
pub(super) fn breaks(clause: &str) -> bool {
    let mut state = STATE.lock();
    let bit = known(clause, state.machine);
    (state.seen, state.shown) = (state.seen | bit, state.shown | bit);
    bit != 0
}

/// Notes whether a clause holds.
pub(super) fn check(clause: &str, holds: bool, found: Arguments<'_>) {
    let mut state = STATE.lock();
    let bit = known(clause, state.machine);
    state.seen |= bit;
    state.checked += 1;
    if holds {
        return;
    }
    if bit != 0 {
        if state.shown & bit == 0 {
            say(format_args!("  deviates: {clause}: {found}"));
        }
        state.shown |= bit;
        return;
    }
    state.failures += 1;
    if state.failures <= SAID_MAX {
        say(format_args!("  {clause}: {found}"));
    }
    state.first.get_or_insert_with(|| failure(format_args!("{clause}: {found}")));
}

/// A clause: its name, whether it holds, and what was found.
macro_rules! clause {
    ($name:expr, $holds:expr, $($found:tt)+) => {
        $crate::svm::clauses::check($name, $holds, format_args!($($found)+))
    };
}
pub(super) use clause;

/// What was not tried, and why.
pub(super) fn skip(what: &str, why: &str) {
    say(format_args!("  skipped: {what}: {why}"));
}

/// The verdict on the clauses of a test that has come to its end by itself.
pub(super) fn verdict(ended: Verdict) -> Verdict {
    let mut state = STATE.lock();
    let (first, checked) = (state.first.take(), core::mem::take(&mut state.checked));
    let failures = core::mem::take(&mut state.failures);
    say(format_args!("  {checked} checks, {failures} failed"));
    ended?;
    ensure!(checked != 0, "nothing was checked");
    first.map_or(Ok(()), Err)
}

/// Whether each known deviation of the machine showed.
pub(super) fn all_deviate() -> Verdict {
    let State { machine, shown, .. } = *STATE.lock();
    for it in DEVIATIONS.iter().filter(|it| it.on & machine != 0) {
        ensure!(shown & known(it.clause, machine) != 0, "{} holds, and is said not to", it.clause);
    }
    Ok(())
}
