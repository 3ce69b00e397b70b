//! Configuration space of PCI in memory (ECAM), where QEMU's `virt` board has that of its first bus
//! below 4 GiB, and Quell's guests theirs. Source: PCI Express Base Specification 5.0, section
//! 7.2.2.

use super::guarded;

const ECAM: u64 = 0x3f00_0000;
/// Bytes of a device: 8 functions of 4 KiB.
const DEVICE: u64 = 8 << 12;
const DEVICES: u64 = 32;

/// Configuration space of a function.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ConfigSpace(u64);

impl ConfigSpace {
    /// The first function 0 of a device on bus 0 for which this is so. `None` also where there is
    /// no bus.
    pub fn find(is_it: impl Fn(&Self) -> bool) -> Option<Self> {
        guarded::load(ECAM).ok()?;
        (0..DEVICES).map(|device| Self(ECAM + device * DEVICE)).find(is_it)
    }

    /// Reads a double word; all ones where there is no function.
    pub fn read(&self, register: u8) -> u32 {
        // SAFETY: configuration space is there, see `find`; reading it changes nothing.
        unsafe { self.register(register).read_volatile() }
    }

    /// Writes a double word. The caller has the function to itself.
    pub fn write(&self, register: u8, value: u32) {
        // SAFETY: configuration space is there, see `find`, and the caller has the function to
        // itself.
        unsafe { self.register(register).write_volatile(value) };
    }

    fn register(self, register: u8) -> *mut u32 {
        (self.0 + u64::from(register & !3)) as *mut u32
    }
}
