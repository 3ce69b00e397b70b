//! Entries of the device table and of page tables. Source: 48882, 2.2.2 and 2.2.3.

use crate::DomainId;

/// The bits of a physical address of a table.
const ADDRESS: u64 = 0x000f_ffff_ffff_f000;

/// Device table entry, first double word: the entry, and its translation, are valid.
const VALID: u64 = 1 << 0;
const TRANSLATES: u64 = 1 << 1;
/// Levels of the page table.
const MODE_SHIFT: u32 = 9;
/// Permission to read and to write, in the entry and in entries of page tables.
const READ: u64 = 1 << 61;
const WRITE: u64 = 1 << 62;
/// Second double word: the device may keep translations (ATS).
const ATS: u64 = 1 << 32;
/// Third double word: interrupts are remapped, or aborted unless [`REMAP`] is set, too.
const REMAPS: u64 = 1 << 0;
/// Log2 of the number of entries of the interrupt table.
const LENGTH_SHIFT: u32 = 1;
const INTERRUPT_TABLE: u64 = 0x000f_ffff_ffff_ffc0;
/// Fixed and arbitrated interrupts are remapped; without it they are aborted.
const REMAP: u64 = 2 << 60;

/// An interrupt remapping table.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct InterruptTable {
    /// Host physical address, a multiple of 128.
    pub address: u64,
    /// Log2 of the number of entries: 11 at most, and 9 in some IOMMUs.
    pub order: u8,
}

/// An entry of an interrupt remapping table: one double word of 32 bits (48882, 2.2.5.2). An
/// interrupt with the data `n` uses the entry of that index.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct InterruptEntry(pub u32);

impl InterruptEntry {
    /// The interrupt is aborted, and logged.
    pub const BLOCKED: Self = Self(0);

    /// A fixed, edge-triggered interrupt of this vector for the local APIC with this id, which is
    /// below 255.
    #[must_use]
    pub const fn fixed(apic_id: u8, vector: u8) -> Self {
        Self(1 | (apic_id as u32) << 8 | (vector as u32) << 16)
    }
}

/// An entry of the device table: four double words.
///
/// The IOMMU reads an entry in one access, and keeps it. A CPU writes it in several, so one that is
/// in use is changed like this:
///
/// 1. [`BLOCKED`](Self::BLOCKED), from the first double word to the last;
///    [`invalidate_device`](super::command::invalidate_device), and its completion. Without that
///    the IOMMU may go on with a mixture.
/// 2. The new entry, from the last double word to the first; the same again. Without that the
///    device may stay blocked.
/// 3. What the IOMMU keeps by the former one: [`pages`](crate::Invalidations::pages) of its domain,
///    and, where they were in use, [`device_pages`](crate::Invalidations::device_pages) and
///    [`invalidate_interrupts`](super::command::invalidate_interrupts).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DeviceEntry(pub [u64; 4]);

impl DeviceEntry {
    /// All DMA and all interrupts of the device are aborted, and logged.
    pub const BLOCKED: Self = Self([VALID | TRANSLATES, 0, REMAPS, 0]);

    /// All DMA is aborted, and interrupts pass as they are: for what the hypervisor itself uses, an
    /// I/O APIC for example.
    pub const INTERRUPTS_PASS: Self = Self([VALID | TRANSLATES, 0, 0, 0]);

    /// DMA is translated by the page table at `root` (host physical, a multiple of 4096), which has
    /// four levels as the processor's nested tables, and interrupts are aborted. `None` if the
    /// address does not fit, or for domain 0.
    #[must_use]
    pub const fn translated(root: u64, domain: DomainId) -> Option<Self> {
        if root & !ADDRESS != 0 || domain.0 == 0 {
            return None;
        }
        let mode = 4 << MODE_SHIFT;
        let first = VALID | TRANSLATES | READ | WRITE | mode | root;
        Some(Self([first, domain.0 as u64, REMAPS, 0]))
    }

    /// The same, for a device that may keep translations itself: it has to be told, too.
    #[must_use]
    pub const fn with_ats(self) -> Self {
        let Self([first, second, third, fourth]) = self;
        Self([first, second | ATS, third, fourth])
    }

    /// The same, with interrupts that a table remaps. `None` if the table does not fit.
    #[must_use]
    pub const fn with_interrupts(self, table: InterruptTable) -> Option<Self> {
        if table.address & !INTERRUPT_TABLE != 0 || table.address & 127 != 0 || table.order > 11 {
            return None;
        }
        let Self([first, second, _, fourth]) = self;
        let third = REMAPS | (table.order as u64) << LENGTH_SHIFT | table.address | REMAP;
        Some(Self([first, second, third, fourth]))
    }

    /// Whether the IOMMU translates by it.
    #[must_use]
    pub const fn is_translated(self) -> bool {
        self.0[0] & (VALID | TRANSLATES) == VALID | TRANSLATES && self.0[0] & (READ | WRITE) != 0
    }
}

/// Level of a table that an entry points to: 1 is the last.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum NextLevel {
    /// Its entries are pages of 4 KiB.
    One = 1,
    /// Its entries are pages of 2 MiB, or point to tables of level 1.
    Two = 2,
    /// Of 1 GiB, or level 2.
    Three = 3,
    /// Level 3.
    Four = 4,
}

/// What an entry of a page table is to the IOMMU.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PageEntry {
    /// The next table.
    Table(NextLevel),
    /// A page, of the size that its level has.
    Leaf {
        /// Devices may write to it.
        is_writable: bool,
    },
}

/// The bits that the IOMMU reads in a present entry and the processor ignores, to be added to an
/// entry of a nested page table (AMD64 APM volume 2, 5.3: bits 11:9 and 58:52 are available, and
/// 62:59 unless protection keys are in use, which nested tables do not have).
///
/// The present bit and the address are at the same places for both.
#[must_use]
pub const fn page_bits(entry: PageEntry) -> u64 {
    match entry {
        // Permissions are those of the leaf.
        PageEntry::Table(level) => (level as u64) << MODE_SHIFT | READ | WRITE,
        PageEntry::Leaf { is_writable: true } => READ | WRITE,
        PageEntry::Leaf { is_writable: false } => READ,
    }
}
