//! Registers (48882, 3.4), by their offset from the address that ACPI's IVRS gives. All have 64
//! bits.

/// Address and size of the device table: [`device_table`].
pub const DEVICE_TABLE_BASE: u64 = 0x0000;
/// Address and length of the ring: [`ring`].
pub const COMMAND_BASE: u64 = 0x0008;
/// Address and length of the event log: [`ring`].
pub const EVENT_BASE: u64 = 0x0010;
/// What is enabled.
pub const CONTROL: u64 = 0x0018;
/// What there is: [`has_invalidate_all`].
pub const EXTENDED_FEATURE: u64 = 0x0030;
/// Offset, in bytes, of the command that is next.
pub const COMMAND_HEAD: u64 = 0x2000;
/// Offset behind the last command.
pub const COMMAND_TAIL: u64 = 0x2008;
/// Offset of the event that is read next.
pub const EVENT_HEAD: u64 = 0x2010;
/// Offset behind the last event.
pub const EVENT_TAIL: u64 = 0x2018;
/// What runs, and what has happened; bits of the latter are cleared by writing 1.
pub const STATUS: u64 = 0x2020;

/// CONTROL: DMA is translated, by the device table.
pub const IOMMU_EN: u64 = 1 << 0;
/// CONTROL: events are logged.
pub const EVENT_LOG_EN: u64 = 1 << 2;
/// CONTROL: there are interrupts for events.
pub const EVENT_INT_EN: u64 = 1 << 3;
/// CONTROL: the IOMMU reads its tables through the processors' caches.
pub const COHERENT: u64 = 1 << 10;
/// CONTROL: the ring is in use.
pub const CMD_BUF_EN: u64 = 1 << 12;

/// STATUS: events were lost, the log was full.
pub const EVENT_OVERFLOW: u64 = 1 << 0;
/// STATUS: there is an interrupt for events.
pub const EVENT_LOG_INT: u64 = 1 << 1;
const ADDRESS: u64 = 0x000f_ffff_ffff_f000;
const LENGTH_SHIFT: u32 = 56;

/// The value for [`DEVICE_TABLE_BASE`]: a table of so many pages of 128 entries, 1 to 512, at a
/// physical address. `None` if they do not fit.
#[must_use]
pub const fn device_table(address: u64, pages: u64) -> Option<u64> {
    if address & !ADDRESS != 0 || pages == 0 || pages > 512 {
        return None;
    }
    Some(address | (pages - 1))
}

/// The value for [`COMMAND_BASE`] or [`EVENT_BASE`]: `2^order` entries of 16 bytes, with an order
/// of 8 to 15, at a physical address that is a multiple of 4096. `None` if they do not fit.
#[must_use]
pub const fn ring(address: u64, order: u32) -> Option<u64> {
    if address & !ADDRESS != 0 || order < 8 || order > 15 {
        return None;
    }
    Some(address | (order as u64) << LENGTH_SHIFT)
}

/// Whether everything can be invalidated by one command, IASup, by the value of
/// [`EXTENDED_FEATURE`].
#[must_use]
pub const fn has_invalidate_all(features: u64) -> bool {
    features >> 6 & 1 != 0
}
