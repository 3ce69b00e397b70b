//! Interrupt remapping: entries of the table, and how interrupts name them. Source: D51397, 5.1 and
//! 9.10.

use crate::DeviceId;

/// The table has as many entries as 16 bits can name, of 16 bytes each.
pub const ORDER: u32 = 16;

const PRESENT: u64 = 1 << 0;
const VECTOR_SHIFT: u32 = 16;
/// In the second double word: all bits of the source are compared.
const VERIFIED: u64 = 1 << 18;

/// How local APICs are addressed, by all entries of a table.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LocalApics {
    /// By 8 bits.
    Xapic,
    /// By 32 bits: those that are in x2APIC mode.
    X2apic,
}

/// An entry of the interrupt remapping table: two double words. The second one is written first,
/// while the entry is blocked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct InterruptEntry(pub [u64; 2]);

impl InterruptEntry {
    /// The interrupt is aborted, and recorded.
    pub const BLOCKED: Self = Self([0; 2]);

    /// A fixed, edge-triggered interrupt of this vector for the local APIC with this id, which is
    /// below 255. Nobody but `source` can raise it.
    #[must_use]
    pub const fn fixed(apics: LocalApics, apic_id: u8, vector: u8, source: DeviceId) -> Self {
        let shift = match apics {
            LocalApics::Xapic => 40,
            LocalApics::X2apic => 32,
        };
        let to = (apic_id as u64) << shift | (vector as u64) << VECTOR_SHIFT;
        Self([PRESENT | to, VERIFIED | source.0 as u64])
    }
}

/// Address of the message that names an entry. Its data are 0.
#[must_use]
pub const fn message_address(index: u16) -> u64 {
    const REMAPPABLE: u64 = 0xfee0_0010;
    let index = index as u64;
    REMAPPABLE | (index & 0x7fff) << 5 | index >> 15 << 2
}

/// The redirection of an I/O APIC's pin, edge-triggered, that names an entry with this vector.
#[must_use]
pub const fn redirection(index: u16, vector: u8) -> u64 {
    const REMAPPABLE: u64 = 1 << 48;
    let index = index as u64;
    REMAPPABLE | (index & 0x7fff) << 49 | index >> 15 << 11 | vector as u64
}
