//! Entries of page tables as the hardware reads them.
//!
//! Written from the manuals, not from the crates under test, so that a crate's encoding is compared
//! with a processor's interpretation: AMD64 Architecture Programmer's Manual, volume 2 (rev. 3.42),
//! 5.3, 5.4 and 15.25; Intel 64 and IA-32 Architectures Software Developer's Manual, volume 3C,
//! 29.3 "The Extended Page Table Mechanism (EPT)"; Arm Architecture Reference Manual (DDI 0487),
//! D8.3 "Translation table descriptor formats" and D8.5.5 "Hardware management of the dirty state".

use paging::Level;

/// The architecture of the machine's processors.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Arch {
    /// AMD64 with SVM and nested paging: address space tags per CPU, invalidation on the own CPU
    /// only.
    Amd64,
    /// The same with VMX and EPT: two instructions that invalidate, under two tags.
    Intel64,
    /// Arm64 with two stages, 4 KiB granule: VMIDs, invalidation by broadcast.
    Arm64,
}

impl Arch {
    pub(crate) const fn is_x86(self) -> bool {
        matches!(self, Self::Amd64 | Self::Intel64)
    }
}

/// One of the two sets of tables that an access uses.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Stage {
    /// The guest's: virtual to guest physical.
    Guest,
    /// The hypervisor's: guest physical to physical.
    Nested,
    /// The same, as VT-d reads them.
    NestedOfDevices,
    /// The hypervisor's for an SMMU's stage 1: guest physical to physical.
    Device,
}

/// The meaning of an entry.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Entry {
    /// Nothing: the access faults.
    Absent,
    /// A pointer to the next table.
    Table {
        next: u64,
        /// The processor need not set the accessed bit any more.
        accessed: bool,
    },
    /// A page.
    Leaf {
        page: u64,
        write: bool,
        /// The processor need not set the accessed bit any more.
        accessed: bool,
        /// The processor need not record a store any more.
        dirty: bool,
    },
}

const AMD_PRESENT: u64 = 1 << 0;
const AMD_WRITE: u64 = 1 << 1;
const AMD_USER: u64 = 1 << 2;
const AMD_ACCESSED: u64 = 1 << 5;
const AMD_DIRTY: u64 = 1 << 6;
const AMD_LARGE: u64 = 1 << 7;
const AMD_ADDRESS: u64 = 0x000f_ffff_ffff_f000;

/// Bits 58:52 and 11:9.
const AMD_IGNORED: u64 = 0x7f << 52 | 0x7 << 9;

const EPT_READ: u64 = 1 << 0;
const EPT_WRITE: u64 = 1 << 1;
/// Memory type of a leaf. All of it is reserved in a pointer to a table.
const EPT_MEMORY: u64 = 7 << 3;
const EPT_RESERVED: u64 = 0xf << 3;
const EPT_LARGE: u64 = 1 << 7;
const EPT_ACCESSED: u64 = 1 << 8;
const EPT_DIRTY: u64 = 1 << 9;
/// Bits 56:52, and 11.
const EPT_IGNORED: u64 = 0x1f << 52 | 1 << 11;

/// Bits 58:55.
const ARM_IGNORED: u64 = 0xf << 55;
const ARM_VALID: u64 = 1 << 0;
/// A table, or a page at the last level; otherwise a block.
const ARM_TABLE: u64 = 1 << 1;
/// Stage 1: AP\[2\], which forbids stores.
const ARM_READ_ONLY: u64 = 1 << 7;
/// Stage 2: S2AP\[1\], which allows stores; the dirty state where DBM is set.
const ARM_S2_WRITE: u64 = 1 << 7;
const ARM_S2_READ: u64 = 1 << 6;
const ARM_ACCESSED: u64 = 1 << 10;
/// Dirty bit modifier.
const ARM_DBM: u64 = 1 << 51;
const ARM_ADDRESS: u64 = 0x0000_ffff_ffff_f000;

/// Level of the root in both stages; Arm's level 0.
pub(crate) const ROOT: Level = Level::Page512G;

