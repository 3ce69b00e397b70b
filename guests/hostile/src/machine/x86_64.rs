//! x86-64.

use baremetal::guarded_asm;
use baremetal::x86_64::guarded::Fault;
use baremetal::x86_64::info::BootInfo;
use baremetal::x86_64::{apic, boot, firmware, hypercall, processors};

pub(crate) use baremetal::x86_64::power::off;
pub(crate) use baremetal::x86_64::tables::number;
pub(super) use boot::image_end;

/// Finds processors and power switch, and enables the first one's APIC; returns their number.
pub(super) fn prepare(info: &BootInfo) -> usize {
    hypercall::prepare();
    // SAFETY: the address is the loader's.
    let firmware = unsafe { firmware::prepare(info.rsdp, None) }.unwrap_or_else(|why| panic!("{why}"));
    apic::enable();
    processors::number_all(apic::id(), firmware.apic_ids)
}

/// Executes an undefined instruction; returns whether the processor raises the fault for it.
pub(crate) fn undefined() -> bool {
    // SAFETY: the instruction only faults, which is guarded.
    unsafe { guarded_asm!("ud2";) == Err(Fault::UNDEFINED) }
}
