//! The guest's physical memory map.
//!
//! | from | to | contents |
//! |---|---|---|
//! | 0 | 640 KiB | RAM, including the boot data |
//! | [`ACPI`] | | ACPI tables |
//! | 640 KiB | 1 MiB | the rest: reserved (it is RAM too, but is not reported as such), with the [`GENERATION`] id |
//! | 1 MiB | up to 3 GiB | RAM |
//! | 3 GiB | 4 GiB | devices: those on the PCI bus, the I/O APIC |
//! | 4 GiB | | the remaining RAM |

use crate::devices::pc::acpi::GENERATION;
use crate::devices::pc::pci::WINDOW;
use crate::loader::LoadError;
use arrayvec::ArrayVec;
use core::ops::Range;

const KIB: u64 = 1 << 10;
const GIB: u64 = 1 << 30;

/// Memory is allocated in pages.
pub const PAGE_SIZE: u64 = 4 * KIB;
/// Maximum end of the RAM below the device gap.
pub const LOW_RAM_END_MAX: u64 = 3 * GIB;
/// Start of the remaining RAM.
pub const HIGH_RAM_START: u64 = 4 * GIB;
/// Minimum memory of a guest in bytes.
pub const MEMORY_MIN: u64 = 2 << 20;
/// Maximum memory of a guest in bytes: the capacity of 46 bits of physical address, minus the gap.
pub const MEMORY_MAX: u64 = (1 << 46) - GIB;

/// Address of the segment descriptor table for the entry.
pub const GDT: u64 = 0x500;
/// The page of `boot_params` or `hvm_start_info`.
pub const BOOT_INFO: u64 = 0x7000;
/// The kernel's command line.
pub const COMMAND_LINE: Range<u64> = 0x2_0000..0x3_0000;
/// The ACPI tables: in the area that guests search if they are not told the address.
pub const ACPI: Range<u64> = 0xe_0000..0xf_0000;
/// From here on a kernel may be loaded into RAM.
pub const KERNEL_MIN: u64 = 0x10_0000;

// Registers of PCI functions are in the gap.
const _: () = assert!(WINDOW.start >= LOW_RAM_END_MAX && WINDOW.end <= HIGH_RAM_START);

const BIOS_HOLE: Range<u64> = 0xa_0000..0x10_0000;
const _: () = assert!(BIOS_HOLE.start <= GENERATION && GENERATION + 16 <= ACPI.start);

/// The type of a range of guest physical memory: the numbers of e820 and of Xen's memory map.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u32)]
pub enum RangeKind {
    /// Free for the guest.
    Ram = 1,
    /// Not for the guest.
    Reserved = 2,
    /// ACPI tables; free once the guest has read them.
    AcpiData = 3,
}

/// One line of the map.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MapEntry {
    /// Guest physical addresses.
    pub range: Range<u64>,
    /// Their type.
    pub kind: RangeKind,
}

/// The memory map of a guest with a given amount of memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MemoryLayout {
    size: u64,
}

impl MemoryLayout {
    /// The map for `size` bytes of memory, rounded down to pages.
    ///
    /// # Errors
    /// Less than [`MEMORY_MIN`] or more than [`MEMORY_MAX`].
    pub const fn new(size: u64) -> Result<Self, LoadError> {
        if size < MEMORY_MIN {
            return Err(LoadError::MemoryTooSmall { needed: MEMORY_MIN, memory: size });
        }
        if size > MEMORY_MAX {
            return Err(LoadError::MemoryTooLarge { memory: size });
        }
        Ok(Self { size: size - size % PAGE_SIZE })
    }

    /// Size of the memory in bytes.
    pub const fn size(&self) -> u64 {
        self.size
    }

    /// End of the RAM that starts at 0.
    pub const fn low_end(&self) -> u64 {
        if self.size < LOW_RAM_END_MAX { self.size } else { LOW_RAM_END_MAX }
    }

