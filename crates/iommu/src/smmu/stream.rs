//! Stream table entries (IHI 0070, 5.2) and context descriptors (5.4).
//!
//! | word of an entry | fields |
//! |---|---|
//! | 0 | 0 V, 3:1 Config, 5:4 S1Fmt, 51:6 S1ContextPtr, 63:59 S1CDMax |
//! | 1 | 1:0 S1DSS, 3:2 S1CIR, 5:4 S1COR, 7:6 S1CSH, 27 S1STALLD, 31:30 STRW, 45:44 SHCFG |
//!
//! | word of a descriptor | fields |
//! |---|---|
//! | 0, the shape | 5:0 T0SZ, 7:6 TG0, 9:8 IR0, 11:10 OR0, 13:12 SH0, 30 EPD1, 34:32 IPS, 41 AA64 |
//! | 0, the rest | 31 V, 45 R, 46 A, 47 ASET, 63:48 ASID |
//! | 1 | 51:4 TTB0 |
//! | 3 | MAIR |
//!
//! Other fields are 0. S1Fmt and S1CDMax of 0 stand for one descriptor, without substreams, and
//! S1DSS is ignored. S1STALLD stays 0: it is illegal where stalls cannot be configured, and CD.S
//! decides, which stays 0, too.
//!
//! Constructors return `None` for addresses that do not fit their field: a truncated one would let
//! the device into other memory.

use coherence::tlbi::Granule;

use super::change::{Step, Words, steps};
use super::command::Asid;

/// How the SMMU reads memory that processors have written: inner and outer cacheability, and
/// shareability, in two bits each.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum Reads {
    /// Through the processors' caches, if the SMMU is coherent (IDR0.COHACC): write-back, allocated
    /// by reads, inner shareable.
    Coherent = 0b11_01_01,
    /// From memory: processors clean what they write. Not cacheable, outer shareable.
    FromMemory = 0b10_00_00,
}

/// Size of output addresses: IPS. The SMMU takes at most its own, IDR5.OAS.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum OutputSize {
    /// 4 GiB.
    Bits32 = 0,
    /// 64 GiB.
    Bits36 = 1,
    /// 1 TiB.
    Bits40 = 2,
    /// 4 TiB.
    Bits42 = 3,
    /// 16 TiB.
    Bits44 = 4,
    /// 256 TiB.
    Bits48 = 5,
    /// 4 PiB, with the granule of 64 KiB.
    Bits52 = 6,
}

impl OutputSize {
    /// From IDR5.OAS; `None` for a reserved value.
    pub(super) const fn from_field(oas: u32) -> Option<Self> {
        Some(match oas {
            0 => Self::Bits32,
            1 => Self::Bits36,
            2 => Self::Bits40,
            3 => Self::Bits42,
            4 => Self::Bits44,
            5 => Self::Bits48,
            6 => Self::Bits52,
            _ => return None,
        })
    }

    /// Bits of an address.
    pub const fn bits(self) -> u32 {
        match self {
            Self::Bits32 => 32,
            Self::Bits36 => 36,
            Self::Bits40 => 40,
            Self::Bits42 => 42,
            Self::Bits44 => 44,
            Self::Bits48 => 48,
            Self::Bits52 => 52,
        }
    }
}

/// TG0, as in TCR_EL1.
const fn table_granule(granule: Granule) -> u64 {
    match granule {
        Granule::Size4K => 0b00,
        Granule::Size64K => 0b01,
        Granule::Size16K => 0b10,
    }
}

/// An address in a field of `bits` below 52; `None` if other bits are set.
const fn address(address: u64, low: u32) -> Option<u64> {
    if address >> 52 == 0 && address.trailing_zeros() >= low { Some(address) } else { None }
}

const CONFIG_BYPASS: u64 = 0b100 << 1;
const CONFIG_STAGE_1: u64 = 0b101 << 1;
const S1_READS_SHIFT: u32 = 2;
const SHCFG_INCOMING: u64 = 0b01 << 44;

/// A stream table entry: what becomes of a device's accesses.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StreamEntry(pub Words);

impl StreamEntry {
    /// Not valid: accesses are aborted, and C_BAD_STE is recorded. What fresh tables contain.
    pub const INVALID: Self = Self([0; 8]);
    /// Accesses are aborted; nothing is recorded.
    pub const ABORT: Self = Self([Self::VALID, 0, 0, 0, 0, 0, 0, 0]);
    const VALID: u64 = 1;

