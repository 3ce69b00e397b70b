//! INVLPGA: dropping single translations of a guest.

use core::arch::asm;

/// Drops the calling CPU's translations of one page under `asid`, including global ones and those
/// of a large page around it (APM volume 3, INVLPGA).
pub(crate) fn invalidate_page(address: u64, asid: u32) {
    // SAFETY: SVM is on; the instruction drops cached translations, which is always allowed.
    unsafe { asm!("invlpga rax, ecx", in("rax") address, in("ecx") asid, options(nostack, preserves_flags)) };
}
