//! NMIs and timers.

use core::arch::asm;

use tlfs::msr::StimerConfig;

use super::prelude::*;
use crate::apic::LVT_PERIODIC;
use crate::interrupts::{fault_in_nmi, nmi_depth_max, resend_nmis};

const VECTOR_GP: u8 = 13;

/// NMIs reach this processor and others, and one that arrives in the handler waits for its IRET.
pub(super) fn nmi() -> Verdict {
    let expect = |what: &str, wanted: u32| {
        clock::wait_until(PATIENCE_MS, || nmi_count() >= wanted);
        ensure!(nmi_count() == wanted, "{what}: {} NMIs instead of {wanted}", nmi_count());
        Ok(())
    };
    let before = nmi_count();
    apic::send_nmi(apic::id());
    expect("to itself", before + 1)?;
    processors::start(SECOND)?;
    for round in 1..=10 {
        apic::send_nmi(SECOND);
        expect("to the processor in HLT", before + 1 + round)?;
    }
    // In the handler of the first two, another one is sent.
    resend_nmis(2);
    apic::send_nmi(apic::id());
    expect("within the handler", before + 14)?;
    ensure!(nmi_depth_max() == 1, "{} NMI handlers at once", nmi_depth_max());
    // After an IRET that faults, the handler's IRET unblocks them.
    let faults = count(VECTOR_GP);
    fault_in_nmi();
    apic::send_nmi(apic::id());
    expect("behind an IRET that faults", before + 16)?;
    ensure!(count(VECTOR_GP) == faults + 1, "{} faults instead of one", count(VECTOR_GP) - faults);
    Ok(())
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Wait {
    Spin,
    Halt,
}

/// Waits for `wanted` interrupts on `vector` since `before`, with interrupts on.
fn expect(what: &str, vector: u8, before: u32, wanted: u32, wait: Wait) -> Verdict {
    let arrived = || count(vector).wrapping_sub(before);
    match wait {
        Wait::Spin => {
            interrupts::enable();
            clock::wait_until(PATIENCE_MS, || arrived() >= wanted);
            interrupts::disable();
        }
        // If none arrives, the run's own time limit ends it.
        Wait::Halt => {
            while arrived() < wanted {
                interrupts::enable_and_hlt();
                interrupts::disable();
            }
        }
    }
    ensure!(arrived() >= wanted, "{what}, {wait:?}: {} interrupts instead of {wanted}", arrived());
    Ok(())
}

/// Every timer interrupts, not too early, as often as it should, spinning or halted.
pub(super) fn timer() -> Verdict {
    hypercall::enable()?;
    for wait in [Wait::Spin, Wait::Halt] {
        one_shot(wait)?;
        periodic(wait)?;
        deadline(wait)?;
        synthetic(wait)?;
    }
    Ok(())
}

/// The task priority changes while an interrupt waits for interrupts to be enabled: it has no
/// effect until they are, and then it applies.
pub(super) fn task_priority() -> Verdict {
    const VECTOR: u8 = VECTOR_TEST + 4;
    let before = count(VECTOR);
    let set = |priority: u64| {
        // SAFETY: only delays interrupts.
        unsafe { asm!("mov cr8, {}", in(reg) priority, options(nomem, nostack, preserves_flags)) };
    };
    apic::send_fixed(apic::id(), VECTOR);
    for priority in [0, 5, 15, 0, 15] {
        set(priority);
        ensure!(count(VECTOR) == before, "an interrupt while they are off, at task priority {priority}");
    }
    interrupts::enable();
    clock::wait_until(1, || false);
    let held_off = count(VECTOR) == before;
    set(0);
    let came = clock::wait_until(PATIENCE_MS, || count(VECTOR) != before);
    interrupts::disable();
    ensure!(held_off, "an interrupt at task priority 15");
    ensure!(came && count(VECTOR) == before.wrapping_add(1), "no interrupt at task priority 0, or several");
    Ok(())
}

/// Fails if an event that began at `start` ended before this many microseconds had passed.
fn not_before(what: &str, start: u64, us: u64) -> Verdict {
    let elapsed = clock::now() - start;
    ensure!(elapsed >= clock::ticks(us), "{what}: after {elapsed} ticks instead of {}", clock::ticks(us));
    Ok(())
}

/// Counts of the APIC timer at divide-by-1 in this many microseconds.
fn apic_counts(us: u64) -> Result<u64, crate::report::Failure> {
    let hz =
        rdmsr(msr::APIC_FREQUENCY).map_err(|fault| failure(format_args!("APIC frequency: {fault:?}")))?;
    Ok(hz / 1_000_000 * us)
}

const DIVIDE_BY_1: u64 = 0b1011;

fn one_shot(wait: Wait) -> Verdict {
    const VECTOR: u8 = VECTOR_TEST;
    let before = count(VECTOR);
    apic::write(apic::DIVIDE, DIVIDE_BY_1);
    apic::write(apic::LVT_TIMER, u64::from(VECTOR));
    let start = clock::now();
    apic::write(apic::INITIAL_COUNT, apic_counts(2000)?);
    expect("one-shot", VECTOR, before, 1, wait)?;
    not_before("one-shot", start, 2000)?;
    interrupts::enable();
    clock::wait_until(5, || false);
    interrupts::disable();
    ensure!(count(VECTOR) == before.wrapping_add(1), "one-shot: more than one interrupt");
    Ok(())
}

fn periodic(wait: Wait) -> Verdict {
    const VECTOR: u8 = VECTOR_TEST + 1;
    const PERIODS: u32 = 5;
    let before = count(VECTOR);
    apic::write(apic::LVT_TIMER, LVT_PERIODIC | u64::from(VECTOR));
    let start = clock::now();
    apic::write(apic::INITIAL_COUNT, apic_counts(1000)?);
    expect("periodic", VECTOR, before, PERIODS, wait)?;
    not_before("periodic", start, 1000 * u64::from(PERIODS))?;
    apic::write(apic::INITIAL_COUNT, 0);
    apic::write(apic::LVT_TIMER, LVT_MASKED);
    Ok(())
}

pub(super) fn deadline(wait: Wait) -> Verdict {
    const VECTOR: u8 = VECTOR_TEST + 2;
    let before = count(VECTOR);
    apic::write(apic::LVT_TIMER, LVT_TSC_DEADLINE | u64::from(VECTOR));
    let start = clock::now();
    apic::write(apic::TSC_DEADLINE, start + clock::ticks(2000));
    expect("TSC deadline", VECTOR, before, 1, wait)?;
    not_before("TSC deadline", start, 2000)?;
    ensure!(apic::read(apic::TSC_DEADLINE) == 0, "a TSC deadline that has passed does not read as 0");
    apic::write(apic::LVT_TIMER, LVT_MASKED);
    Ok(())
}

fn synthetic(wait: Wait) -> Verdict {
    const VECTOR: u8 = VECTOR_TEST + 3;
    /// 2 ms in units of 100 ns.
    const DELAY: u64 = 20_000;
    let before = count(VECTOR);
    let config = StimerConfig::new().with_enable(true).with_direct_mode(true).with_apic_vector(VECTOR);
    let begin = || {
        let start = rdmsr(msr::TIME_REF_COUNT)?;
        // SAFETY: the timer interrupts on a vector that has a handler.
        unsafe {
            wrmsr(msr::STIMER0_COUNT, start + DELAY)
                .and_then(|()| wrmsr(msr::STIMER0_CONFIG, config.into_bits()))?
        };
        Ok(start)
    };
    let start =
        begin().map_err(|fault: crate::guarded::Fault| failure(format_args!("stimer0: {fault:?}")))?;
    expect("stimer0", VECTOR, before, 1, wait)?;
    let elapsed = rdmsr(msr::TIME_REF_COUNT).unwrap_or(0).saturating_sub(start);
    ensure!(elapsed >= DELAY, "stimer0: after {elapsed} units instead of {DELAY}");
    let enabled = rdmsr(msr::STIMER0_CONFIG).is_ok_and(|config| StimerConfig::from_bits(config).enable());
    ensure!(!enabled, "stimer0 is still enabled after its one expiration");
    Ok(())
}
