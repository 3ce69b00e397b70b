//! `test=NAME`: wrong and rare actions of a guest, and their expected results.

mod breakpoints;
mod code_page;
mod cpuid_and_msrs;
mod delivery;
mod dirty;
mod events;
mod faults;
mod garbage;
mod hypercalls;
mod instructions;
mod interrupts_by_call;
mod interval;
mod io;
mod mmio;
mod once;
mod own;
mod parts;
mod prelude;
mod rom;
mod rom_races;
mod run_time;
mod storms;
mod supervisor;
mod tasks;
mod toggles;
mod waiting;
mod xapic;

use crate::report::{self, Verdict, failure};
use crate::tables;

/// One test. Names have dashes here; the command line also accepts underscores.
struct Test {
    name: &'static str,
    run: fn() -> Verdict,
}

const fn test(name: &'static str, run: fn() -> Verdict) -> Test {
    Test { name, run }
}

/// The tests that do not return.
const TRIPLE_FAULT: &str = "triple-fault";
const NO_WRITE_THROUGH: &str = "no-write-through";
const IDT_IN_NOTHING: &str = "u13-idt-in-nothing";

/// The others; the first must be before any that starts another processor.
const TESTS: &[Test] = &[
    test("flush-not-started", waiting::flush_not_started),
    test("unknown-msr", cpuid_and_msrs::unknown_msr),
    test("x2apic-reserved", cpuid_and_msrs::x2apic_reserved),
    test("unknown-port", io::unknown_port),
    test("string-io", io::string_io),
    test("mmio-hole", io::mmio_hole),
    test("mmio-arithmetic", mmio::mmio_arithmetic),
    test("mmio-strings", mmio::mmio_strings),
    test("mmio-edges", mmio::mmio_edges),
    test("invlpga", instructions::not_shown),
    test("cr4-reserved", instructions::cr4_reserved),
    test("prefixed-cpuid", instructions::prefixes),
    test("cluster-ipi", interrupts_by_call::cluster_ipi),
    test("garbage-hypercalls", garbage::garbage),
    test("nmi", events::nmi),
    test("timer", events::timer),
    test("u31-task-priority", events::task_priority),
    test("debug-registers", breakpoints::debug_registers),
    test("u11-smap", supervisor::smap),
    test("u13-stack-in-nothing", delivery::stack_in_nothing),
    test("u20-cmpxchg16b", instructions::cmpxchg16b),
    test("u22-task-switch", tasks::task_switch),
    test("u23-resume-flag", faults::resume_flag),
    test("u23-refused", faults::refused),
    test("u26-performance-counters", cpuid_and_msrs::performance_counters),
    test("u26-xapic", xapic::xapic),
    test("u26-interval-timer", interval::interval_timer),
    test("u58-canonical", cpuid_and_msrs::canonical),
    test("toggles-flush", toggles::toggles_flush),
    test("rights-follow", toggles::rights_follow),
    test("emulated-stores", dirty::emulated_stores),
    test("hypercall-page-moves", code_page::hypercall_page_moves),
    test("rom-follows-writes", rom::rom_follows_writes),
    test("rom-toggles", rom_races::rom_toggles),
    test("rom-moves", rom_races::rom_moves),
    test("rom-under-calls", rom_races::rom_under_calls),
    test("flush-reset", waiting::flush_reset),
];

/// Tests that are run only by name, because they need a hypervisor with a special configuration.
const APART: &[Test] = &[
    test("list-in-parts", parts::list_in_parts),
    test("run-time", run_time::run_time),
    test("u2-halted-timers", storms::halted_timers),
    test("u5-crash-reports", storms::crash_reports),
    test("u6-reset-storm", storms::reset_storm),
    test("u12-debug-names", breakpoints::debug_names),
    test("u23-second-nmi", faults::second_nmi),
    test("u32-interrupts-once", once::interrupts_once),
];

/// Whether the command line's name is this one.
fn is_name(asked: &str, name: &str) -> bool {
    asked.bytes().map(|byte| if byte == b'_' { b'-' } else { byte }).eq(name.bytes())
}

/// Runs the test of that name, or all of them. `count` sets the amount of work of a test; with
/// `all` it applies to the garbage test alone.
pub(crate) fn run(asked: &'static str, count: Option<u32>) {
    if let Some(count) = count {
        garbage::set_count(count);
    }
    if asked == "all" {
        for test in TESTS {
            report::begin(test.name);
            report::end(test.name, &(test.run)());
        }
        return;
    }
    if let Some(count) = count {
        rom_races::set_count(count);
        once::set_count(count);
    }
    report::begin(asked);
    if is_name(asked, TRIPLE_FAULT) {
        tables::triple_fault();
    }
    if is_name(asked, IDT_IN_NOTHING) {
        delivery::idt_in_nothing();
    }
    if is_name(asked, NO_WRITE_THROUGH) {
        instructions::no_write_through();
        tables::triple_fault();
    }
    let verdict = match TESTS.iter().chain(APART).find(|test| is_name(asked, test.name)) {
        Some(test) => (test.run)(),
        None => Err(failure(format_args!("there is no such test"))),
    };
    report::end(asked, &verdict);
}
