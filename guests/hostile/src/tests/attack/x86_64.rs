//! What is different on AMD64.

use core::arch::x86_64::__cpuid_count;

use crate::tests::prelude::*;
use baremetal::pci::{MSIX_ENABLE, Messages};
use baremetal::x86_64::guarded::{rdmsr, wrmsr};
use baremetal::x86_64::hypercall::{self, OS_ID};
use baremetal::x86_64::{apic, clock, interrupts, power, processors, tables};
use x86_64::instructions::port::Port;

/// The guest's identity, and the page of hypercalls.
const GUEST_OS_ID: u32 = 0x4000_0000;
const HYPERCALL: u32 = 0x4000_0001;
const TSC_DEADLINE: u32 = 0x6e0;
/// The timer's vector; all from there on up to 0xef are only counted.
const VECTOR: u8 = interrupts::VECTOR_FREE;
const VECTORS: u64 = 0xa0;
const FAST: u64 = 1 << 16;
/// The most addresses of a list: what follows the header in a page.
const LIST_MAX: u64 = 509;
/// Flush calls: space, list, and both with sets of VPs.
const FLUSH_CALLS: [u64; 4] = [2, 3, 0x13, 0x14];
/// Calls that name VPs or APIC ids: the flushes, and IPIs.
const NAMING_CALLS: [u64; 6] = [2, 3, 0xb, 0x13, 0x14, 0x15];

static CODE: Page = Page::new();
static INPUTS: [Page; processors::MAX_PROCESSORS] = [const { Page::new() }; processors::MAX_PROCESSORS];

pub(super) fn prepare() -> Verdict {
    enable_calls()
}

/// A disk may send a message for each queue.
pub(super) const HAS_MESSAGES: bool = true;

/// Has each of the first `count` processors, from the second on, interrupted by its own message.
pub(super) fn enable_messages(config: &ConfigSpace, count: usize) -> Verdict {
    let Some(Messages { control, table: (bar, offset), .. }) = config.messages() else {
        return Err(failure(format_args!("the disk has no MSI-X")));
    };
    config.write(control, MSIX_ENABLE);
    let table = config.base(bar) + offset;
    for number in 0..count {
        let vector = u32::from(interrupts::VECTOR_FREE) + number as u32;
        let message = [0xfee0_0000 | processors::id(number).apic() << 12, 0, vector, 0];
        for (word, value) in message.into_iter().enumerate() {
            let entry = table + Messages::BYTES * (number as u64 + 1) + 4 * word as u64;
            // SAFETY: it is the table of messages; vectors are only counted.
            unsafe { (entry as *mut u32).write_volatile(value) };
        }
    }
    Ok(())
}

/// Makes hypercalls possible.
pub(in crate::tests) fn enable_calls() -> Verdict {
    // SAFETY: it names the guest; the page is used for nothing else.
    let enabled = unsafe { wrmsr(GUEST_OS_ID, OS_ID).and_then(|()| wrmsr(HYPERCALL, CODE.address() | 1)) };
    ensure!(enabled.is_ok(), "no Hyper-V interface: {enabled:?}");
    Ok(())
}

/// A hypercall; returns its result, or nothing if it faults.
pub(in crate::tests) fn hypercall(control: u64, input: u64, output: u64) -> Option<u64> {
    // SAFETY: the calls write no memory but scratch pages.
    unsafe { hypercall::call(control, input, output) }.ok()
}

pub(super) fn take_interrupts() {
    interrupts::enable();
    core::hint::spin_loop();
    interrupts::disable();
}

pub(super) fn halt() {
    power::halt()
}

pub(super) fn exit(random: &mut Random) {
    match random.below(5) {
        0 => drop(__cpuid_count(random.word() as u32, 0)),
        1 => {
            // SAFETY: reading the line status of COM1 has no effect.
            let _: u8 = unsafe { Port::new(0x3fd).read() };
        }
        2 => drop(rdmsr(random.one_of([0x10, 0x1b, 0x802, 0x4000_0002, 0xc001_0015]) as u32)),
        3 => drop(hypercall(0x7fff, 0, 0)),
        // SAFETY: the register is the processor's own; nothing pends.
        _ => drop(unsafe { wrmsr(0x808, 0) }),
    }
}

