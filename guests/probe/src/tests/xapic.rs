//! The local APIC's modes, and its registers in memory.

use super::prelude::*;
use crate::interrupts::VECTOR_PAGE;

const USUAL: u64 = 0xfee0_0000;
/// The address that the registers are moved to: an unused one.
const ELSEWHERE: u64 = 0xfed4_0000;
const EXTD: u64 = 1 << 10;
const EN: u64 = 1 << 11;
const BSP: u64 = 1 << 8;

/// Registers by their offsets in the page.
const ID: u64 = 0x20;
const VERSION: u64 = 0x30;
const TPR: u64 = 0x80;
const LDR: u64 = 0xd0;
const DFR: u64 = 0xe0;
const SVR: u64 = 0xf0;
const ISR: u64 = 0x100;
const IRR: u64 = 0x200;
const ESR: u64 = 0x280;
const ICR: u64 = 0x300;
const ICR_HIGH: u64 = 0x310;
const LVT_TIMER: u64 = 0x320;
const INITIAL_COUNT: u64 = 0x380;
const CURRENT_COUNT: u64 = 0x390;
const DIVIDE: u64 = 0x3e0;

const SVR_ON: u32 = 0x1ff;
const LOGICAL: u32 = 1 << 11;
const LOWEST: u32 = 1 << 8;
const ALL_BUT_SELF: u32 = 3 << 18;

/// Whether the other processor may send.
static GO: AtomicBool = AtomicBool::new(false);

/// The other processor's job: it sends as soon as it may, in x2APIC mode.
fn send_when_told(_: usize) {
    while !GO.load(Ordering::Acquire) {
        core::hint::spin_loop();
    }
    apic::send_fixed(0, VECTOR_PAGE);
}

fn read_at(page: u64, offset: u64) -> u32 {
    // SAFETY: the page is mapped; reading from it changes nothing that the test does not check.
    unsafe { ((page + offset) as *const u32).read_volatile() }
}

fn read(offset: u64) -> u32 {
    read_at(USUAL, offset)
}

fn write(offset: u64, value: u32) {
    // SAFETY: the registers send and time interrupts, all of whose vectors have handlers.
    unsafe { ((USUAL + offset) as *mut u32).write_volatile(value) };
}

fn set_base(value: u64) -> Result<(), Fault> {
    // SAFETY: the test returns to x2APIC mode; in between interrupts are taken where it says.
    unsafe { wrmsr(apic::APIC_BASE, value) }
}

/// Transitions between modes, what each shows, and interrupts by the registers in memory.
pub(super) fn xapic() -> Verdict {
    let version = apic::read(0x803) as u32;
    processors::start(SECOND)?;
    // It cannot be given a job later: that takes an interrupt in x2APIC mode.
    GO.store(false, Ordering::Release);
    processors::give(SECOND, send_when_told);
    let verdict = modes().and_then(|()| registers(version)).and_then(|()| messages());
    GO.store(true, Ordering::Release);
    // Back, from the mode in which a failure has left it.
    if rdmsr(apic::APIC_BASE).is_ok_and(|base| base & (EN | EXTD) != EN | EXTD) {
        for mode in [0, EN] {
            ensure!(set_base(USUAL | BSP | mode) == Ok(()), "the local APIC cannot be turned off and on");
        }
    }
    baremetal::x86_64::apic::enable();
    processors::join(SECOND)?;
    verdict?;
    ensure!(apic::id() == 0, "the id is {} in x2APIC mode again", apic::id());
    // Everything is as before: the other processor is reached, and answers.
    processors::run(SECOND, |_| ())
}

fn has_apic() -> bool {
    __cpuid(1).edx & 1 << 9 != 0
}

/// From x2APIC mode through all the others to xAPIC mode.
fn modes() -> Verdict {
    let refused = Err(Fault::PROTECTION);
    for mode in [EN, EXTD] {
        ensure!(set_base(USUAL | BSP | mode) == refused, "x2APIC mode is left by {mode:#x}");
    }
    ensure!(read(VERSION) == u32::MAX, "registers are in memory in x2APIC mode: {:#x}", read(VERSION));
    ensure!(has_apic() && set_base(USUAL | BSP) == Ok(()), "it cannot be turned off");
    ensure!(!has_apic(), "CPUID shows a local APIC that is off");
    ensure!(read(VERSION) == u32::MAX, "registers are in memory with the APIC off: {:#x}", read(VERSION));
    for mode in [EN | EXTD, EXTD] {
        ensure!(set_base(USUAL | BSP | mode) == refused, "{mode:#x} is entered from off");
    }
    for msr in [apic::ID, apic::ICR, apic::EOI, apic::LVT_TIMER] {
        // SAFETY: it is refused, as the test checks.
        let written = unsafe { wrmsr(msr, 0) };
        ensure!(rdmsr(msr).is_err() && written == refused, "MSR {msr:#x} is there with the APIC off");
    }
    ensure!(set_base(USUAL | EN) == Ok(()), "xAPIC mode cannot be entered");
    let base = rdmsr(apic::APIC_BASE);
    ensure!(base == Ok(USUAL | BSP | EN), "the base is {base:x?}");
    ensure!(has_apic(), "CPUID does not show the local APIC");
    for msr in [apic::ID, apic::ICR, apic::EOI, apic::LVT_TIMER] {
        // SAFETY: as above.
        let written = unsafe { wrmsr(msr, 0) };
        ensure!(rdmsr(msr).is_err() && written == refused, "MSR {msr:#x} is there in xAPIC mode");
    }
    Ok(())
}

