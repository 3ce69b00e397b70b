//! The CPU itself: waiting for interrupts, stacks, how the run ends.

use core::arch::asm;
use core::ops::Range;
use core::sync::atomic::Ordering;

use coherence::tlbi::Stage2Tlb;
use hostlink::exit::ExitCode;
use hostlink::phase::Phase;

use super::features;
use crate::arch::PerCpu;
use crate::arch::aarch64::board::{gic, interrupts};
use crate::arch::aarch64::memory::flush;
pub(crate) use crate::arm64::processor::CpuData;
use crate::arm64::processor::Features;
use crate::image;

/// Takes the interrupts that pend: by asking for them, with interrupts masked all the time. So no
/// code of the hypervisor is ever interrupted.
pub(crate) fn take_interrupts() {
    interrupts::take_all();
}

/// Waits for an interrupt, and takes it.
pub(crate) fn wait_for_interrupt() {
    // An interrupt that pends ends WFI although it is masked.
    // SAFETY: waits, and changes nothing. What was stored before is visible before.
    unsafe { asm!("dsb sy", "wfi", options(nostack, preserves_flags)) };
    interrupts::take_all();
}

/// Makes a CPU leave guest mode or idling soon.
pub(crate) fn kick(cpu: &PerCpu) {
    gic::send(cpu.id, interrupts::KICK as u8);
}

/// The stack pointer.
#[inline(always)]
pub(crate) fn stack_pointer() -> u64 {
    let sp: u64;
    // SAFETY: reads a register.
    unsafe { asm!("mov {}, sp", out(reg) sp, options(nomem, nostack, preserves_flags)) };
    sp
}

/// The frame pointer, from which a backtrace begins.
#[inline(always)]
pub(crate) fn frame_pointer() -> u64 {
    let fp: u64;
    // SAFETY: reads a register.
    unsafe { asm!("mov {}, x29", out(reg) fp, options(nomem, nostack, preserves_flags)) };
    fp
}

/// Calls `main` on a stack and never comes back.
///
/// # Safety
///
/// Nobody runs on that stack.
pub(crate) unsafe fn switch_stack(top: u64, main: extern "C" fn() -> !) -> ! {
    // SAFETY: the stack is ours; the frame pointer is cleared so that backtraces end here.
    unsafe {
        asm!(
            "mov sp, {stack}",
            "mov x29, xzr",
            "mov x30, xzr",
            "br {main}",
            stack = in(reg) top,
            main = in(reg) main,
            options(noreturn),
        )
    }
}

/// Tells an emulator that counts instructions what the hypervisor is doing: a hint, which does
/// nothing.
#[inline(always)]
pub(crate) fn mark(phase: Phase) {
    macro_rules! hint {
        ($phase:expr) => {
            // SAFETY: an unallocated hint is a NOP.
            unsafe { asm!("hint #{}", const $phase.hint(), options(nomem, nostack, preserves_flags)) }
        };
    }
    match phase {
        Phase::None => hint!(Phase::None),
        Phase::Blocking => hint!(Phase::Blocking),
        Phase::Reclaim => hint!(Phase::Reclaim),
        Phase::DirtyEnable => hint!(Phase::DirtyEnable),
        Phase::DirtyFetch => hint!(Phase::DirtyFetch),
        Phase::FaultIn => hint!(Phase::FaultIn),
        Phase::PerPage => hint!(Phase::PerPage),
        Phase::After => hint!(Phase::After),
    }
}

/// Whether memory that was a guest's has to be cleaned out of the data caches before somebody else
/// has it: without FEAT_S2FWB a guest may have used it around them.
pub(crate) fn must_clean() -> bool {
    !features::get().contains(Features::FORCED_WRITE_BACK)
}

/// Writes the data caches' lines of some memory back, and drops them.
pub(crate) fn clean(memory: Range<u64>) {
    flush::Tlb.clean(memory);
    flush::Tlb.complete_caches();
}

/// Zeroes memory, by the cache line where the processor can.
///
/// # Safety
///
/// The range is RAM, mapped as normal memory, aligned to 4 KiB, and nobody else uses it.
pub(crate) unsafe fn zero(start: u64, size: u64) {
    let id = crate::arch::aarch64::sysreg::read!("dczid_el0");
    let block = 4u64 << (id & 0xf);
    let end = start + size;
    if id & 0x10 != 0 || block > 2048 {
        // SAFETY: the caller vouches for the range.
        unsafe { core::slice::from_raw_parts_mut(start as *mut [u64; 8], (size / 64) as usize) }.fill([0; 8]);
        return;
    }
    let mut at = start;
    // Eight blocks at a time are at most four pages, and the range is made of more than that
    // mostly.
    while at + 8 * block <= end {
        // SAFETY: the caller vouches for the range.
        unsafe {
            asm!(
                "dc zva, {0}", "add {0}, {0}, {1}", "dc zva, {0}", "add {0}, {0}, {1}",
                "dc zva, {0}", "add {0}, {0}, {1}", "dc zva, {0}", "add {0}, {0}, {1}",
                "dc zva, {0}", "add {0}, {0}, {1}", "dc zva, {0}", "add {0}, {0}, {1}",
                "dc zva, {0}", "add {0}, {0}, {1}", "dc zva, {0}", "add {0}, {0}, {1}",
                inout(reg) at, in(reg) block, options(nostack, preserves_flags),
            );
        }
    }
    while at < end {
        // SAFETY: as above; a block is at most half a page.
        unsafe { asm!("dc zva, {}", in(reg) at, options(nostack, preserves_flags)) };
        at += block;
    }
}

/// Lets the report of a panic begin. Nothing interrupts the hypervisor anyway.
pub(crate) fn quiesce() {}

/// Stops another CPU when it next looks for interrupts: at once if it is in guest mode or idles.
pub(crate) fn stop_other(cpu: &PerCpu) {
    gic::send(cpu.id, interrupts::STOP as u8);
}

/// Stops the calling CPU for ever.
pub(crate) fn stop() -> ! {
    loop {
        // SAFETY: waits.
        unsafe { asm!("msr daifset, #0xf", "wfi", options(nostack)) };
    }
}

/// Ends the run with `code`, which the host tool finds in the beacon: PSCI passes none on.
pub(crate) fn exit(code: ExitCode) -> ! {
    // Pairs with the host tool's look, which comes from outside.
    image::QUELL_BEACON.exit.store(code as u32, Ordering::Release); // The host tool reads it.
    baremetal::aarch64::power::system_off();
    stop()
}
