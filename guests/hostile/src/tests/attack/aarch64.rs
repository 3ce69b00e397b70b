//! What is different on Arm64.

use crate::tests::aarch64::call;
use crate::tests::aarch64::code::{self, Name};
use crate::tests::prelude::*;
use baremetal::aarch64::{clock, gic, interrupts, power, processors};

/// TLBI at EL1: op0 1, op1 0, CRn 8 and 9, CRm 1 to 7, op2 0 to 7.
const FLUSHES: u32 = 2 * 7 * 8;
/// Functions of PSCI that name a processor: CPU_ON, AFFINITY_INFO, MIGRATE; 32 and 64 bits.
const NAMING_CALLS: [u64; 6] = [0x8400_0003, 0x8400_0004, 0x8400_0005, 0xc400_0003, 0xc400_0004, 0xc400_0005];
const SYSTEM_RESET: u32 = 0x8400_0009;
const DISTRIBUTOR: u64 = 0x0800_0000;
/// An address without memory, to which a vector can lead.
const NOWHERE: u64 = 0x7f_0000_0000;
/// ICC_SGI1R_EL1.IRM: all processors but the sender.
const ALL_OTHERS: u64 = 1 << 40;

static SCRATCH: [Page; processors::MAX_PROCESSORS] = [const { Page::new() }; processors::MAX_PROCESSORS];

pub(super) const fn prepare() -> Verdict {
    Ok(())
}

/// Guests see no messages here, so a disk has its pin alone: completions are looked for.
pub(super) const HAS_MESSAGES: bool = false;

pub(super) const fn enable_messages(_: &ConfigSpace, _: usize) -> Verdict {
    Ok(())
}

pub(super) fn take_interrupts() {
    interrupts::enable();
    // SAFETY: a barrier, after which what pends has been taken.
    unsafe { asm!("isb", options(nostack, preserves_flags)) };
    interrupts::disable();
}

pub(super) fn halt() {
    power::halt()
}

pub(super) fn exit(random: &mut Random) {
    match random.below(4) {
        0 => call!("hvc #0", [0x8400_0000, 0, 0, 0]),
        1 => call!("smc #0", [0xffff_ffff, 0, 0, 0]),
        // SAFETY: ACTLR_EL1 is read, which traps.
        2 => unsafe { asm!("mrs {}, actlr_el1", out(reg) _, options(nostack, preserves_flags)) },
        // SAFETY: GICD_TYPER is read.
        _ => unsafe {
            asm!("ldr {:w}, [{}]", out(reg) _, in(reg) DISTRIBUTOR + 4, options(nostack, preserves_flags));
        },
    }
}

/// Calls that name processors that there are not, or that run already.
pub(super) fn call(random: &mut Random) {
    let function = random.one_of(NAMING_CALLS);
    let target =
        if random.one_in(2) { machine::count() as u64 + random.below(1 << 20) } else { value(random) };
    call!("hvc #0", [function, target, value(random), value(random)]);
}

/// All TLB instructions that there are, with any operand.
pub(super) fn flush(random: &mut Random, _: usize) {
    let name = |index: u32| Name::of(1, (8 + index / 56) << 7 | (1 + index / 8 % 7) << 3 | (index & 7));
    code::put((0..FLUSHES).map(|index| code::write(name(index))));
    for _ in 0..16 * super::BURST {
        let slot = random.below(u64::from(FLUSHES)) as usize;
        // SAFETY: they drop translations; what is undefined faults, which is guarded.
        let _ = unsafe { code::execute(slot, value(random)) };
        if random.one_in(4) {
            // SAFETY: a barrier.
            unsafe { asm!("dsb ish", options(nostack, preserves_flags)) };
        }
    }
}

pub(super) fn maintain_caches(random: &mut Random) {
    let page = SCRATCH[machine::number()].address();
    let (set_way, address) = (random.word() & 0xffff_fffe, page + random.below(PAGE));
    macro_rules! maintain {
        ($text:literal, $operand:expr) => {
            // SAFETY: maintenance of scratch memory, or by set and way, which EL2 also cleans.
            unsafe { asm!($text, in(reg) $operand, options(nostack, preserves_flags)) }
        };
    }
    match random.below(9) {
        0 => maintain!("dc civac, {}", address),
        1 => maintain!("dc ivac, {}", address),
        2 => maintain!("dc cvau, {}", address),
        3 => maintain!("dc cisw, {}", set_way),
        4 => maintain!("dc csw, {}", set_way),
        5 => maintain!("dc isw, {}", set_way),
        6 => maintain!("ic ivau, {}", address),
        7 => maintain!("dc zva, {}", address),
        // SAFETY: instructions are fetched again.
        _ => unsafe { asm!("ic ialluis", "dsb ish", "isb", options(nostack, preserves_flags)) },
    }
}

/// Interrupts for each processor, and takes its own.
pub(super) fn send_to_all(random: &mut Random) {
    let number = u64::from(interrupts::FREE) + random.below(15);
    for target in 0..machine::count() {
        gic::send(processors::id(target), number as u8);
    }
    // SAFETY: ICC_SGI1R_EL1: an interrupt that is only counted.
    unsafe {
        asm!("msr s3_0_c12_c11_5, {}", in(reg) ALL_OTHERS | number << 24, options(nostack, preserves_flags))
    };
    take_interrupts();
}

/// A timer that is due now, soon, or since long.
pub(super) fn expire(random: &mut Random) {
    let deadline = match random.below(3) {
        0 => 0,
        1 => clock::now(),
        _ => clock::now() + random.below(clock::ticks(20)),
    };
    // SAFETY: the interrupts are only counted; the handler stops the timer.
    unsafe {
        asm!("msr cntv_cval_el0, {0}", "msr cntv_ctl_el0, {1}", "msr cntp_cval_el0, {0}", "msr cntp_ctl_el0, {1}",
            "isb", "msr cntp_ctl_el0, xzr", in(reg) deadline, in(reg) 1u64, options(nostack, preserves_flags));
    }
    take_interrupts();
}

/// Wakes the next processor, and sleeps until it is woken or its timer is due.
pub(super) fn sleep_briefly(number: usize) {
    clock::set_timer(5);
    gic::send(processors::id((number + 1) % machine::count()), interrupts::FREE);
    // SAFETY: hints.
    unsafe { asm!("sev", "wfe", options(nostack, preserves_flags)) };
    interrupts::wait();
}

/// An exception whose handler is nowhere, so that it raises another one: for ever.
pub(super) fn fault_for_good() {
    // SAFETY: nothing else happens here any more. Without the MMU each fetch is an abort of stage
    // 2, which the hypervisor turns into another one.
    unsafe {
        asm!("msr vbar_el1, {}", "mrs x0, sctlr_el1", "bic x0, x0, #1", "msr sctlr_el1, x0", "isb", "udf #0",
            in(reg) NOWHERE, options(noreturn));
    }
}

pub(super) fn reset() {
    let _ = power::call(SYSTEM_RESET, [0; 3]);
}
