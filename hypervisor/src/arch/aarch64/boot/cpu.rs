//! The CPU itself: waiting for interrupts, stacks, the end of the run.

use coherence::tlbi::Stage2Tlb;
use core::arch::asm;
use core::ops::Range;
use core::sync::atomic::Ordering;
use hostlink::exit::ExitCode;
use hostlink::phase::Phase;

use super::features;
use crate::arch::aarch64::board::{console, gic, interrupts};
use crate::arch::aarch64::memory::flush;
use crate::arch::{Local, PerCpu};
use crate::arm64::controls::zeroed_block;
pub(crate) use crate::arm64::processor::CpuData;
use crate::arm64::processor::Features;
use crate::image::{self, Bare};

/// Takes the pending interrupts, by polling: interrupts stay masked all the time. So no code of the
/// hypervisor is ever interrupted.
pub(crate) fn take_interrupts() {
    interrupts::take_all();
}

pub(crate) fn wait_for_interrupt() {
    // A pending interrupt ends WFI although it is masked.
    // SAFETY: waits, and changes nothing. Earlier stores are visible before the wait.
    unsafe { asm!("dsb sy", "wfi", options(nostack, preserves_flags)) };
    interrupts::take_all();
}

pub(crate) fn kick(cpu: &PerCpu) {
    gic::send(cpu.id, interrupts::KICK as u8);
}

/// Tells an instruction-counting emulator what the hypervisor is doing, by a hint instruction,
/// which does nothing.
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

/// Whether former guest memory must be cleaned out of the data caches before it is reused: without
/// FEAT_S2FWB a guest may have bypassed them.
pub(crate) fn must_clean() -> bool {
    !features::get().contains(Features::FORCED_WRITE_BACK)
}

/// Whether it must be cleaned before instructions in it are fetched.
pub(crate) fn must_clean_code() -> bool {
    must_clean() || !features::processor().fetches_data()
}

/// Writes back and invalidates the data-cache lines of a range of memory.
pub(crate) fn clean(memory: Range<u64>) {
    flush::Tlb.clean(memory);
    flush::Tlb.complete_caches();
}

/// Zeroes memory, by cache lines where the processor supports it.
///
/// # Safety
///
/// The range is RAM, mapped as normal memory, aligned to 4 KiB, and not in use.
pub(crate) unsafe fn zero(start: u64, size: u64) {
    let block = zeroed_block(crate::arch::aarch64::sysreg::read!("dczid_el0"));
    let end = start + size;
    let Some(block) = block.filter(|&block| block <= 2048) else {
        // SAFETY: the caller vouches for the range.
        unsafe { core::slice::from_raw_parts_mut(start as *mut [u64; 8], (size / 64) as usize) }.fill([0; 8]);
        return;
    };
    let mut at = start;
    // Eight blocks at a time are at most four pages, and the range is usually larger than that.
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
        // SAFETY: as above. A block's size is a power of two of at most half a page, so the range,
        // which is of whole pages, ends with a block.
        unsafe { asm!("dc zva, {}", in(reg) at, options(nostack, preserves_flags)) };
        at += block;
    }
}

pub(crate) fn stop() -> ! {
    loop {
        // SAFETY: the CPU masks interrupts and waits; it does nothing else any more.
        unsafe { asm!("msr daifset, #0xf", "wfi", options(nostack)) };
    }
}

/// Ends the run with `code`, which the host tool reads from the beacon: PSCI cannot pass it on.
pub(crate) fn exit(code: ExitCode) -> ! {
    // Pairs with the host tool's read, from outside the machine.
    image::QUELL_BEACON.exit.store(code as u32, Ordering::Release); // The host tool reads it.
    baremetal::aarch64::power::system_off();
    stop()
}

impl Bare for Local {
    #[inline(always)]
    fn stack_pointer() -> u64 {
        let sp: u64;
        // SAFETY: reads a register.
        unsafe { asm!("mov {}, sp", out(reg) sp, options(nomem, nostack, preserves_flags)) };
        sp
    }

    #[inline(always)]
    fn frame_pointer() -> u64 {
        let fp: u64;
        // SAFETY: reads a register.
        unsafe { asm!("mov {}, x29", out(reg) fp, options(nomem, nostack, preserves_flags)) };
        fp
    }

    unsafe fn switch_stack(top: u64, main: extern "C" fn() -> !) -> ! {
        // SAFETY: the caller vouches that the stack is not in use, and what is on the former one is
        // not returned to. The frame pointer is cleared so that backtraces end here.
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

    /// A no-op: nothing interrupts the hypervisor anyway.
    fn quiesce() {}

    /// It stops when it next checks for interrupts: at once if it is in guest mode or idles.
    fn stop_other(cpu: &PerCpu) {
        gic::send(cpu.id, interrupts::STOP as u8);
    }

    fn log_text(text: &str) {
        text.bytes().for_each(console::log_byte);
    }
}
