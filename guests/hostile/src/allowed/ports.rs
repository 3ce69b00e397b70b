//! I/O ports that do not read as all ones. Wider reads find no device unless noted.

/// The ports of a device.
pub type Row = super::Row<u16, ()>;

/// The row of an access of this many bytes: the row of any of its bytes.
pub fn find(port: u16, bytes: u16) -> Option<&'static Row> {
    ROWS.iter().find(|row| row.has(port, port.saturating_add(bytes - 1)))
}

const fn row(first: u16, last: u16, name: &'static str, why: &'static str) -> Row {
    Row::new(first, last, name, (), why)
}

/// The table, in ascending order.
pub const ROWS: &[Row] = &[
    row(0x40, 0x43, "the interval timer", "emulated"),
    row(0x61, 0x61, "its third counter's gate and output", "emulated"),
    row(0x64, 0x64, "the keyboard controller's reset", "emulated"),
    row(0x70, 0x71, "the clock and its memory", "emulated"),
    row(0x2f8, 0x2ff, "COM2", "emulated"),
    row(0x3f8, 0x3ff, "COM1", "emulated"),
    row(0x600, 0x609, "ACPI's events and control", "emulated"),
    row(0xcf8, 0xcff, "PCI's configuration, the reset register", "emulated"),
];