/// The registers' values after the APIC was off, and their relocation.
fn registers(version: u32) -> Verdict {
    let zero = [ID, TPR, LDR, ESR, INITIAL_COUNT].map(|offset| (offset, 0));
    let others = [(VERSION, version), (DFR, u32::MAX), (SVR, 0xff), (LVT_TIMER, 1 << 16)];
    for (offset, value) in zero.into_iter().chain(others) {
        let found = read(offset);
        ensure!(found == value, "{offset:#x} is {found:#x} and not {value:#x}");
    }
    ensure!(set_base(ELSEWHERE | BSP | EN) == Ok(()), "the registers cannot be moved");
    let (there, here) = (read_at(ELSEWHERE, VERSION), read(VERSION));
    ensure!(there == version && here == u32::MAX, "moved, {there:#x} is there and {here:#x} here");
    ensure!(set_base(USUAL | BSP | EN) == Ok(()), "the registers cannot be moved back");
    write(SVR, SVR_ON);
    write(TPR, 0x123);
    ensure!(read(TPR) == 0x23, "the task priority is {:#x}", read(TPR));
    let cr8: u64;
    // SAFETY: reading the task priority changes nothing.
    unsafe { core::arch::asm!("mov {}, cr8", out(reg) cr8, options(nomem, nostack)) };
    ensure!(cr8 == 2, "CR8 is {cr8}");
    write(TPR, 0);
    // 0x40 is not a register.
    ensure!(read(0x40) == 0, "a register that is none is {:#x}", read(0x40));
    write(ESR, 0);
    ensure!(read(ESR) == 1 << 7, "the error is {:#x}", read(ESR));
    write(ESR, 0);
    Ok(())
}

/// The bit of the vector in its word of IRR or ISR.
const BIT: u32 = 1 << (VECTOR_PAGE % 32);
const WORD: u64 = VECTOR_PAGE as u64 / 32 * 0x10;

/// Takes one interrupt, whose handler ends it through memory.
fn take(before: u32, what: &str) -> Verdict {
    let requested = clock::wait_until(PATIENCE_MS, || read(IRR + WORD) & BIT != 0);
    ensure!(requested, "{what}: nothing is requested in {PATIENCE_MS} ms");
    interrupts::enable();
    let taken = clock::wait_until(PATIENCE_MS, || count(VECTOR_PAGE) != before);
    interrupts::disable();
    let arrived = count(VECTOR_PAGE).wrapping_sub(before);
    ensure!(taken && arrived == 1, "{what}: {arrived} arrivals");
    ensure!((read(IRR + WORD) | read(ISR + WORD)) & BIT == 0, "{what}: it has not been ended");
    Ok(())
}

/// To itself, by timer, from and to the other processor, which is in x2APIC mode.
fn messages() -> Verdict {
    const BITS: u32 = 0x20 << 24;
    write(DFR, u32::MAX);
    write(LDR, BITS);
    let vector = u32::from(VECTOR_PAGE);
    for (what, high, low) in [
        ("physical", 0, 0),
        ("flat", BITS, LOGICAL),
        ("flat, lowest priority", BITS, LOGICAL | LOWEST),
        ("self", 0, 1 << 18),
    ] {
        let before = count(VECTOR_PAGE);
        write(ICR_HIGH, high);
        write(ICR, low | vector);
        take(before, what)?;
    }
    // Members of clusters; in x2APIC mode, the other's, these bits name members 2 and up.
    write(DFR, 0);
    write(LDR, 0x34 << 24);
    for (high, is_own) in [(0x34 << 24, true), (0x44 << 24, false), (0x38 << 24, false)] {
        let before = count(VECTOR_PAGE);
        write(ICR_HIGH, high);
        write(ICR, LOGICAL | vector);
        if is_own {
            take(before, "cluster")?;
        }
        ensure!(read(IRR + WORD) & BIT == 0, "cluster {high:#x} is not the own one");
    }
    let before = count(VECTOR_PAGE);
    write(DIVIDE, 0xb);
    write(LVT_TIMER, vector);
    write(INITIAL_COUNT, 1000);
    take(before, "timer")?;
    ensure!(read(CURRENT_COUNT) == 0, "the timer counts on: {}", read(CURRENT_COUNT));
    write(LVT_TIMER, 1 << 16 | vector);
    // To the other processor, which takes them after its job.
    let ways = [(VECTOR_TEST + 5, (SECOND as u32) << 24, 0), (VECTOR_TEST + 6, 0, ALL_BUT_SELF)];
    let before = ways.map(|(vector, ..)| count(vector));
    for (vector, high, low) in ways {
        write(ICR_HIGH, high);
        write(ICR, low | u32::from(vector));
    }
    let taken = count(VECTOR_PAGE);
    GO.store(true, Ordering::Release);
    take(taken, "from the other one")?;
    for ((vector, high, low), before) in ways.into_iter().zip(before) {
        clock::wait_until(PATIENCE_MS, || count(vector) != before);
        let arrived = count(vector).wrapping_sub(before);
        ensure!(arrived == 1, "{arrived} arrivals at the other one by {high:#x}, {low:#x}");
    }
    Ok(())
}
