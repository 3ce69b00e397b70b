//! The instruction of a hypercall, which is AMD64's where guarded code is assembled, and its input.

use core::arch::asm;
use core::arch::x86_64::__cpuid;
use core::sync::atomic::{AtomicBool, Ordering};

use super::guarded::Fault;
use crate::{fixups, guarded_asm};

/// Whether the instruction is Intel's.
static IS_INTEL: AtomicBool = AtomicBool::new(false);

/// The hypercalls of AMD64 and of Intel 64.
const VMMCALL: [u8; 3] = [0x0f, 0x01, 0xd9];
const VMCALL: [u8; 3] = [0x0f, 0x01, 0xc1];

/// Finds out which instruction is a hypercall here, and puts it in the place of the other: that
/// takes no instruction more where hypercalls are counted. Before other processors are started.
pub fn prepare() {
    IS_INTEL.store(__cpuid(0).ebx == u32::from_le_bytes(*b"Genu"), Ordering::Relaxed);
    for place in fixups::places().filter(|_| is_intels()) {
        let code = place as *mut [u8; 3];
        // SAFETY: an instruction that is guarded, at least three bytes before the section's end.
        // The image's pages may be written to, and no other processor has been started.
        unsafe {
            if code.read_volatile() == VMMCALL {
                code.write_volatile(VMCALL);
            }
        }
    }
}

/// Whether a hypercall is VMCALL, and not VMMCALL.
pub fn is_intels() -> bool {
    IS_INTEL.load(Ordering::Relaxed)
}

/// A hypercall with these values in RCX, RDX and R8; returns RAX.
///
/// # Errors
///
/// Its fault.
///
/// # Safety
///
/// The program can cope with what the call does.
pub unsafe fn call(control: u64, input: u64, output: u64) -> Result<u64, Fault> {
    let result: u64;
    // SAFETY: the caller's promise; a fault is guarded.
    let done = unsafe {
        guarded_asm!("vmmcall"; inout("rax") u64::MAX => result, inout("rcx") control => _,
            inout("rdx") input => _, inout("r8") output => _, out("r9") _,)
    };
    done.map(|()| result)
}

/// What a guest calls itself: an open-source operating system of no vendor (TLFS, "Reporting the
/// Guest OS Identity"). To versions below 4, in bits 47:40, Xen recommends no calls.
pub const OS_ID: u64 = 1 << 63 | 0x7f << 56 | 4 << 40;

/// Loads XMM0 to XMM5, which programs do not use otherwise.
pub fn load_xmm(words: &[u64; 12]) {
    // SAFETY: start-up code has enabled SSE; the array has the size of the six registers.
    unsafe {
        asm!(
            "movups xmm0, [{0}]", "movups xmm1, [{0} + 16]", "movups xmm2, [{0} + 32]",
            "movups xmm3, [{0} + 48]", "movups xmm4, [{0} + 64]", "movups xmm5, [{0} + 80]",
            in(reg) words, options(nostack, preserves_flags, readonly),
        );
    }
}
