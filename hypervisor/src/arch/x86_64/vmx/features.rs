//! The processor's VMX features, and enabling VMX.

use core::arch::asm;
use core::arch::x86_64::{__cpuid, __cpuid_count};
use spin::Once;
use stay::tagged::two_flushes::Invept;
use x86_64::registers::control::{Cr0, Cr4, Cr4Flags};
use x86_64::registers::model_specific::Msr;

use super::invalidate;
use crate::image::Processor;
use crate::vmx::capabilities::{Capabilities, Lacking};
use crate::vmx::controls::Controls;
use crate::vmx::run::Instructions;
use crate::vmx::soft_state::Register;
use crate::x86::vcpu::msr;

/// It cannot be changed before the next reset.
const LOCKED: u64 = 1 << 0;
/// VMXON is allowed.
const VMXON: u64 = 1 << 2;

static CHOSEN: Once<(Capabilities, Controls)> = Once::new();

/// The boot CPU's capabilities, and the controls that are chosen; the others are assumed to have
/// the same.
pub(crate) fn chosen() -> (&'static Capabilities, Controls) {
    let (capabilities, controls) = CHOSEN.get().expect("`probe` has found them");
    (capabilities, *controls)
}

/// Whether the processor has VMX.
pub(crate) fn is_there() -> bool {
    __cpuid(1).ecx & 1 << 5 != 0
}

/// Checks that VMX has the features that we need. Call on the boot CPU of a machine that has it.
pub(crate) fn probe() -> Result<(), Lacking> {
    // SAFETY: a CPU with VMX has the MSR.
    let control = unsafe { Msr::new(msr::FEATURE_CONTROL).read() };
    if control & (LOCKED | VMXON) == LOCKED {
        return Err(Lacking::Firmware);
    }
    let has_others = __cpuid(0).eax >= 7 && __cpuid_count(7, 0).edx & 1 << 29 != 0;
    // SAFETY: a CPU with VMX has the MSRs that the first of them announces, and CPUID the other.
    let capabilities = Capabilities::read(has_others, |number| unsafe { Msr::new(number).read() });
    let controls = capabilities.choose()?;
    CHOSEN.call_once(|| (capabilities, controls));
    Ok(())
}

/// Enables VMX on the calling CPU.
///
/// # Safety
///
/// `region` is a page that is never used for anything else.
pub(crate) unsafe fn enable(region: u64) {
    let (capabilities, _) = chosen();
    let mut control = Msr::new(msr::FEATURE_CONTROL);
    // SAFETY: `probe` has found VMX. The registers get what VMX needs besides what they have. The
    // caller vouches for the region, whose first word is the revision.
    unsafe {
        if control.read() & LOCKED == 0 {
            control.write(control.read() | LOCKED | VMXON);
        }
        Cr0::write_raw(capabilities.cr0(Cr0::read_raw()));
        Cr4::write_raw(capabilities.cr4(Cr4::read_raw() | Cr4Flags::VIRTUAL_MACHINE_EXTENSIONS.bits()));
        (region as *mut u32).write(capabilities.revision());
        asm!("vmxon [{}]", "jbe {failed}", in(reg) &raw const region, failed = label {
            panic!("VMXON has failed")
        });
    }
    for register in [Register::Star, Register::Lstar, Register::Cstar, Register::Sfmask] {
        Processor::write_soft(register, 0);
    }
    // Whoever used VMX before may have left something.
    invalidate::nested(Invept::All);
}