    /// The ranges with memory behind them, including those that the map reserves: one or two
    /// ranges, ascending. These are the guest's memory slots.
    pub fn slots(&self) -> ArrayVec<Range<u64>, 2> {
        let high = HIGH_RAM_START..HIGH_RAM_START + (self.size - self.low_end());
        [0..self.low_end(), high].into_iter().filter(|slot| !slot.is_empty()).collect()
    }

    /// The map that the guest gets, ascending and without overlap.
    pub fn map(&self) -> ArrayVec<MapEntry, 6> {
        let [low, high] =
            [KERNEL_MIN..self.low_end(), HIGH_RAM_START..HIGH_RAM_START + self.size - self.low_end()];
        let entries = [
            (0..BIOS_HOLE.start, RangeKind::Ram),
            (BIOS_HOLE.start..ACPI.start, RangeKind::Reserved),
            (ACPI, RangeKind::AcpiData),
            (ACPI.end..BIOS_HOLE.end, RangeKind::Reserved),
            (low, RangeKind::Ram),
            (high, RangeKind::Ram),
        ];
        let entries = entries.into_iter().filter(|(range, _)| !range.is_empty());
        entries.map(|(range, kind)| MapEntry { range, kind }).collect()
    }

    /// Whether all of `range` is RAM that the guest may use.
    pub fn is_ram(&self, range: &Range<u64>) -> bool {
        self.map().iter().any(|entry| {
            entry.kind == RangeKind::Ram && entry.range.start <= range.start && range.end <= entry.range.end
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn too_little_and_too_much() {
        assert!(matches!(MemoryLayout::new(MEMORY_MIN - 1), Err(LoadError::MemoryTooSmall { .. })));
        assert!(matches!(MemoryLayout::new(0), Err(LoadError::MemoryTooSmall { .. })));
        assert!(matches!(MemoryLayout::new(MEMORY_MAX + 1), Err(LoadError::MemoryTooLarge { .. })));
        assert!(MemoryLayout::new(u64::MAX).is_err());
        assert!(MemoryLayout::new(MEMORY_MAX).is_ok());
    }

    #[test]
    fn maps_ascend_without_overlap_and_hold_all_memory() {
        for size in
            [MEMORY_MIN, 256 << 20, 3 * GIB - PAGE_SIZE, 3 * GIB, 3 * GIB + PAGE_SIZE, 8 * GIB, MEMORY_MAX]
        {
            let layout = MemoryLayout::new(size).unwrap();
            let map = layout.map();
            assert!(map.windows(2).all(|pair| pair[0].range.end <= pair[1].range.start), "{size:#x}");
            let total: u64 = map.iter().map(|entry| entry.range.end - entry.range.start).sum();
            assert_eq!(total, size, "reserved ranges have memory behind them too");
            let slots: u64 = layout.slots().iter().map(|slot| slot.end - slot.start).sum();
            assert_eq!(slots, size);
            for entry in &map {
                assert!(
                    layout.slots().iter().any(|s| s.start <= entry.range.start && entry.range.end <= s.end)
                );
            }
        }
    }

    #[test]
    fn the_gap_below_4_gib_stays_free() {
        let layout = MemoryLayout::new(8 * GIB).unwrap();
        assert_eq!(layout.slots().as_slice(), [0..3 * GIB, 4 * GIB..9 * GIB]);
        assert!(!layout.is_ram(&(3 * GIB - 1..3 * GIB + 1)));
        assert!(!layout.is_ram(&(0x9_ffff..0xa_0001)), "VGA's hole");
        assert!(layout.is_ram(&(0x10_0000..3 * GIB)));
    }

    #[test]
    fn acpi_area_is_typed_for_it() {
        let map = MemoryLayout::new(MEMORY_MIN).unwrap().map();
        assert!(map.contains(&MapEntry { range: ACPI, kind: RangeKind::AcpiData }));
    }
}
