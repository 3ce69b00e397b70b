//! Registers, in bytes from their base. Source: 48882, 3.4.

/// Where the device table is, and its size.
pub const DEVICE_TABLE: u32 = 0x00;
/// Where the command ring is, and its size.
pub const COMMANDS: u32 = 0x08;
/// Where the event log is, and its size.
pub const EVENTS: u32 = 0x10;
/// Control: the sum of `CONTROL_*`.
pub const CONTROL: u32 = 0x18;
/// What the IOMMU has.
pub const FEATURES: u32 = 0x30;
/// Offset of the entry that the IOMMU reads next.
pub const COMMAND_HEAD: u32 = 0x2000;
/// Offset behind the last command.
pub const COMMAND_TAIL: u32 = 0x2008;
/// Offset of the event that software reads next.
pub const EVENT_HEAD: u32 = 0x2010;
/// Offset behind the last event.
pub const EVENT_TAIL: u32 = 0x2018;
/// What has happened: the sum of `STATUS_*`. Its bits are cleared by writing them.
pub const STATUS: u32 = 0x2020;

/// Length of the registers in bytes.
pub const LEN: u64 = 0x4000;

/// The IOMMU is on.
pub const CONTROL_ENABLED: u64 = 1 << 0;
/// It writes events.
pub const CONTROL_EVENTS: u64 = 1 << 2;
/// It interrupts for events.
pub const CONTROL_EVENT_INTERRUPTS: u64 = 1 << 3;
/// Its walks of tables are coherent with the processors' caches.
pub const CONTROL_COHERENT: u64 = 1 << 10;
/// It reads commands.
pub const CONTROL_COMMANDS: u64 = 1 << 12;

/// The event log was full, and events were lost. Events go on after it was switched off and on.
pub const STATUS_EVENTS_LOST: u64 = 1 << 0;
/// An event was written.
pub const STATUS_EVENT: u64 = 1 << 1;

/// Bytes of an entry of the command ring and of the event log.
pub const ENTRY: u64 = 16;

/// Value of [`DEVICE_TABLE`]: a table at `address`, a multiple of 4096, of so many pages, 1 to 512.
#[must_use]
pub const fn device_table(address: u64, pages: u16) -> u64 {
    address | (pages.saturating_sub(1) & 0x1ff) as u64
}

/// Value of [`COMMANDS`] and of [`EVENTS`]: a ring at `address`, a multiple of 4096, of 2^`order`
/// entries, 8 to 15.
#[must_use]
pub const fn ring(address: u64, order: u8) -> u64 {
    address | (order as u64 & 15) << 56
}

/// Largest number of levels of a page table for devices: HATS of the features (3.4.2), 4 to 6.
#[must_use]
pub const fn levels_max(features: u64) -> u8 {
    4 + (features >> 10 & 3) as u8
}
