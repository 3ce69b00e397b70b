//! INVVPID and INVEPT.

use core::arch::asm;

use super::features;
use crate::arch::x86_64::cost::Drops;
use crate::vmx::controls::{VPID, Word};
use paging::{Ept, PhysAddr};
use stay::tagged::two_flushes::{Invept, Invvpid};

/// INVVPID. Without VPIDs there is no such instruction: each entry and each exit drops what it
/// would.
#[inline(always)] // See `Page`.
pub(super) fn guests(named: Invvpid) {
    let (capabilities, controls) = features::chosen();
    if !controls.has(Word::Secondary, VPID) {
        return;
    }
    let (kind, descriptor) = capabilities.invvpid(named);
    // SAFETY: VMX is on; the instruction drops cached translations, which is always allowed.
    unsafe {
        asm!("invvpid {}, [{}]", "jbe {failed}", in(reg) kind, in(reg) &raw const descriptor,
            failed = label { failed("INVVPID", kind, &descriptor) });
    }
}

/// INVEPT.
pub(super) fn nested(named: Invept) {
    let (kind, pointer) = match named {
        // `choose` has refused a processor without.
        Invept::Root(root) => (1u64, Ept::pointer(PhysAddr(root), features::chosen().0.ept_vpid())),
        Invept::All => (2, None),
    };
    let descriptor = [pointer.unwrap_or(0), 0];
    // SAFETY: as above.
    unsafe {
        asm!("invept {}, [{}]", "jbe {failed}", in(reg) kind, in(reg) &raw const descriptor,
            failed = label { failed("INVEPT", kind, &descriptor) });
    }
}

/// What should have been dropped is still there: to go on would be to let a guest use it.
#[cold]
fn failed(name: &str, kind: u64, descriptor: &[u64; 2]) -> ! {
    panic!("{name} of type {kind} has failed: {descriptor:x?}")
}

/// A page under a tag that no guest uses yet.
pub(crate) struct Page;

impl Drops for Page {
    #[inline(always)]
    fn drop_page() {
        guests(Invvpid::Address { vpid: 1, address: 0x1000 });
    }
}
