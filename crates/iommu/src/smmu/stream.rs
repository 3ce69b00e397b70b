//! Stream table entries (IHI 0070, 5.2) and context descriptors (5.4).
//!
//! | word of an entry | fields |
//! |---|---|
//! | 0 | 0 V, 3:1 Config, 5:4 S1Fmt, 51:6 S1ContextPtr, 63:59 S1CDMax |
//! | 1, of stage 1 | 1:0 S1DSS, 3:2 S1CIR, 5:4 S1COR, 7:6 S1CSH, 27 S1STALLD, 31:30 STRW |
//! | 1, of both | 25 S2FWB, 29:28 EATS, 45:44 SHCFG |
//! | 2 | 15:0 S2VMID, 50:32 as VTCR_EL2, 51 S2AA64, 53 S2AFFD, 57 S2S, 58 S2R |
//! | 3 | 51:4 S2TTB |
//!
//! | word of a descriptor | fields |
//! |---|---|
//! | 0, the shape | 5:0 T0SZ, 7:6 TG0, 9:8 IR0, 11:10 OR0, 13:12 SH0, 30 EPD1, 34:32 IPS, 41 AA64 |
//! | 0, the rest | 31 V, 44 S, 45 R, 46 A, 47 ASET, 63:48 ASID |
//! | 1 | 51:4 TTB0 |
//! | 3 | MAIR |
//!
//! Other fields are 0. S1Fmt and S1CDMax of 0 stand for one descriptor, without substreams, and
//! S1DSS is ignored. S1STALLD stays 0: it is illegal where stalls cannot be configured, and CD.S
//! decides.
//!
//! Constructors return `None` for addresses that do not fit their field: a truncated one would let
//! the device into other memory.

use coherence::tlbi::Granule;

use super::change::{Step, Words, steps};
use super::command::{Asid, Vmid};

/// Cacheability of the SMMU's own reads: of descriptors and of tables.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum Cacheability {
    /// Not cacheable.
    None = 0,
    /// Write-back, allocated by reads.
    WriteBack = 1,
    /// Write-through, allocated by reads.
    WriteThrough = 2,
    /// Write-back, not allocated by reads; for tables not by writes either.
    WriteBackNoAllocate = 3,
}

/// Shareability of the SMMU's own reads.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum Shareability {
    /// Not shareable.
    None = 0,
    /// Outer shareable.
    Outer = 2,
    /// Inner shareable.
    Inner = 3,
}

/// How the SMMU reads memory that processors have written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Reads {
    /// Inner cacheability.
    pub inner: Cacheability,
    /// Outer cacheability.
    pub outer: Cacheability,
    /// Shareability; outer, whatever is given, if neither is cacheable.
    pub shareability: Shareability,
}

impl Reads {
    /// Through the processors' caches: the SMMU is coherent (IDR0.COHACC).
    pub const COHERENT: Self = Self {
        inner: Cacheability::WriteBack,
        outer: Cacheability::WriteBack,
        shareability: Shareability::Inner,
    };
    /// From memory: processors clean what they write.
    pub const FROM_MEMORY: Self =
        Self { inner: Cacheability::None, outer: Cacheability::None, shareability: Shareability::Outer };

    /// Inner, outer, shareability, in two bits each.
    pub(super) const fn field(self) -> u64 {
        self.inner as u64 | (self.outer as u64) << 2 | (self.shareability as u64) << 4
    }
}

/// Size of output addresses: IPS, PS. The SMMU takes at most its own, IDR5.OAS.
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

/// TG0 and S2TG, as in TCR_EL1 and VTCR_EL2.
const fn table_granule(granule: Granule) -> u64 {
    match granule {
        Granule::Size4K => 0b00,
        Granule::Size64K => 0b01,
        Granule::Size16K => 0b10,
    }
}

