//! `bench=exits`, `bench=flush` and others: the cost of the hypervisor's operations.
//!
//! The unit is TSC ticks. On a machine whose clock is the number of instructions executed (QEMU's
//! `-icount shift=0`) these are instructions. The guest's own loop is not counted unless a case
//! says so.

mod flush;
mod memslot;
mod running;
mod slots;

use core::arch::asm;
use core::arch::x86_64::__cpuid;
use core::sync::atomic::{AtomicBool, Ordering};

use x86_64::instructions::interrupts;
use x86_64::instructions::port::Port;
use x86_64::registers::control::Cr4;
use x86_64::registers::model_specific::Msr;

pub(crate) use flush::flush;
pub(crate) use memslot::memslot;
pub(crate) use running::running;
pub(crate) use slots::{log, remove, touch};

use crate::apic::{self, LVT_TSC_DEADLINE};
use crate::interrupts::{VECTOR_ECHO, VECTOR_TICK, count};
use crate::processors::SECOND;
use crate::report::{Verdict, ensure, measured};
use crate::{clock, hypercall, processors, report};

const TSC_ADJUST: u32 = 0x3b;
/// The port to which firmware writes its progress; it has no device.
const PORT: u16 = 0x80;

/// Repetitions, and uncounted ones before them.
const REPETITIONS: u32 = 2000;
const WARM_UP: u32 = 200;

pub(crate) fn exits() -> Verdict {
    hypercall::enable()?;
    settle();
    single_exits();
    own_interrupts()?;
    round_trip()
}

/// Runs a benchmark, and reports its end.
pub(crate) fn reported(name: &'static str, run: impl FnOnce() -> Verdict) {
    report::begin(name);
    match run() {
        Ok(()) => report::done(),
        failed => report::end(name, &failed),
    }
}

/// Ticks of [`REPETITIONS`] of `operation`.
#[inline(always)]
fn time(mut operation: impl FnMut()) -> u64 {
    for _ in 0..WARM_UP {
        operation();
    }
    let start = clock::now();
    for _ in 0..REPETITIONS {
        operation();
    }
    clock::now() - start
}

/// Exits that do not count. On Xen the first 2,000 take some 1,000 instructions more, also after a
/// second in HLT; the cause is not known.
fn settle() {
    time(|| {
        core::hint::black_box(__cpuid(0));
    });
}

#[inline(always)]
fn case(name: &str, operation: impl FnMut()) {
    // SAFETY: no instruction.
    let empty = time(|| unsafe { asm!("", options(nostack)) });
    let repetitions = u64::from(REPETITIONS);
    let ticks = time(operation).saturating_sub(empty);
    measured(name, (ticks + repetitions / 2) / repetitions);
}

fn single_exits() {
    case("cpuid", || {
        core::hint::black_box(__cpuid(0));
    });
    case("hypercall", || {
        core::hint::black_box(hypercall::call_that_only_returns());
    });
    // SAFETY: there is no device at the port.
    case("port-out", || unsafe { Port::new(PORT).write(0u8) });
    let mut adjust = Msr::new(TSC_ADJUST);
    case("rdmsr-tsc-adjust", || {
        // SAFETY: reading changes nothing.
        core::hint::black_box(unsafe { adjust.read() });
    });
    // SAFETY: the value is the register's present one.
    let value = unsafe { adjust.read() };
    // SAFETY: as above.
    case("wrmsr-tsc-adjust", || unsafe { adjust.write(value) });
    let cr4 = Cr4::read_raw();
    // SAFETY: the value is the register's present one.
    case("cr4-write", || unsafe { Cr4::write_raw(cr4) });
}

fn own_interrupts() -> Verdict {
    let expected = count(VECTOR_TICK) + 2 * (WARM_UP + REPETITIONS);
    interrupts::enable();
    case("self-ipi", || apic::write(apic::SELF_IPI, u64::from(VECTOR_TICK)));
    apic::write(apic::LVT_TIMER, LVT_TSC_DEADLINE | u64::from(VECTOR_TICK));
    case("tsc-deadline", || {
        let before = count(VECTOR_TICK);
        // A deadline of 1 has passed. Xen's timer may fire a little later.
        apic::write(apic::TSC_DEADLINE, 1);
        while count(VECTOR_TICK) == before {}
    });
    interrupts::disable();
    apic::write(apic::LVT_TIMER, apic::LVT_MASKED);
    let taken = count(VECTOR_TICK);
    ensure!(taken == expected, "{taken} interrupts instead of {expected}");
    Ok(())
}

static ECHO_ENDS: AtomicBool = AtomicBool::new(false);

/// Both processors wait in HLT for the other's interrupt.
fn round_trip() -> Verdict {
    processors::start(SECOND)?;
    processors::give(SECOND, |_| {
        while !ECHO_ENDS.load(Ordering::Acquire) {
            interrupts::enable_and_hlt();
            interrupts::disable();
        }
    });
    let second = processors::id(SECOND).0 as usize;
    case("ipi-round-trip", || {
        let before = count(VECTOR_TICK);
        apic::send_fixed(second, VECTOR_ECHO);
        while count(VECTOR_TICK) == before {
            interrupts::enable_and_hlt();
            interrupts::disable();
        }
    });
    ECHO_ENDS.store(true, Ordering::Release);
    // One more interrupt ends its HLT.
    apic::send_fixed(second, VECTOR_ECHO);
    processors::join(SECOND)
}
