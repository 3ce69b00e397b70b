//! CPUID leaves 0x40000000 to 0x40000006, or 0x4000000a for a guest that may have guests.
//!
//! A bit is set here only if its feature works; `vp`'s tests probe each of them. Linux' use of each
//! bit is described at the bit, from Debian's Linux 6.1.192 and 6.12.117:
//! arch/x86/kernel/cpu/mshyperv.c, arch/x86/hyperv/{hv_init,hv_apic,hv_spinlock,mmu}.c,
//! drivers/hv/hv_common.c, drivers/clocksource/hyperv_timer.c, drivers/iommu/hyperv-iommu.c,
//! arch/x86/kernel/apic/apic.c.
//!
//! Outside these leaves Linux also needs:
//!
//! * the hypervisor bit, CPUID 1.ECX\[31\]; otherwise it ignores all of this;
//! * x2APIC in CPUID 1.ECX\[21\], which on Hyper-V it uses without interrupt remapping, in physical
//!   mode;
//! * an APIC timer that never stops, CPUID 6.EAX\[2\]; otherwise it looks for a PIT even though it
//!   has been told the frequencies (`apic_needs_pit`);
//! * zeros in the leaves from 0x40000007 on, of which it reads 0x40000080.

use hostlink::config::MAX_VCPUS;
use tlfs::cpuid::{
    INTERFACE, LEAF_FEATURES, LEAF_HARDWARE, LEAF_HINTS, LEAF_INTERFACE, LEAF_LIMITS, LEAF_NESTED,
    LEAF_VENDOR, LEAF_VERSION, VENDOR, feature, hardware, hint, nested, privilege,
};

use super::hypercall::PROFILE;
use migration::described;

/// The properties of the partition's platform. Constant for its lifetime.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PartitionTraits {
    /// Recommend the flush hypercalls. They work either way; without the recommendation a guest
    /// sends IPIs.
    pub flush_hypercall: bool,
    /// The end of an interrupt exits, unless the assist page says that it is unnecessary.
    pub eoi_exits: bool,
    /// The TSC ticks at one rate on all CPUs and never stops. Then Linux uses the TSC itself as its
    /// clock source rather than the reference TSC page.
    pub invariant_tsc: bool,
    /// Guest memory is translated by nested paging.
    pub nested_paging: bool,
    /// The guest may have guests of its own, by SVM.
    pub may_nest: bool,
    /// Frequency of the partition's TSC in Hz.
    pub tsc_hz: u64,
    /// Frequency of the local APIC timer's clock before its divider in Hz.
    pub apic_hz: u64,
    /// Width of guest physical addresses in bits, at most 52.
    pub gpa_bits: u8,
}

#[cfg(test)]
impl PartitionTraits {
    /// With all that there can be.
    pub(crate) const ALL: Self = Self {
        flush_hypercall: true,
        eoi_exits: true,
        invariant_tsc: true,
        nested_paging: true,
        may_nest: true,
        tsc_hz: 2_000_000_000,
        apic_hz: 1_000_000_000,
        gpa_bits: 40,
    };
}

// The rate of the TSC is the clock's. Whether there may be guests is compared before all else.
described! { PartitionTraits:
    ; same flush_hypercall, eoi_exits, invariant_tsc, nested_paging, apic_hz, gpa_bits;
    stays tsc_hz, may_nest
}

impl PartitionTraits {
    /// Whether a page at `gpa` is in the guest physical address space.
    pub const fn has_gpa(&self, gpa: u64) -> bool {
        self.gpa_bits >= 64 || gpa >> self.gpa_bits == 0
    }
}

/// The registers after CPUID.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CpuidResult {
    /// EAX.
    pub eax: u32,
    /// EBX.
    pub ebx: u32,
    /// ECX.
    pub ecx: u32,
    /// EDX.
    pub edx: u32,
}

/// EBX of the hint leaf: after this many attempts to take a spin lock the guest calls
/// HvCallNotifyLongSpinWait, upon which the spinning vCPU yields. Windows follows this. Linux has
/// no such call: its paravirtual spin locks need [`hint::CLUSTER_IPI`] and
/// [`privilege::GUEST_IDLE`] instead.
const SPIN_RETRIES: u32 = 0x1000;