/// The format of a stage's entries on an architecture.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Format {
    pub arch: Arch,
    pub stage: Stage,
}

impl Format {
    /// The meaning of `entry` of a table of `level`.
    pub(crate) fn decode(self, entry: u64, level: Level) -> Entry {
        match (self.arch, self.stage) {
            (Arch::Intel64, Stage::Nested) => Self::decode_ept(entry, level),
            (Arch::Intel64, Stage::NestedOfDevices) => Self::decode_vtd(entry, level),
            (Arch::Amd64 | Arch::Intel64, _) => self.decode_amd(entry, level),
            (Arch::Arm64, _) => self.decode_arm(entry, level),
        }
    }

    /// A misconfigured entry ends the access like one that is absent, and is never held.
    fn decode_ept(entry: u64, level: Level) -> Entry {
        let is_leaf = level == Level::Page4K || entry & EPT_LARGE != 0;
        let is_misconfigured = match entry & EPT_MEMORY {
            0x00 | 0x08 | 0x20 | 0x28 | 0x30 if is_leaf => false,
            _ => is_leaf || entry & EPT_RESERVED != 0,
        };
        // Fetches and loads are not told apart: what may be executed may be read here.
        if entry & EPT_READ == 0 || is_misconfigured {
            return Entry::Absent;
        }
        let accessed = entry & EPT_ACCESSED != 0;
        if !is_leaf {
            return Entry::Table { next: entry & AMD_ADDRESS, accessed };
        }
        Entry::Leaf {
            page: entry & AMD_ADDRESS & !level.offset_mask(),
            write: entry & EPT_WRITE != 0,
            accessed,
            dirty: entry & EPT_DIRTY != 0,
        }
    }

    /// Each right makes an entry present (D51397, 9.8). One to store alone counts as more here: so
    /// it is found whatever the device does.
    fn decode_vtd(entry: u64, level: Level) -> Entry {
        if entry & (EPT_READ | EPT_WRITE) == 0 {
            return Entry::Absent;
        }
        if level != Level::Page4K && entry & EPT_LARGE == 0 {
            return Entry::Table { next: entry & AMD_ADDRESS, accessed: true };
        }
        Entry::Leaf {
            page: entry & AMD_ADDRESS & !level.offset_mask(),
            write: entry & EPT_WRITE != 0,
            accessed: true,
            dirty: true,
        }
    }

    fn decode_amd(self, entry: u64, level: Level) -> Entry {
        // The nested walk counts as a user access: without U/S it is refused (APM volume 2,
        // 15.25.5).
        if entry & AMD_PRESENT == 0 || self.stage == Stage::Nested && entry & AMD_USER == 0 {
            return Entry::Absent;
        }
        let accessed = entry & AMD_ACCESSED != 0;
        if level != Level::Page4K && entry & AMD_LARGE == 0 {
            return Entry::Table { next: entry & AMD_ADDRESS, accessed };
        }
        Entry::Leaf {
            page: entry & AMD_ADDRESS & !level.offset_mask(),
            write: entry & AMD_WRITE != 0,
            accessed,
            dirty: entry & AMD_DIRTY != 0,
        }
    }

    fn decode_arm(self, entry: u64, level: Level) -> Entry {
        let is_table = entry & ARM_TABLE != 0;
        // A block at a level without blocks, and the reserved encoding of the last level, are
        // invalid.
        let is_reserved = !is_table && matches!(level, Level::Page4K | Level::Page512G);
        if entry & ARM_VALID == 0 || is_reserved {
            return Entry::Absent;
        }
        if is_table && level != Level::Page4K {
            // The hardware does not set the accessed flag of tables.
            return Entry::Table { next: entry & ARM_ADDRESS, accessed: true };
        }
        let modifies = entry & ARM_DBM != 0;
        let (readable, clean) = match self.stage {
            Stage::Guest | Stage::Device => (true, entry & ARM_READ_ONLY != 0),
            Stage::Nested | Stage::NestedOfDevices => (entry & ARM_S2_READ != 0, entry & ARM_S2_WRITE == 0),
        };
        if !readable {
            return Entry::Absent;
        }
        Entry::Leaf {
            page: entry & ARM_ADDRESS & !level.offset_mask(),
            write: !clean || modifies,
            accessed: entry & ARM_ACCESSED != 0,
            dirty: !clean || !modifies,
        }
    }

