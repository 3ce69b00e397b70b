//! x86-64.

use core::arch::asm;

use baremetal::pci::{COMMAND, ConfigSpace, MEMORY_AND_DMA};
use baremetal::x86_64::info::BootInfo;
use baremetal::x86_64::{apic, boot, firmware, guarded, interrupts, processors};
use x86_64::instructions::port::Port;

use super::Absent;
use crate::guest::write;
pub(crate) use crate::misuse::misuse;
pub(crate) use baremetal::x86_64::power::{halt, off};

/// Hyper-V's register with the rate of the TSC in Hz (TLFS, "Partition Reference Counter").
const TSC_FREQUENCY: u32 = 0x4000_0022;

/// Finds the power switch and measures the clock.
pub(crate) fn prepare(info: &BootInfo) {
    // Quell's guests have no timer to measure by. QEMU's processors have zeros in such registers.
    let by_hypervisor = guarded::rdmsr(TSC_FREQUENCY).ok().filter(|hz| *hz != 0);
    // SAFETY: the address is the loader's. Without tables the machine is used all the same.
    let _ = unsafe { firmware::prepare(info.rsdp, by_hypervisor) };
}

/// Waits a little.
pub(crate) fn idle() {
    core::hint::spin_loop();
}

pub(crate) fn hint(_: u8) -> Result<u64, Absent> {
    Err(Absent)
}

/// Only the first processor is used.
pub(crate) fn begin_on_others(_: usize, _: processors::Job) -> usize {
    1
}

pub(crate) fn await_others(_: usize) -> bool {
    true
}

/// Memory that the program uses: that of its start-up code, and the image.
pub(crate) fn taken() -> [(u64, u64); 2] {
    const LOW: (u64, u64) = (0, 1 << 20);
    [LOW, (16 << 20, boot::image_end())]
}

/// Resets the machine: by its reset register, or by a fault without handlers, a triple fault.
pub(crate) fn reset(by_fault: bool) -> Result<u64, Absent> {
    if !by_fault {
        // SAFETY: the machine begins again.
        unsafe { Port::<u8>::new(0xcf9).write(6) };
        return Err(Absent);
    }
    let nothing = [0u8; 10];
    // SAFETY: the machine begins again.
    unsafe { asm!("lidt [{}]", "ud2", in(reg) &raw const nothing, options(noreturn)) }
}

/// The capability MSI-X, and its control.
const MSIX: u8 = 0x11;
const MSIX_ENABLE: u32 = 1 << 31;
/// Bytes of a vector in the table.
const ENTRY_BYTES: u64 = 16;

/// Unmasks all messages of all functions; returns how many.
pub(crate) fn hog() -> Result<u64, Absent> {
    apic::enable();
    let vector = u32::from(interrupts::VECTOR_FREE);
    let message = [0xfee0_0000 | apic::id().apic() << 12, 0, vector, 0];
    let mut count = 0;
    for config in (0..32).map(|device| ConfigSpace::new(device << 3)) {
        let is_function = config.read(0) != u32::MAX;
        let Some(at) = is_function.then(|| config.capability(MSIX)).flatten() else { continue };
        config.write(COMMAND, MEMORY_AND_DMA);
        let entries = u64::from(config.read(at) >> 16 & 0x7ff) + 1;
        let place = config.read(at + 4);
        let table = config.base(place as u8 & 7) + u64::from(place & !7);
        for entry in (0..entries).map(|number| table + number * ENTRY_BYTES) {
            (0..).zip(message).for_each(|(word, value)| write(entry + word * 4, value));
        }
        config.write(at, MSIX_ENABLE);
        count += entries;
    }
    Ok(count)
}
