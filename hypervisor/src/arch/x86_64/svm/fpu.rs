//! The guest's floating-point and vector state.
//!
//! The hypervisor uses none of these registers, so the guest's stay in the processor across exits and are
//! exchanged only when another vCPU comes onto the CPU. XCR0 stays the guest's too: QEMU 7.2 lets a guest
//! write it without an exit, so it is read back rather than remembered.

use core::arch::asm;
use core::arch::x86_64::{__cpuid, __cpuid_count};
use core::sync::atomic::{AtomicU32, AtomicU64, Ordering};

use alloc::alloc::{Layout, alloc_zeroed, handle_alloc_error};
use core::ptr::NonNull;

use x86_64::registers::control::{Cr0, Cr0Flags, Cr4, Cr4Flags};

/// XCR0 after reset: x87 only.
const XCR0_RESET: u64 = 1;
const LEGACY_SIZE: u32 = 512;
/// Initial x87 control word and MXCSR, at their places in the FXSAVE image.
const FCW: (usize, u16) = (0, 0x37f);
const MXCSR: (usize, u32) = (24, 0x1f80);

/// All components that the processor can save; 0 where there is no XSAVE.
static COMPONENTS: AtomicU64 = AtomicU64::new(0);
static SIZE: AtomicU32 = AtomicU32::new(LEGACY_SIZE);

/// Lets the calling CPU save and restore every component.
pub(crate) fn enable() {
    // SAFETY: the hypervisor uses no floating-point code; SSE and XSAVE are there as CPUID says.
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
    // SAFETY: CPUID says that XSAVE is there.
    unsafe { Cr4::update(|cr4| cr4.insert(Cr4Flags::OSXSAVE)) };
    let leaf = __cpuid_count(0xd, 0);
    let components = u64::from(leaf.edx) << 32 | u64::from(leaf.eax);
    COMPONENTS.store(components, Ordering::Relaxed);
    SIZE.store(leaf.ecx.max(LEGACY_SIZE), Ordering::Relaxed);
    write_xcr0(components);
}

/// Components that a guest may enable.
pub(crate) fn components() -> u64 {
    COMPONENTS.load(Ordering::Relaxed)
}

fn read_xcr0() -> u64 {
    let (low, high): (u32, u32);
    // SAFETY: CR4.OSXSAVE is set.
    unsafe { asm!("xgetbv", in("ecx") 0, out("eax") low, out("edx") high, options(nomem, nostack)) };
    u64::from(high) << 32 | u64::from(low)
}

/// Writes XCR0; `value` is one that the processor accepts.
pub(crate) fn write_xcr0(value: u64) {
    // SAFETY: CR4.OSXSAVE is set, and callers pass only what CPUID allows.
    unsafe {
        asm!("xsetbv", in("ecx") 0, in("eax") value as u32, in("edx") (value >> 32) as u32,
            options(nomem, nostack));
    }
}

/// Whether a guest may set XCR0 to `value`: x87 always, AVX only with SSE, AVX-512 all at once and with AVX,
/// nothing that the processor lacks (APM volume 2, section 11.5.2).
pub(crate) fn is_valid_xcr0(value: u64) -> bool {
    const SSE: u64 = 1 << 1;
    const AVX: u64 = 1 << 2;
    const BOUNDS: u64 = 3 << 3;
    const AVX512: u64 = 7 << 5;
    value & 1 != 0
        && value & !components() == 0
        && (value & AVX == 0 || value & SSE != 0)
        && matches!(value & BOUNDS, 0 | BOUNDS)
        && (value & AVX512 == 0 || value & (AVX512 | AVX) == AVX512 | AVX)
}

/// A vCPU's state while it is not on a CPU.
pub(crate) struct FpuState {
    area: NonNull<u8>,
    xcr0: u64,
}

impl FpuState {
    /// The state after reset.
    pub(crate) fn new() -> Self {
        let layout = Layout::from_size_align(SIZE.load(Ordering::Relaxed) as usize, 64)
            .expect("the processor's area is a valid layout");
        // SAFETY: the size is not zero.
        let area =
            NonNull::new(unsafe { alloc_zeroed(layout) }).unwrap_or_else(|| handle_alloc_error(layout));
        let mut state = Self { area, xcr0: XCR0_RESET };
        state.reset();
        state
    }

    /// Goes back to the state after reset. An XSAVE image of zeros with an empty component mask means initial values.
    pub(crate) fn reset(&mut self) {
        self.xcr0 = XCR0_RESET;
        // SAFETY: the area is ours and at least 512 bytes long; both places are aligned.
        unsafe {
            self.area.as_ptr().write_bytes(0, SIZE.load(Ordering::Relaxed) as usize);
            self.area.as_ptr().add(FCW.0).cast::<u16>().write(FCW.1);
            self.area.as_ptr().add(MXCSR.0).cast::<u32>().write(MXCSR.1);
        }
    }

    /// Loads the state into the processor, whose XCR0 is as [`enable`] or [`save`](Self::save) left it: everything.
    pub(crate) fn load(&mut self) {
        let area = self.area.as_ptr();
        match components() {
            // SAFETY: the area holds an image that FXSAVE wrote or `reset` made.
            0 => unsafe { asm!("fxrstor64 [{}]", in(reg) area, options(nostack)) },
            components => {
                // SAFETY: the area is as large as all components need, aligned to 64, and holds an image that
                // XSAVE wrote or `reset` made.
                unsafe {
                    asm!("xrstor64 [{}]", in(reg) area, in("eax") components as u32,
                        in("edx") (components >> 32) as u32, options(nostack));
                }
                if self.xcr0 != components {
                    write_xcr0(self.xcr0);
                }
            }
        }
    }

    /// Saves the state from the processor.
    pub(crate) fn save(&mut self) {
        let area = self.area.as_ptr();
        match components() {
            // SAFETY: the area is ours and long enough.
            0 => unsafe { asm!("fxsave64 [{}]", in(reg) area, options(nostack)) },
            components => {
                self.xcr0 = read_xcr0();
                if self.xcr0 != components {
                    write_xcr0(components);
                }
                // SAFETY: as in `load`.
                unsafe {
                    asm!("xsave64 [{}]", in(reg) area, in("eax") components as u32,
                        in("edx") (components >> 32) as u32, options(nostack));
                }
            }
        }
    }
}

// SAFETY: the area belongs to the state alone.
unsafe impl Send for FpuState {}
