//! The paging modes, and the formats of their entries.

use super::GuestPaging;
use crate::format::amd64::bits::{ADDRESS, LARGE, NO_EXECUTE};

/// How a guest pages.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Mode {
    /// CR0.PG is clear.
    Off,
    /// Two levels of 1024 entries of 4 bytes.
    Legacy,
    /// Three levels of entries of 8 bytes, the root having four.
    Pae,
    /// Four levels of 512 entries of 8 bytes.
    Long,
}

impl Mode {
    pub(super) const fn level_count(self) -> u32 {
        match self {
            Self::Off => 0,
            Self::Legacy => 2,
            Self::Pae => 3,
            Self::Long => 4,
        }
    }

    /// Bits of an address that a table of the lower levels translates.
    pub(super) const fn index_bits(self) -> u32 {
        if matches!(self, Self::Legacy) { 10 } else { 9 }
    }

    pub(super) const fn entry_size(self) -> u64 {
        if matches!(self, Self::Legacy) { 4 } else { 8 }
    }

    /// The position of the root's address in CR3; APM volume 2, 5.2.1 and 5.3.2.
    pub(super) const fn root_mask(self) -> u64 {
        match self {
            Self::Off => 0,
            Self::Legacy => 0xffff_f000,
            Self::Pae => 0xffff_ffe0,
            Self::Long => ADDRESS,
        }
    }
}

impl GuestPaging {
    pub(super) fn is_leaf(&self, entry: u64, level: u32) -> bool {
        match (self.mode, level) {
            (_, 0) => true,
            (Mode::Legacy, 1) => self.page_size_extension && entry & LARGE != 0,
            (Mode::Pae | Mode::Long, 1) | (Mode::Long, 2) => entry & LARGE != 0,
            _ => false,
        }
    }

    /// Bits that must be zero in an entry of `level`; 0 is the last one.
    pub(super) fn reserved(&self, level: u32, is_leaf: bool) -> u64 {
        const PDPTE_PAE: u64 = NO_EXECUTE | 0x1e6;
        const BITS_62_52: u64 = 0x7ff0_0000_0000_0000;
        let too_high = ADDRESS & !self.physical_mask;
        let no_execute = if self.no_execute { 0 } else { NO_EXECUTE };
        let offset = match (level, is_leaf) {
            (1, true) => 0x001f_e000, // bits 20:13
            (2, true) => 0x3fff_e000, // bits 29:13
            _ => 0,
        };
        match (self.mode, level) {
            (Mode::Off, _) => 0,
            // Bits 20:13 of a 4 MiB page are bits 39:32 of its address, bit 21 is reserved.
            (Mode::Legacy, 1) if is_leaf => 1 << 21 | (too_high >> 32 & 0xff) << 13,
            (Mode::Legacy, _) => 0,
            (Mode::Pae, 2) => too_high | BITS_62_52 | PDPTE_PAE,
            (Mode::Pae, _) => too_high | BITS_62_52 | no_execute | offset,
            (Mode::Long, 3) => too_high | no_execute | LARGE,
            (Mode::Long, 2) if !self.gigabyte_pages => too_high | no_execute | LARGE,
            (Mode::Long, _) => too_high | no_execute | offset,
        }
    }

    pub(super) fn leaf_address(&self, entry: u64, level: u32) -> u64 {
        if self.mode == Mode::Legacy && level == 1 {
            return entry & 0xffc0_0000 | (entry >> 13 & 0xff) << 32;
        }
        entry & ADDRESS
    }
}
