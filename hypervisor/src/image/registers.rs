//! Accesses to registers of devices, by their address.

/// Reads 1, 2, 4 or 8 bytes. Those of another size, or that are not aligned, read as ones.
///
/// # Safety
///
/// Registers are there, mapped uncached, and reading them has no effect on the hypervisor.
pub(crate) unsafe fn load(address: u64, size: u8) -> u64 {
    // SAFETY: the caller vouches for the address, and it is aligned.
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
pub(crate) unsafe fn store(address: u64, size: u8, value: u64) {
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
