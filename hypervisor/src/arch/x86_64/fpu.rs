//! Floating-point and vector registers: enabling, storing and loading them.

use core::arch::asm;
use core::arch::x86_64::__cpuid;
use core::ptr::NonNull;
use core::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use tlfs::XMM_WORDS;
use x86_64::registers::control::{Cr0, Cr0Flags, Cr4, Cr4Flags};

use crate::arch::Local;
use crate::x86::processor::Processor;
use crate::x86::vcpu::fpu::{LEGACY_SIZE, image};

/// All components that the processor can save; 0 without XSAVE.
static COMPONENTS: AtomicU64 = AtomicU64::new(0);
static SIZE: AtomicU32 = AtomicU32::new(LEGACY_SIZE);

pub(crate) fn enable() {
    // SAFETY: every x86-64 processor has FXSAVE and SSE, and the hypervisor uses no floating-point
    // code that these bits could affect.
    unsafe {
        Cr0::update(|cr0| {
            cr0.remove(Cr0Flags::EMULATE_COPROCESSOR | Cr0Flags::TASK_SWITCHED);
            cr0.insert(Cr0Flags::MONITOR_COPROCESSOR);
        });
        Cr4::update(|cr4| cr4.insert(Cr4Flags::OSFXSR | Cr4Flags::OSXMMEXCPT_ENABLE));
    }
    if __cpuid(1).ecx & 1 << 26 == 0 {
        return;
    }
    // SAFETY: CPUID says that XSAVE exists.
    unsafe { Cr4::update(|cr4| cr4.insert(Cr4Flags::OSXSAVE)) };
    let (components, size) = image(Local::cpuid(0xd, 0));
    COMPONENTS.store(components, Ordering::Relaxed);
    SIZE.store(size, Ordering::Relaxed);
    write_xcr0(components);
}

/// Components that a guest may enable.
pub(crate) fn components() -> u64 {
    COMPONENTS.load(Ordering::Relaxed)
}

pub(crate) fn read_xcr0() -> u64 {
    let (low, high): (u32, u32);
    // SAFETY: callers ask only where there is XSAVE; then `enable` has set CR4.OSXSAVE.
    unsafe { asm!("xgetbv", in("ecx") 0, out("eax") low, out("edx") high, options(nomem, nostack)) };
    u64::from(high) << 32 | u64::from(low)
}

/// Writes XCR0; `value` is one that the processor accepts.
pub(crate) fn write_xcr0(value: u64) {
    // SAFETY: callers write only where there is XSAVE, so CR4.OSXSAVE is set, and they pass only
    // what CPUID allows.
    unsafe {
        asm!("xsetbv", in("ecx") 0, in("eax") value as u32, in("edx") (value >> 32) as u32,
            options(nomem, nostack));
    }
}

/// Size in bytes of an image of all components.
pub(crate) fn size() -> usize {
    SIZE.load(Ordering::Relaxed) as usize
}

/// Loads the registers, all components of them.
///
/// # Safety
///
/// The area has [`size`] bytes, is aligned to 64, and holds an image that [`save`] wrote, or one of
/// zeros except for the control words.
pub(crate) unsafe fn load(area: NonNull<u8>) {
    let area = area.as_ptr();
    match components() {
        // SAFETY: the caller vouches for the area.
        0 => unsafe { asm!("fxrstor64 [{}]", in(reg) area, options(nostack)) },
        components => {
            // SAFETY: as above; it is as large as all components need.
            unsafe {
                asm!("xrstor64 [{}]", in(reg) area, in("eax") components as u32,
                    in("edx") (components >> 32) as u32, options(nostack));
            }
        }
    }
}

/// Saves the registers, all components of them.
///
/// # Safety
///
/// The area has [`size`] bytes, is aligned to 64, and is not otherwise in use.
pub(crate) unsafe fn save(area: NonNull<u8>) {
    let area = area.as_ptr();
    match components() {
        // SAFETY: the caller vouches for the area.
        0 => unsafe { asm!("fxsave64 [{}]", in(reg) area, options(nostack)) },
        components => {
            // SAFETY: as above; it is as large as all components need.
            unsafe {
                asm!("xsave64 [{}]", in(reg) area, in("eax") components as u32,
                    in("edx") (components >> 32) as u32, options(nostack));
            }
        }
    }
}

pub(crate) fn xmm_words() -> [u64; XMM_WORDS] {
    let mut words = [0; XMM_WORDS];
    // SAFETY: the six registers are stored into the array, which has their size. `enable` has
    // allowed the instruction on every CPU.
    unsafe {
        asm!(
            "movups [{0}], xmm0", "movups [{0} + 16], xmm1", "movups [{0} + 32], xmm2",
            "movups [{0} + 48], xmm3", "movups [{0} + 64], xmm4", "movups [{0} + 80], xmm5",
            in(reg) &raw mut words, options(nostack, preserves_flags),
        );
    }
    words
}