    /// Bits that the processor ignores.
    const fn ignored(self) -> u64 {
        match (self.arch, self.stage) {
            (Arch::Intel64, Stage::Nested | Stage::NestedOfDevices) => EPT_IGNORED,
            (Arch::Amd64 | Arch::Intel64, _) => AMD_IGNORED,
            (Arch::Arm64, _) => ARM_IGNORED,
        }
    }

    /// `entry` after the processor has used it, for a store if `store`.
    pub(crate) const fn used(self, entry: u64, store: bool) -> u64 {
        match (self.arch, self.stage) {
            (_, Stage::Device | Stage::NestedOfDevices) => entry,
            (Arch::Intel64, Stage::Nested) => entry | EPT_ACCESSED | if store { EPT_DIRTY } else { 0 },
            (Arch::Amd64 | Arch::Intel64, _) => entry | AMD_ACCESSED | if store { AMD_DIRTY } else { 0 },
            (Arch::Arm64, Stage::Guest) => {
                (entry | ARM_ACCESSED) & if store && entry & ARM_DBM != 0 { !ARM_READ_ONLY } else { !0 }
            }
            (Arch::Arm64, Stage::Nested) => {
                entry | ARM_ACCESSED | if store && entry & ARM_DBM != 0 { ARM_S2_WRITE } else { 0 }
            }
        }
    }

    /// Whether a processor that uses `held` although memory has `now` uses a replaced entry. A bit
    /// that the processor itself has set since is no replacement, and accessed bits may be cleared
    /// at any time (P15); a dirty bit may not. A fault adds the right to store to a nested leaf
    /// without a flush, and a processor that holds less stores by no held entry.
    pub(crate) fn is_replaced(self, held: u64, now: u64, level: Level) -> bool {
        match (self.decode(held, level), self.decode(now, level)) {
            (Entry::Leaf { dirty: true, .. }, Entry::Leaf { dirty: false, .. }) => true,
            (Entry::Leaf { page, write: false, .. }, Entry::Leaf { page: other, write: true, .. })
                if self.stage == Stage::Nested && page == other =>
            {
                false
            }
            _ => self.used(held, true) & !self.ignored() != self.used(now, true) & !self.ignored(),
        }
    }

    /// A leaf as a guest writes it: `level`-sized, at `page`, used before if `used`.
    pub(crate) const fn guest_leaf(arch: Arch, page: u64, level: Level, write: bool, used: bool) -> u64 {
        match arch {
            Arch::Amd64 | Arch::Intel64 => {
                page | AMD_PRESENT
                    | AMD_USER
                    | if write { AMD_WRITE } else { 0 }
                    | if used { AMD_ACCESSED } else { 0 }
                    | if matches!(level, Level::Page4K) { 0 } else { AMD_LARGE }
            }
            Arch::Arm64 => {
                page | ARM_VALID
                    | ARM_ACCESSED
                    | if write { 0 } else { ARM_READ_ONLY }
                    | if matches!(level, Level::Page4K) { ARM_TABLE } else { 0 }
            }
        }
    }

