//! The processor's SVM features, and enabling SVM.

use core::arch::x86_64::__cpuid;
use core::num::NonZeroU32;
use core::sync::atomic::{AtomicU32, Ordering};
use x86_64::registers::control::{Efer, EferFlags};
use x86_64::registers::model_specific::Msr;

use crate::svm::features::{Features, guest_asids, has_svm};

const MSR_VM_CR: u32 = 0xc001_0114;
const VM_CR_SVM_DISABLED: u64 = 1 << 4;
const MSR_HOST_SAVE: u32 = 0xc001_0117;

static FEATURES: AtomicU32 = AtomicU32::new(0);
static ASIDS: AtomicU32 = AtomicU32::new(0);

/// The boot CPU's features; the others are assumed to have the same.
#[inline(always)]
pub(crate) fn get() -> Features {
    Features(FEATURES.load(Ordering::Relaxed))
}

/// Reports clean bits, and flushes of one ASID, as present from now on: on a machine that caches
/// nothing from one VMRUN to the next both are harmless. To be called before the first vCPU is
/// created.
pub(crate) fn pretend() {
    FEATURES.fetch_or(Features::PRETENDED.0, Ordering::Relaxed);
}

pub(crate) fn tags() -> NonZeroU32 {
    guest_asids(ASIDS.load(Ordering::Relaxed)).expect("`probe` found some")
}

/// Whether the processor has SVM.
pub(crate) fn is_there() -> bool {
    has_svm(__cpuid(0x8000_0000).eax, __cpuid(0x8000_0001).ecx)
}

/// Checks that SVM has the features that we need. Call on the boot CPU of a machine that has it.
pub(crate) fn probe() -> Result<(), &'static str> {
    // SAFETY: a CPU with SVM has the MSR.
    if unsafe { Msr::new(MSR_VM_CR).read() } & VM_CR_SVM_DISABLED != 0 {
        return Err("SVM is disabled by the firmware: enable it in the set-up");
    }
    let leaf = __cpuid(0x8000_000a);
    if !Features(leaf.edx).nested_paging() {
        return Err("this CPU has SVM without nested paging");
    }
    if guest_asids(leaf.ebx).is_none() {
        return Err("this CPU has no address space tags for guests");
    }
    FEATURES.store(leaf.edx, Ordering::Relaxed);
    ASIDS.store(leaf.ebx, Ordering::Relaxed);
    Ok(())
}

/// Enables SVM on the calling CPU.
///
/// # Safety
///
/// `host_save` is a page that is never used for anything else.
pub(crate) unsafe fn enable(host_save: u64) {
    // SAFETY: `probe` found SVM; the caller vouches for the page.
    unsafe {
        Efer::update(|efer| efer.insert(EferFlags::SECURE_VIRTUAL_MACHINE_ENABLE));
        Msr::new(MSR_HOST_SAVE).write(host_save);
    }
}
