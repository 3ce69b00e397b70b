//! x86-64.

use baremetal::pci::{COMMAND, ConfigSpace, MEMORY_AND_DMA, MSIX_ENABLE, Messages};
use baremetal::x86_64::info::BootInfo;
use baremetal::x86_64::{apic, boot, firmware, guarded, interrupts, power, processors, tables};

use crate::guest::{Failure, write};
pub(crate) use crate::misuse::misuse;
pub(crate) use power::{halt, off};

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

pub(crate) fn hint(_: u8) -> Result<u64, Failure> {
    Err(Failure::Absent)
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
pub(crate) fn reset(by_fault: bool) -> Result<u64, Failure> {
    if by_fault {
        tables::triple_fault();
    }
    power::reset();
    Err(Failure::Absent)
}

/// Unmasks all messages of all functions; returns how many.
pub(crate) fn hog() -> Result<u64, Failure> {
    apic::enable();
    let vector = u32::from(interrupts::VECTOR_FREE);
    let message = [0xfee0_0000 | apic::id().apic() << 12, 0, vector, 0];
    let mut count = 0;
    for config in (0..32).map(|device| ConfigSpace::new(device << 3)) {
        let is_function = config.read(0) != u32::MAX;
        let Some(messages) = is_function.then(|| config.messages()).flatten() else { continue };
        config.write(COMMAND, MEMORY_AND_DMA);
        let table = config.base(messages.table.0) + messages.table.1;
        for entry in (0..messages.count).map(|number| table + number * Messages::BYTES) {
            (0..).zip(message).for_each(|(word, value)| write(entry + word * 4, value));
        }
        config.write(messages.control, MSIX_ENABLE);
        count += messages.count;
    }
    Ok(count)
}