/// What becomes of an access that a translation fault stops (5.5).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Faults {
    /// An event is recorded: R.
    pub are_recorded: bool,
    /// The access waits for CMD_RESUME: S. Only if IDR0.STALL_MODEL is not 1; always if it is 2.
    /// Not for PCIe devices.
    pub stall: bool,
}

impl Faults {
    /// The device gets an abort, and an event is recorded.
    pub const ABORT: Self = Self { are_recorded: true, stall: false };
}

/// An address in a field of `bits` below 52; `None` if other bits are set.
const fn address(address: u64, low: u32) -> Option<u64> {
    if address >> 52 == 0 && address.trailing_zeros() >= low { Some(address) } else { None }
}

const CONFIG_BYPASS: u64 = 0b100 << 1;
const CONFIG_STAGE_1: u64 = 0b101 << 1;
const CONFIG_STAGE_2: u64 = 0b110 << 1;
const S1_READS_SHIFT: u32 = 2;
const S2FWB: u64 = 1 << 25;
const EATS_FULL: u64 = 0b01 << 28;
const STRW_EL2: u64 = 0b10 << 30;
const SHCFG_INCOMING: u64 = 0b01 << 44;
const VTCR_SHIFT: u32 = 32;
const S2AA64: u64 = 1 << 51;
const S2AFFD: u64 = 1 << 53;
const S2S: u64 = 1 << 57;
const S2R: u64 = 1 << 58;

/// A translation by stage 1.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Stage1 {
    /// Physical address of the context descriptor, a multiple of 64: S1ContextPtr.
    pub context: u64,
    /// How the descriptor is read: S1CIR, S1COR, S1CSH.
    pub reads: Reads,
    /// Tag of the translations besides the ASID, with the StreamWorld EL1: S2VMID. 0 without
    /// IDR0.S2P.
    pub vmid: Vmid,
    /// The StreamWorld is EL2, or EL2-E2H if CR2.E2H is set: STRW (needs IDR0.Hyp). Else it is EL1.
    pub el2: bool,
    /// The device may ask for translations and use them itself: EATS (needs IDR0.ATS). It then
    /// reaches any memory that it names as translated, so it has to be trusted.
    pub ats: bool,
}

/// S2T0SZ to S2PS: as bits 18:0 of VTCR_EL2.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Vtcr(u32);

impl Vtcr {
    /// From VTCR_EL2, for tables that processors use too. DS, HA, HD and what is above them have
    /// fields elsewhere, and are dropped.
    pub const fn from_register(vtcr: u64) -> Self {
        Self((vtcr & 0x7_ffff) as u32)
    }

    /// `t0sz` is 64 less the bits of an intermediate physical address, `sl0` the level of the first
    /// table in the encoding of VTCR_EL2.SL0. Truncated to 6 and 2 bits.
    pub const fn new(t0sz: u8, sl0: u8, reads: Reads, granule: Granule, size: OutputSize) -> Self {
        let low = (t0sz & 63) as u64 | ((sl0 & 3) as u64) << 6 | reads.field() << 8;
        Self::from_register(low | table_granule(granule) << 14 | (size as u64) << 16)
    }
}

/// A translation by stage 2, by tables of the 64-bit format.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Stage2 {
    /// S2VMID. All streams with it have the same stage 2.
    pub vmid: Vmid,
    /// Physical address of the first table, a multiple of its size: S2TTB.
    pub table: u64,
    /// Shape of the tables.
    pub vtcr: Vtcr,
    /// Entries have the memory types of HCR_EL2.FWB = 1: S2FWB (needs IDR3.FWB).
    pub forces_write_back: bool,
    /// Entries whose access flag is clear cause no fault: S2AFFD.
    pub ignores_access_flag: bool,
    /// What becomes of faults: S2R, S2S.
    pub faults: Faults,
    /// As in [`Stage1::ats`]; not together with stalls.
    pub ats: bool,
    /// IDR1.ATTR_TYPES_OVR: SHCFG says that the incoming shareability stays.
    pub attributes_overridable: bool,
}

/// A stream table entry: what becomes of a device's accesses.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StreamEntry(pub Words);