    /// An entry of a guest that points to a table.
    pub(crate) const fn guest_table(arch: Arch, next: u64) -> u64 {
        match arch {
            Arch::Amd64 | Arch::Intel64 => next | AMD_PRESENT | AMD_WRITE | AMD_USER | AMD_ACCESSED,
            Arch::Arm64 => next | ARM_VALID | ARM_TABLE,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const NPT: Format = Format { arch: Arch::Amd64, stage: Stage::Nested };
    const EPT: Format = Format { arch: Arch::Intel64, stage: Stage::Nested };
    const S2: Format = Format { arch: Arch::Arm64, stage: Stage::Nested };

    #[test]
    fn leaves_and_tables_are_what_the_manuals_say() {
        let leaf = |page, write, accessed, dirty| Entry::Leaf { page, write, accessed, dirty };
        assert_eq!(NPT.decode(0x5067, Level::Page4K), leaf(0x5000, true, true, true));
        assert_eq!(NPT.decode(0x5025, Level::Page4K), leaf(0x5000, false, true, false));
        assert_eq!(NPT.decode(0x5023, Level::Page4K), Entry::Absent, "not a user's");
        assert_eq!(NPT.decode(0x60_00a7, Level::Page2M), leaf(0x60_0000, true, true, false));
        assert_eq!(NPT.decode(0x7027, Level::Page2M), Entry::Table { next: 0x7000, accessed: true });
        assert_eq!(EPT.decode(0x5333, Level::Page4K), leaf(0x5000, true, true, true));
        assert_eq!(EPT.decode(0x60_01b5, Level::Page2M), leaf(0x60_0000, false, true, false));
        assert_eq!(EPT.decode(0x7107, Level::Page2M), Entry::Table { next: 0x7000, accessed: true });
        for (misconfigured, level) in
            [(0x5332, Level::Page4K), (0x5313, Level::Page4K), (0x7137, Level::Page2M)]
        {
            assert_eq!(EPT.decode(misconfigured, level), Entry::Absent, "{misconfigured:x}");
        }
        assert_eq!(S2.decode(0x54c3, Level::Page4K), leaf(0x5000, true, true, true));
        assert_eq!(S2.decode(0x5443, Level::Page4K), leaf(0x5000, false, true, true));
        assert_eq!(S2.decode(ARM_DBM | 0x5443, Level::Page4K), leaf(0x5000, true, true, false));
        assert_eq!(S2.decode(0x54c1, Level::Page4K), Entry::Absent, "reserved");
        assert_eq!(S2.decode(0x60_04c1, Level::Page2M), leaf(0x60_0000, true, true, true));
        assert_eq!(S2.decode(0x7003, Level::Page2M), Entry::Table { next: 0x7000, accessed: true });
    }

    #[test]
    fn what_the_processor_sets_is_no_replacement_and_a_cleared_dirty_bit_is() {
        for (format, clean) in [(NPT, 0x5027), (EPT, 0x5133), (S2, ARM_DBM | 0x5443)] {
            let dirty = format.used(clean, true);
            assert!(!format.is_replaced(clean, dirty, Level::Page4K), "set by the processor");
            assert!(format.is_replaced(dirty, clean, Level::Page4K), "cleared by software");
            assert!(format.is_replaced(clean, 0, Level::Page4K));
            assert!(!format.is_replaced(clean, clean, Level::Page4K));
        }
        assert!(!NPT.is_replaced(0x5027, 0x5007, Level::Page4K), "P15: accessed bits may go");
        assert!(NPT.is_replaced(0x5067, 0x5065, Level::Page4K), "the right to store may not");
        assert!(!NPT.is_replaced(0x5065, 0x5065, Level::Page4K));
        assert!(!NPT.is_replaced(0x5065, 0x5067, Level::Page4K), "a fault has added it");
        assert!(NPT.is_replaced(0x5065, 0x6067, Level::Page4K), "another page");
    }

    #[test]
    fn a_guest_reads_what_it_writes() {
        for arch in [Arch::Amd64, Arch::Arm64] {
            let format = Format { arch, stage: Stage::Guest };
            for level in [Level::Page4K, Level::Page2M] {
                for write in [false, true] {
                    let entry = Format::guest_leaf(arch, 0x60_0000, level, write, true);
                    let Entry::Leaf { page, write: may, accessed, .. } = format.decode(entry, level) else {
                        panic!("{arch:?} {level:?}")
                    };
                    assert_eq!((page, may, accessed), (0x60_0000, write, true));
                }
            }
            let table = Format::guest_table(arch, 0x7000);
            assert_eq!(format.decode(table, Level::Page2M), Entry::Table { next: 0x7000, accessed: true });
        }
    }
}
