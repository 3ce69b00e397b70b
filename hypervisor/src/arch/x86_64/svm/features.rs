//! What the processor's SVM offers, and turning it on.

use core::sync::atomic::{AtomicBool, AtomicU32, Ordering};

use core::arch::x86_64::__cpuid;
use core::num::NonZeroU32;

use coherence::CpuId;
use coherence::asid::AsidAllocator;
use x86_64::registers::control::{Efer, EferFlags};
use x86_64::registers::model_specific::Msr;

const MSR_VM_CR: u32 = 0xc001_0114;
const VM_CR_SVM_DISABLED: u64 = 1 << 4;
const MSR_HOST_SAVE: u32 = 0xc001_0117;

/// CPUID Fn8000_000A EDX.
const NESTED_PAGING: u32 = 1 << 0;
const NEXT_RIP: u32 = 1 << 3;
const CLEAN_BITS: u32 = 1 << 5;
const FLUSH_BY_ASID: u32 = 1 << 6;
const DECODE_ASSISTS: u32 = 1 << 7;
const PAUSE_FILTER: u32 = 1 << 10;

static FEATURES: AtomicU32 = AtomicU32::new(0);
static ASIDS: AtomicU32 = AtomicU32::new(0);
static TSC_AUX: AtomicBool = AtomicBool::new(false);
/// Bits of CPUID leaf 1's ECX that this machine has and gets wrong.
static WRONG: AtomicU32 = AtomicU32::new(0);

/// CPUID leaf 1, ECX: CMPXCHG16B.
const CX16: u32 = 1 << 13;

/// SVM features of this machine; each one is used where it is there and done without where it is not.
#[derive(Clone, Copy)]
pub(crate) struct Features(u32);

impl Features {
    /// The boot CPU's features; the others are taken to have the same.
    pub(crate) fn get() -> Self {
        Self(FEATURES.load(Ordering::Relaxed))
    }

    /// The processor reports the address of the next instruction.
    pub(crate) fn next_rip(self) -> bool {
        self.0 & NEXT_RIP != 0
    }

    /// The processor keeps parts of the VMCB that are marked clean.
    pub(crate) fn clean_bits(self) -> bool {
        self.0 & CLEAN_BITS != 0
    }

    /// VMRUN can flush one ASID.
    pub(crate) fn flush_by_asid(self) -> bool {
        self.0 & FLUSH_BY_ASID != 0
    }

    /// The processor reports instruction bytes and operands.
    pub(crate) fn decode_assists(self) -> bool {
        self.0 & DECODE_ASSISTS != 0
    }

    /// The processor counts PAUSEs before it exits.
    pub(crate) fn pause_filter(self) -> bool {
        self.0 & PAUSE_FILTER != 0
    }
}

/// From now on clean bits, and flushes of one ASID, are taken to be there: on a machine that keeps nothing from one VMRUN to the
/// next both are right whatever it does. Before the first vCPU.
pub(crate) fn pretend() {
    FEATURES.fetch_or(CLEAN_BITS | FLUSH_BY_ASID, Ordering::Relaxed);
}

/// Whether the processor has the TSC_AUX register.
pub(crate) fn has_tsc_aux() -> bool {
    TSC_AUX.load(Ordering::Relaxed)
}

/// Bits of CPUID leaf 1's ECX that guests are not shown because the machine gets what they stand for wrong.
pub(super) fn wrong() -> u32 {
    WRONG.load(Ordering::Relaxed)
}

/// The address space tags of `cpu`; to be called once for each CPU.
pub(crate) fn asid_allocator(cpu: CpuId) -> AsidAllocator {
    // One is the host's own.
    let max = NonZeroU32::new(ASIDS.load(Ordering::Relaxed) - 1).expect("`probe` found at least two");
    AsidAllocator::new(cpu, max, Features::get().flush_by_asid())
}

/// Checks that the machine can do what we need. Call on the boot CPU.
pub(crate) fn probe() -> Result<(), &'static str> {
    let svm = __cpuid(0x8000_0000).eax >= 0x8000_000a && __cpuid(0x8000_0001).ecx & 1 << 2 != 0;
    if !svm {
        return Err("this CPU has no SVM: Quell needs an AMD processor, or QEMU with -cpu EPYC,+svm,+npt");
    }
    // SAFETY: a CPU with SVM has the MSR.
    if unsafe { Msr::new(MSR_VM_CR).read() } & VM_CR_SVM_DISABLED != 0 {
        return Err("SVM is disabled by the firmware: enable it in the set-up");
    }
    let leaf = __cpuid(0x8000_000a);
    if leaf.edx & NESTED_PAGING == 0 {
        return Err("this CPU has SVM without nested paging");
    }
    if leaf.ebx < 2 {
        return Err("this CPU has no address space tags for guests");
    }
    FEATURES.store(leaf.edx, Ordering::Relaxed);
    ASIDS.store(leaf.ebx, Ordering::Relaxed);
    TSC_AUX.store(super::cpuid::host_has_rdtscp(), Ordering::Relaxed);
    if __cpuid(1).ecx & CX16 != 0 && !super::cx16::leaves_flags() {
        log::info!("CMPXCHG16B damages the flags on this machine: guests are not shown it");
        WRONG.store(CX16, Ordering::Relaxed);
    }
    Ok(())
}

/// Turns SVM on for the calling CPU.
///
/// # Safety
///
/// `host_save` is a page that nobody else uses, for ever.
pub(crate) unsafe fn enable(host_save: u64) {
    // SAFETY: `probe` found SVM; the caller vouches for the page.
    unsafe {
        Efer::update(|efer| efer.insert(EferFlags::SECURE_VIRTUAL_MACHINE_ENABLE));
        Msr::new(MSR_HOST_SAVE).write(host_save);
    }
}