impl StreamEntry {
    /// Not valid: accesses are aborted, and C_BAD_STE is recorded. What fresh tables contain.
    pub const INVALID: Self = Self([0; 8]);
    /// Accesses are aborted; nothing is recorded.
    pub const ABORT: Self = Self([Self::VALID, 0, 0, 0, 0, 0, 0, 0]);
    const VALID: u64 = 1;

    /// Accesses reach memory as they are. `attributes_overridable` as in [`Stage2`].
    pub const fn bypass(attributes_overridable: bool) -> Self {
        Self([Self::VALID | CONFIG_BYPASS, Self::incoming(attributes_overridable), 0, 0, 0, 0, 0, 0])
    }

    /// Accesses are translated by stage 1. `None` if the descriptor's address is no multiple of 64
    /// below 2^52.
    pub const fn stage_1(with: &Stage1) -> Option<Self> {
        let Some(context) = address(with.context, 6) else { return None };
        let world = if with.el2 { STRW_EL2 } else { 0 };
        let second = with.reads.field() << S1_READS_SHIFT | Self::eats(with.ats) | world;
        let Vmid(vmid) = with.vmid;
        Some(Self([Self::VALID | CONFIG_STAGE_1 | context, second, vmid as u64, 0, 0, 0, 0, 0]))
    }

    /// Accesses are translated by stage 2. `None` if the table's address is no multiple of 16 below
    /// 2^52, or with ATS and stalls together, which is illegal.
    pub const fn stage_2(with: &Stage2) -> Option<Self> {
        let Some(table) = address(with.table, 4) else { return None };
        if with.ats && with.faults.stall {
            return None;
        }
        let (Vmid(vmid), Vtcr(vtcr)) = (with.vmid, with.vtcr);
        let forced = if with.forces_write_back { S2FWB } else { 0 };
        let second = forced | Self::eats(with.ats) | Self::incoming(with.attributes_overridable);
        let third = vmid as u64
            | (vtcr as u64) << VTCR_SHIFT
            | S2AA64
            | if with.ignores_access_flag { S2AFFD } else { 0 }
            | if with.faults.stall { S2S } else { 0 }
            | if with.faults.are_recorded { S2R } else { 0 };
        Some(Self([Self::VALID | CONFIG_STAGE_2, second, third, table, 0, 0, 0, 0]))
    }

    const fn eats(ats: bool) -> u64 {
        if ats { EATS_FULL } else { 0 }
    }

    const fn incoming(attributes_overridable: bool) -> u64 {
        if attributes_overridable { SHCFG_INCOMING } else { 0 }
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
const CD_S: u64 = 1 << 44;
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
    /// What becomes of faults: R, S.
    pub faults: Faults,
}

/// A context descriptor: 64 bytes, of which an entry of stage 1 has the address.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ContextDescriptor(pub Words);

impl ContextDescriptor {
    /// Not valid: accesses are aborted, and C_BAD_CD is recorded.
    pub const INVALID: Self = Self([0; 8]);
    const VALID: u64 = 1 << 31;

    /// For these tables; upper addresses (TTB1) fault. Faults abort (A), which every SMMU can. The
    /// ASID is not shared with processors (ASET): their broadcasts by ASID and address need not
    /// reach it.
    ///
    /// `None` if the table's address is no multiple of 16 below 2^52, or T0SZ has more than 6 bits.
    pub const fn new(with: &Tables) -> Option<Self> {
        let Some(table) = address(with.table, 4) else { return None };
        if with.t0sz > 63 {
            return None;
        }
        let Asid(asid) = with.asid;
        let shape = with.t0sz as u64 | table_granule(with.granule) << 6 | with.reads.field() << 8;
        let head = shape
            | EPD1
            | Self::VALID
            | (with.size as u64) << IPS_SHIFT
            | AA64
            | if with.faults.stall { CD_S } else { 0 }
            | if with.faults.are_recorded { CD_R } else { 0 }
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
