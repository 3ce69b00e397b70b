//! x86-64.

use core::arch::asm;

use baremetal::guarded;
use baremetal::x86_64::guarded::Fault;
use baremetal::x86_64::info::BootInfo;
use baremetal::x86_64::power::{self, Switch};
use baremetal::x86_64::{apic, boot, clock, firmware, hypercall, interrupts, processors, tables};
use spin::Once;

static SWITCH: Once<Option<Switch>> = Once::new();

/// Finds processors and power switch, and enables the first one's APIC; returns their number.
pub(super) fn prepare(info: &BootInfo) -> usize {
    hypercall::prepare();
    // SAFETY: the address is the loader's.
    let firmware = unsafe { firmware::read(info.rsdp) }.unwrap_or_else(|why| panic!("{why}"));
    // SAFETY: as above.
    SWITCH.call_once(|| unsafe { firmware::switch(info.rsdp) });
    let by_timer = || firmware.pm_timer.and_then(clock::hz_by_pm_timer);
    if let Some(hz) = clock::hz_by_cpuid().or_else(by_timer) {
        clock::set_hz(hz);
    }
    apic::enable();
    let own = apic::id();
    processors::set_apic_id(0, own);
    let mut count = 1;
    for id in firmware.apic_ids.into_iter().filter(|id| *id != own).take(processors::MAX_PROCESSORS - 1) {
        processors::set_apic_id(count, id);
        count += 1;
    }
    count
}

/// The first address after the program.
pub(super) fn image_end() -> u64 {
    boot::image_end()
}

pub(crate) fn number() -> usize {
    tables::number()
}

/// Executes an undefined instruction; returns whether the processor raises the fault for it.
pub(crate) fn undefined() -> bool {
    let (fault, error): (u64, u64);
    // SAFETY: the instruction only faults, which is guarded.
    unsafe {
        asm!(guarded!("ud2"), inout("r11") 0u64 => fault, inout("r10") 0u64 => error);
    }
    Fault::check(fault, error) == Err(Fault::UNDEFINED)
}

/// Sends an interrupt to every processor but the first.
pub(crate) fn wake_all() {
    (1..super::count())
        .for_each(|number| apic::send_fixed(processors::apic_id(number), interrupts::VECTOR_WAKE));
}

pub(crate) fn off() -> ! {
    power::off(SWITCH.get().copied().flatten())
}
