//! x86-64.

use baremetal::x86_64::info::BootInfo;
use baremetal::x86_64::power::{self, Switch};
use baremetal::x86_64::{boot, clock, firmware, processors};
use spin::Once;
use x86_64::instructions::port::Port;

use super::Absent;

static SWITCH: Once<Option<Switch>> = Once::new();

/// Finds the power switch and measures the clock.
pub(crate) fn prepare(info: &BootInfo) {
    // SAFETY: the address is the loader's.
    let Ok(firmware) = (unsafe { firmware::read(info.rsdp) }) else { return };
    // SAFETY: as above.
    SWITCH.call_once(|| unsafe { firmware::switch(info.rsdp) });
    let by_timer = || firmware.pm_timer.and_then(clock::hz_by_pm_timer);
    if let Some(hz) = clock::hz_by_cpuid().or_else(by_timer) {
        clock::set_hz(hz);
    }
}

/// Waits a little.
pub(crate) fn idle() {
    core::hint::spin_loop();
}

/// Nanoseconds in this many ticks.
pub(crate) fn nanoseconds(ticks: u64) -> u64 {
    (u128::from(ticks) * 1_000_000_000 / u128::from(clock::hz())) as u64
}

/// There are no hints on this architecture.
pub(crate) fn hint(_: u8) -> Result<u64, Absent> {
    Err(Absent)
}

/// Only the first processor is used.
pub(crate) fn begin_on_others(_: usize, _: processors::Job) -> usize {
    1
}

/// There are no other processors.
pub(crate) fn await_others(_: usize) -> bool {
    true
}

/// Sleeps for good.
pub(crate) fn halt() -> ! {
    power::off(None)
}

/// Switches the machine off.
pub(crate) fn off() -> ! {
    power::off(SWITCH.get().copied().flatten())
}

/// Memory that the program uses: that of its start-up code, and the image.
pub(crate) fn taken() -> [(u64, u64); 2] {
    const LOW: (u64, u64) = (0, 1 << 20);
    [LOW, (16 << 20, boot::image_end())]
}

/// Configuration space of a function on PCI bus 0.
pub(crate) struct ConfigSpace(u8);

impl ConfigSpace {
    /// The first function 0 of a device for which this is so.
    pub(crate) fn find(is_it: impl Fn(&Self) -> bool) -> Option<Self> {
        (0..32).map(Self).find(is_it)
    }

    fn select(&self, register: u8) {
        let address = 1 << 31 | u32::from(self.0) << 11 | u32::from(register & !3);
        // SAFETY: the port is the host bridge's, and selects a register.
        unsafe { Port::new(0xcf8).write(address) };
    }

    /// Reads a double word; all ones where there is no function.
    pub(crate) fn read(&self, register: u8) -> u32 {
        self.select(register);
        // SAFETY: reading configuration space changes nothing.
        unsafe { Port::new(0xcfc).read() }
    }

    /// Writes a double word.
    pub(crate) fn write(&self, register: u8, value: u32) {
        self.select(register);
        // SAFETY: the caller has the function to itself.
        unsafe { Port::new(0xcfc).write(value) };
    }
}