/// Calls that name VPs that there are not.
pub(super) fn call(random: &mut Random) {
    let input = &INPUTS[machine::number()];
    let code = random.one_of(NAMING_CALLS);
    let beyond = !0 << (machine::count() as u64).min(63);
    let is_ipi = matches!(code, 0xb | 0x15);
    let first = if is_ipi { u64::from(VECTOR) + random.below(VECTORS) } else { value(random) };
    let set = match code {
        // A mask of VPs, or the format of a set, the banks that it has, and banks.
        2 | 3 | 0xb => [beyond | value(random), value(random), value(random)],
        _ => [0, value(random), value(random)],
    };
    let words = match is_ipi {
        true => [first, set[0], set[1], set[2], u64::MAX, u64::MAX],
        false => [first, random.below(8), set[0], set[1], set[2], u64::MAX],
    };
    input.write(&words);
    let reps = if matches!(code, 3 | 0x14) { 1 + random.below(4) } else { 0 };
    let banks = if code > 0xb { random.below(65) << 17 } else { 0 };
    let is_fast = code == 0xb && random.one_in(2);
    let (control, input) = match is_fast {
        true => (code | FAST, first),
        false => (code | reps << 32 | banks, input.address()),
    };
    let _ = hypercall(control, input, beyond);
    take_interrupts();
}

/// Flushes everything, and lists of all lengths, on all processors.
pub(super) fn flush(random: &mut Random, number: usize) {
    let input = &INPUTS[number];
    // All address spaces and all processors, or a mask.
    let flags = if random.one_in(2) { 3 } else { random.below(8) };
    let reps = match random.below(3) {
        0 => LIST_MAX,
        1 => 1 + random.below(LIST_MAX),
        _ => 1 + random.below(4),
    };
    let list = (0..reps as usize).zip(input.words().iter().skip(3));
    list.for_each(|(_, word)| {
        word.store(value(random) & !0xfff | random.below(32), core::sync::atomic::Ordering::Relaxed)
    });
    input.write(&[value(random) & !0xfff, flags, u64::MAX]);
    for code in FLUSH_CALLS {
        let reps = if matches!(code, 3 | 0x14) { reps } else { 0 };
        if code > 3 {
            // A set of all VPs.
            input.write_at(2, &[1, 0]);
        }
        let _ = hypercall(code | reps << 32, input.address(), 0);
    }
}

pub(super) fn maintain_caches(random: &mut Random) {
    let address = INPUTS[machine::number()].address() + random.below(PAGE);
    // SAFETY: the caches' contents are what memory has; INVD is intercepted, or faults.
    unsafe {
        match random.below(4) {
            0 => drop(guarded_asm!("wbinvd";)),
            1 => drop(guarded_asm!("invd";)),
            _ => asm!("clflush [{}]", in(reg) address, options(nostack, preserves_flags)),
        }
    }
}

/// An interrupt for each processor, and takes its own.
pub(super) fn send_to_all(random: &mut Random) {
    for number in 0..machine::count() {
        let target = processors::id(number);
        match random.below(4) {
            0 => apic::send_nmi(target),
            _ => apic::send_fixed(target, VECTOR + random.below(VECTORS) as u8),
        }
    }
    take_interrupts();
}

/// A timer that is due now, soon, or since long.
pub(super) fn expire(random: &mut Random) {
    let deadline = match random.below(3) {
        0 => 1,
        1 => clock::now(),
        _ => clock::now() + random.below(clock::ticks(20)),
    };
    apic::unmask_timer(VECTOR, true);
    // SAFETY: the interrupt is only counted.
    let _ = unsafe { wrmsr(TSC_DEADLINE, deadline) };
    take_interrupts();
}

/// Wakes the next processor, and sleeps until it is woken or its timer is due.
pub(super) fn sleep_briefly(number: usize) {
    apic::unmask_timer(VECTOR, true);
    // SAFETY: as above.
    let _ = unsafe { wrmsr(TSC_DEADLINE, clock::now() + clock::ticks(5)) };
    apic::send_fixed(processors::id((number + 1) % machine::count()), VECTOR + 1);
    x86_64::instructions::interrupts::enable_and_hlt();
    interrupts::disable();
}

/// A fault without handlers: a triple fault.
pub(super) fn fault_for_good() {
    tables::triple_fault()
}

pub(super) fn reset() {
    power::reset();
}
