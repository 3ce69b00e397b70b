//! The made IOMMU's walks: of the device table, page tables and interrupt tables (48882, 2.2).

use core::sync::atomic::{AtomicU32, AtomicU64, Ordering};

use super::iommu::{ADDRESS, DEVICE_TABLE, State};

/// Why an access or an interrupt was not carried out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Refusal {
    /// The IOMMU is off, or has no valid entry for the device.
    NoEntry,
    /// The device's entry blocks it.
    Blocked,
    /// Nothing is mapped there, or not with this permission.
    NotMapped,
    /// The table has what the specification does not allow.
    Malformed,
}

#[derive(Clone, Copy, Debug)]
pub(super) struct Kept {
    pub(super) domain: u16,
    /// Device-visible address, size, and host physical address.
    pub(super) start: u64,
    pub(super) len: u64,
    pub(super) host: u64,
    /// Bit 0: it may be read; bit 1: it may be written.
    pub(super) rights: u64,
}

impl Kept {
    pub(super) fn has(&self, domain: u16, address: u64) -> bool {
        self.domain == domain && self.start <= address && address - self.start < self.len
    }

    /// Whether it is of a domain, and has something of a range.
    pub(super) fn meets(&self, domain: u16, start: u64, end: u64) -> bool {
        self.domain == domain && start < self.start + self.len && self.start < end
    }

    /// Where an address leads that it has.
    pub(super) fn at(&self, address: u64) -> u64 {
        self.host + (address - self.start)
    }
}

pub(super) fn word(address: u64) -> u64 {
    // SAFETY: the driver has put a table there, which consists of words.
    unsafe { &*(address as *const AtomicU64) }.load(Ordering::Acquire)
}

impl State {
    /// The entry by which the IOMMU goes: it is read once, and then kept.
    fn entry(&mut self, device: u16) -> Option<[u64; 4]> {
        let base = self.register(DEVICE_TABLE);
        let count = ((base & 0x1ff) + 1) * 128;
        if !self.has(1) || u64::from(device) >= count {
            return None;
        }
        let at = (base & ADDRESS) + u64::from(device) * 32;
        let read = || core::array::from_fn(|index| word(at + 8 * index as u64));
        Some(*self.entries.entry(device).or_insert_with(read))
    }

    /// Walks the tables at `root` (2.2.3).
    pub(super) fn walk(&self, domain: u16, root: u64, gpa: u64) -> Result<Kept, Refusal> {
        let (mut table, mut rights) = (root, 3 << 61);
        for level in (1..=4u32).rev() {
            let shift = 12 + 9 * (level - 1);
            let entry = word(table + (gpa >> shift & 511) * 8);
            if entry & 1 == 0 {
                return Err(Refusal::NotMapped);
            }
            rights &= entry;
            let next = entry >> 9 & 7;
            if next == 0 {
                let len = 1 << shift;
                let (start, host) = (gpa & !(len - 1), entry & ADDRESS & !(len - 1));
                if rights & 1 << 61 == 0 {
                    return Err(Refusal::NotMapped);
                }
                return Ok(Kept { domain, start, len, host, rights: rights >> 61 });
            }
            if next != u64::from(level) - 1 {
                return Err(Refusal::Malformed);
            }
            table = entry & ADDRESS;
        }
        Err(Refusal::Malformed)
    }

    /// The host physical address that a device reaches.
    pub(super) fn translate(&mut self, device: u16, gpa: u64, is_write: bool) -> Result<u64, Refusal> {
        let entry = self.entry(device).filter(|entry| entry[0] & 1 != 0).ok_or(Refusal::NoEntry)?;
        // Without TV translations pass, which the driver must never allow.
        assert_ne!(entry[0] & 2, 0, "device {device:#x} reaches all memory");
        if entry[0] >> 61 & 3 == 0 {
            return Err(Refusal::Blocked);
        }
        let domain = entry[1] as u16;
        let found = self.kept.iter().find(|kept| kept.has(domain, gpa)).copied();
        let kept = match found {
            Some(kept) => kept,
            None if entry[0] >> 9 & 7 != 4 => return Err(Refusal::Malformed),
            None => {
                let kept = self.walk(domain, entry[0] & ADDRESS, gpa)?;
                self.kept.push(kept);
                kept
            }
        };
        if is_write && kept.rights & 2 == 0 {
            return Err(Refusal::NotMapped);
        }
        Ok(kept.at(gpa))
    }

    pub(super) fn remap(&mut self, device: u16, address: u64, data: u32) -> Result<(u8, u8), Refusal> {
        assert_eq!(address >> 20, 0xfee, "the address of interrupts");
        let entry = self.entry(device).filter(|entry| entry[0] & 1 != 0).ok_or(Refusal::NoEntry)?;
        let third = entry[2];
        assert_ne!(third & 1, 0, "device {device:#x} sends any interrupt");
        let (index, count) = (data & 0x7ff, 1 << (third >> 1 & 15));
        if third >> 60 & 3 != 2 || index >= count {
            return Err(Refusal::Blocked);
        }
        let at = (third & 0x000f_ffff_ffff_ffc0) + u64::from(index) * 4;
        // SAFETY: the driver has put a table of remapping entries there.
        let read = || unsafe { &*(at as *const AtomicU32) }.load(Ordering::Acquire);
        let remap = *self.remaps.entry((device, index)).or_insert_with(read);
        if remap & 1 == 0 {
            return Err(Refusal::NotMapped);
        }
        assert_eq!(remap & 0xfe, 0, "a fixed interrupt for a physical destination");
        Ok(((remap >> 8) as u8, (remap >> 16) as u8))
    }
}
