//! Accesses to registers of devices, by their address.

use pci::ConfigSpace;

use super::Local;
use crate::owned::Bus;
use crate::vm::arch::Clock;

/// A bus whose functions' registers are accessed by their address.
///
/// # Safety
///
/// The registers that the hypervisor accesses
/// ([`hypervisors_pages`](crate::owned::hypervisors_pages)) are mapped uncached.
pub(crate) unsafe trait MappedBus: ConfigSpace + Sync {}

impl<T: MappedBus> Bus for T {
    fn load(&self, address: u64, size: u8) -> u64 {
        // SAFETY: `MappedBus` promises that the registers are mapped uncached; what reading them
        // does concerns the guest's function alone.
        unsafe { load(address, size) }
    }

    fn store(&self, address: u64, size: u8, value: u64) {
        // SAFETY: as for `load`.
        unsafe { store(address, size, value) };
    }

    fn now_us(&self) -> u64 {
        Local::us_of_ticks(Local::now())
    }
}

/// Reads 1, 2, 4 or 8 bytes. Those of another size, or that are not aligned, read as ones.
///
/// # Safety
///
/// Registers are there, mapped uncached, and reading them has no effect on the hypervisor.
unsafe fn load(address: u64, size: u8) -> u64 {
    // SAFETY: the caller vouches for the address, and each access is made only if it is aligned.
    unsafe {
        match size {
            1 => (address as *const u8).read_volatile().into(),
            2 if address.is_multiple_of(2) => (address as *const u16).read_volatile().into(),
            4 if address.is_multiple_of(4) => (address as *const u32).read_volatile().into(),
            8 if address.is_multiple_of(8) => (address as *const u64).read_volatile(),
            _ => u64::MAX,
        }
    }
}

/// Writes 1, 2, 4 or 8 bytes. Those of another size, or that are not aligned, are lost.
///
/// # Safety
///
/// As for [`load`].
unsafe fn store(address: u64, size: u8, value: u64) {
    // SAFETY: as in `load`.
    unsafe {
        match size {
            1 => (address as *mut u8).write_volatile(value as u8),
            2 if address.is_multiple_of(2) => (address as *mut u16).write_volatile(value as u16),
            4 if address.is_multiple_of(4) => (address as *mut u32).write_volatile(value as u32),
            8 if address.is_multiple_of(8) => (address as *mut u64).write_volatile(value),
            _ => {}
        }
    }
}
