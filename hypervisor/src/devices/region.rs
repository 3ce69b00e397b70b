//! Guest physical addresses that belong to devices, where no memory may be placed.

use core::fmt;
use core::ops::Range;

/// A device's range of guest physical addresses. The whole range belongs to the device, including
/// the gaps between its registers.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Region {
    /// The device's name, for operators.
    pub name: &'static str,
    /// The address range.
    pub range: Range<u64>,
}

impl Region {
    /// A device's registers, `size` bytes from `start` on.
    pub const fn new(name: &'static str, start: u64, size: u64) -> Self {
        Self { name, range: start..start + size }
    }

    /// Whether any of the `size` bytes from `gpa` on belongs to the device.
    pub const fn overlaps(&self, gpa: u64, size: u64) -> bool {
        // Subtractions that cannot wrap, because `gpa + size` could.
        if gpa < self.range.start { self.range.start - gpa < size } else { gpa < self.range.end && size != 0 }
    }
}

impl fmt::Display for Region {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}, {:#x} to {:#x}", self.name, self.range.start, self.range.end)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::devices::pc::platform;
    use crate::devices::virt::map;

    fn found(regions: &[Region], gpa: u64, size: u64) -> Option<&'static str> {
        regions.iter().find(|region| region.overlaps(gpa, size)).map(|region| region.name)
    }

    #[test]
    fn u16_every_page_of_a_pcs_devices_is_refused_and_its_neighbours_are_not() {
        let regions = platform::REGIONS;
        for (first, last, name) in [
            (0xe000_0000, 0xefff_f000, "PCI"),
            (0xfec0_0000, 0xfec0_0000, "I/O APIC"),
            (0xfee0_0000, 0xfeef_f000, "local APIC"),
        ] {
            for gpa in [first, last] {
                assert!(found(&regions, gpa, 0x1000).is_some_and(|found| found.contains(name)), "{gpa:#x}");
            }
            assert_eq!(found(&regions, first - 0x1000, 0x1000), None);
            assert_eq!(found(&regions, last + 0x1000, 0x1000), None);
            assert!(found(&regions, first - 0x1000, 0x1001).is_some());
        }
        assert_eq!(found(&regions, 0, u64::MAX), Some(regions[0].name), "all at once");
        assert_eq!(found(&regions, 1 << 32, u64::MAX), None, "the sum wraps");
        assert_eq!(found(&regions, 0xfec0_0000, 0), None, "nothing overlaps nothing");
    }

    #[test]
    fn u16_every_page_of_an_arm_boards_devices_is_refused_and_ram_is_not() {
        for vcpu_count in [1, 4, 123, 124, 255] {
            let regions = map::regions(vcpu_count);
            let redistributors = map::redistributors(vcpu_count);
            let last = redistributors.end - 0x1000;
            for gpa in [
                map::GICD,
                map::UART,
                map::RTC,
                map::GENERATION,
                map::STOLEN_TIME,
                redistributors.start,
                last,
            ] {
                assert!(found(&regions, gpa, 0x1000).is_some(), "{vcpu_count} vCPUs, {gpa:#x}");
            }
            assert_eq!(found(&regions, map::RAM, 1 << 40), None);
            let behind = found(&regions, redistributors.end, 0x1000);
            assert_eq!(behind.is_some(), redistributors.end == map::UART);
            assert_eq!(found(&regions, 0, map::GICD), None);
        }
    }
}