    /// Accesses reach memory as they are. With IDR1.ATTR_TYPES_OVR, SHCFG says that the incoming
    /// shareability stays.
    pub const fn bypass(attributes_overridable: bool) -> Self {
        let second = if attributes_overridable { SHCFG_INCOMING } else { 0 };
        Self([Self::VALID | CONFIG_BYPASS, second, 0, 0, 0, 0, 0, 0])
    }

    /// Accesses are translated by stage 1 with the StreamWorld EL1, VMID 0 and without ATS, by the
    /// context descriptor at this physical address (S1ContextPtr), which is read like this (S1CIR,
    /// S1COR, S1CSH). `None` if the address is no multiple of 64 below 2^52.
    pub const fn stage_1(context: u64, reads: Reads) -> Option<Self> {
        let Some(context) = address(context, 6) else { return None };
        let second = (reads as u64) << S1_READS_SHIFT;
        Some(Self([Self::VALID | CONFIG_STAGE_1 | context, second, 0, 0, 0, 0, 0, 0]))
    }

    /// The steps that put `new` in the place of this entry, each followed by
    /// [`cfgi_ste`](super::command::cfgi_ste) and a sync. See [`change`](super::change).
    pub fn change_to(self, new: Self) -> impl Iterator<Item = Step> + Clone {
        steps(self.0, new.0, Self::VALID)
    }
}

/// How many of a StreamID's low bits the second level of a stream table has: SPLIT.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum Split {
    /// 4 KiB of entries.
    Bits6 = 6,
    /// 16 KiB.
    Bits8 = 8,
    /// 64 KiB.
    Bits10 = 10,
}

/// A descriptor of a stream table's first level, in one word (5.1). One of 0 leads to nothing:
/// accesses are aborted, with C_BAD_STREAMID.
///
/// `None` if the address of the second level is no multiple of its size below 2^52, or if that has
/// more than `2^split` entries.
pub const fn first_level(table: u64, order: u32, split: Split) -> Option<u64> {
    if order > split as u32 {
        return None;
    }
    match address(table, order + 6) {
        // Span.
        Some(table) => Some(table | (order as u64 + 1)),
        None => None,
    }
}

const IPS_SHIFT: u32 = 32;
const ASID_SHIFT: u32 = 48;
const EPD1: u64 = 1 << 30;
const AA64: u64 = 1 << 41;
const CD_R: u64 = 1 << 45;
const CD_A: u64 = 1 << 46;
const ASET: u64 = 1 << 47;

/// Stage-1 tables: TTB0 alone, in the 64-bit format.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Tables {
    /// Tag of the translations.
    pub asid: Asid,
    /// Physical address of the first table, a multiple of its size: TTB0.
    pub table: u64,
    /// 64 less the bits of a virtual address: T0SZ, 0–63.
    pub t0sz: u8,
    /// TG0.
    pub granule: Granule,
    /// How tables are read: IR0, OR0, SH0.
    pub reads: Reads,
    /// Size of output addresses: IPS.
    pub size: OutputSize,
    /// Memory types by the entries' AttrIndx, as MAIR_EL1.
    pub mair: u64,
}

/// A context descriptor: 64 bytes, of which an entry of stage 1 has the address.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ContextDescriptor(pub Words);

impl ContextDescriptor {
    /// Not valid: accesses are aborted, and C_BAD_CD is recorded.
    pub const INVALID: Self = Self([0; 8]);
    const VALID: u64 = 1 << 31;

    /// For these tables; upper addresses (TTB1) fault. Faults abort (A), which every SMMU can,
    /// and are recorded (R). The ASID is not shared with processors (ASET): their broadcasts by
    /// ASID and address need not reach it.
    ///
    /// `None` if the table's address is no multiple of 16 below 2^52, or T0SZ has more than 6 bits.
    pub const fn new(with: &Tables) -> Option<Self> {
        let Some(table) = address(with.table, 4) else { return None };
        if with.t0sz > 63 {
            return None;
        }
        let Asid(asid) = with.asid;
        let shape = with.t0sz as u64 | table_granule(with.granule) << 6 | (with.reads as u64) << 8;
        let head = shape
            | EPD1
            | Self::VALID
            | (with.size as u64) << IPS_SHIFT
            | AA64
            | CD_R
            | CD_A
            | ASET
            | (asid as u64) << ASID_SHIFT;
        Some(Self([head, table, 0, with.mair, 0, 0, 0, 0]))
    }

    /// The steps that put `new` in the place of this descriptor, each followed by
    /// [`cfgi_cd`](super::command::cfgi_cd) and a sync. See [`change`](super::change). A descriptor
    /// that no valid entry names is written at once.
    pub fn change_to(self, new: Self) -> impl Iterator<Item = Step> + Clone {
        steps(self.0, new.0, Self::VALID)
    }
}