/// The leaf's contents; `None` if the hypervisor interface has no such leaf.
pub fn leaf(leaf: u32, platform: &PartitionTraits) -> Option<CpuidResult> {
    Some(match leaf {
        LEAF_VENDOR => {
            let [ebx, ecx, edx] = VENDOR;
            let highest = if platform.may_nest { LEAF_NESTED } else { LEAF_HARDWARE };
            CpuidResult { eax: highest, ebx, ecx, edx }
        }
        LEAF_INTERFACE => CpuidResult { eax: INTERFACE, ..Default::default() },
        LEAF_VERSION => CpuidResult { ebx: VERSION_MAJOR << 16 | VERSION_MINOR, ..Default::default() },
        LEAF_FEATURES => CpuidResult { eax: privileges(platform), ebx: 0, ecx: 0, edx: features() },
        LEAF_HINTS => {
            CpuidResult { eax: hints(platform), ebx: SPIN_RETRIES, ecx: u32::from(platform.gpa_bits), edx: 0 }
        }
        LEAF_LIMITS => CpuidResult { eax: MAX_VCPUS, ..Default::default() },
        LEAF_HARDWARE => {
            let nested_paging = if platform.nested_paging { hardware::NESTED_PAGING } else { 0 };
            CpuidResult { eax: hardware::MSR_BITMAPS | nested_paging, ..Default::default() }
        }
        LEAF_NESTED if platform.may_nest => CpuidResult { eax: NESTED, ..Default::default() },
        _ => return None,
    })
}

/// For a guest that has guests: `kvm_amd` sets the bits of these in its blocks
/// (arch/x86/kvm/svm/svm_onhyperv.h), and tells by hypercall what it changes in its nested tables.
const NESTED: u32 = nested::ENLIGHTENED_TLB | nested::MSR_MAP | nested::DIRECT_FLUSH;

/// The hypervisor's own version, for the guest's log.
const VERSION_MAJOR: u32 = decimal(env!("CARGO_PKG_VERSION_MAJOR"));
const VERSION_MINOR: u32 = decimal(env!("CARGO_PKG_VERSION_MINOR"));

fn privileges(platform: &PartitionTraits) -> u32 {
    // Without these two Linux does not recognise a hypervisor as Hyper-V at all.
    privilege::HYPERCALL
        | privilege::VP_INDEX
        // The processor time that a vCPU had; the rest of the time it waited, or was halted. Linux
        // does not read it.
        | privilege::VP_RUNTIME
        // The reference TSC page becomes clock source and scheduler clock; the counter's register
        // is its fallback. It counts as continuous, so the timer tick can stop.
        | privilege::REFERENCE_COUNTER
        | privilege::REFERENCE_TSC
        // With `feature::FREQUENCIES`: Linux reads both frequencies instead of measuring them.
        | privilege::FREQUENCIES
        // With `feature::DIRECT_TIMERS`: Linux makes timer 0 its clock event device, rated above
        // the local APIC's.
        | privilege::SYNTHETIC_TIMERS
        // Assist page and end of interrupt, see `hint::APIC_REGISTERS`.
        | privilege::INTERRUPT_CONTROL
        | privilege::RESET
        // Without it Linux marks the TSC as unstable. With it the TSC is its best clock source and
        // has no watchdog, and the page's is rated below it; 6.1 keeps the page as scheduler clock.
        | if platform.invariant_tsc { privilege::TSC_INVARIANT } else { 0 }
}

/// Features in addition to the privileges.
const fn features() -> u32 {
    PROFILE.feature_bits()
        | feature::FREQUENCIES
        // Linux writes them in a panic. Because the control register accepts messages, the end of
        // the kernel's log is included.
        | feature::CRASH
        | feature::HYPERCALL_LOCK
        | feature::DIRECT_TIMERS
}

/// Recommendations to the guest.
fn hints(platform: &PartitionTraits) -> u32 {
    // Linux replaces its EOI by one that checks the assist page first and writes the register only
    // if the page does not say that this is unnecessary. In x2APIC mode that is the only effect;
    // the other registers are architectural there.
    let registers = if platform.eoi_exits { hint::APIC_REGISTERS } else { 0 };
    registers
        // vCPUs wait for CPUs: a watchdog in the guest would report the wrong culprit.
        | hint::RELAXED_TIMING
        // There is no synthetic interrupt controller with auto-EOI interrupts.
        | hint::NO_AUTO_EOI
        // Linux logs "Hyper-V: Using IPI hypercalls" and uses them: one exit for any number of
        // targets.
        | PROFILE.hint_bits()
        // The calls with VP sets exist; Linux needs them for VP indices from 64 on.
        | hint::EX_PROCESSOR_MASKS
        // Linux logs "Hyper-V: Using hypercall for remote TLB flush". The one difference between
        // the two ways of running a guest.
        | if platform.flush_hypercall { hint::REMOTE_FLUSH } else { 0 }
}

/// Parses the decimal number `text`, which the build provides. Anything else fails the build.
const fn decimal(text: &str) -> u32 {
    let (bytes, mut index, mut number) = (text.as_bytes(), 0, 0);
    while index < bytes.len() {
        number = number * 10 + (bytes[index] - b'0') as u32;
        index += 1;
    }
    number
}
