//! What an SMMU has: IDR0, IDR1, IDR3 and IDR5 (IHI 0070, 6.3.1 to 6.3.6).

use coherence::tlbi::Granule;

use super::registers::{IDR0, IDR1, IDR3, IDR5, Register};
use super::stream::OutputSize;

/// What there is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Features {
    /// Stage 1: S1P.
    pub stage_1: bool,
    /// Tables of the 64-bit format, the only one that is used here: TTF.
    pub has_64_bit_tables: bool,
    /// Its accesses to tables and queues, and writes of syncs, see the processors' caches: COHACC.
    pub is_coherent: bool,
    /// Invalidations that processors broadcast reach it, unless CR2.PTM is set: BTM.
    pub hears_broadcasts: bool,
    /// The EL2 regime, and the commands for it: Hyp.
    pub has_el2: bool,
    /// Devices may keep translations: ATS.
    pub has_ats: bool,
    /// Bits of an ASID, 8 or 16: ASID16.
    pub asid_bits: u32,
    /// The stream table may have two levels: ST_LEVEL.
    pub has_two_levels: bool,
    /// Bits of a StreamID, 0 to 32: SIDSIZE.
    pub stream_bits: u32,
    /// Binary logarithm of the most commands in the queue: CMDQS.
    pub command_order_max: u32,
    /// Binary logarithm of the most events in the queue: EVENTQS.
    pub event_order_max: u32,
    /// Entries may change the memory types of accesses: ATTR_TYPES_OVR.
    pub attributes_overridable: bool,
    /// The stream table's or the queues' places are fixed: TABLES_PRESET, QUEUES_PRESET.
    pub has_preset_places: bool,
    /// Invalidations by range and with level hints: RIL.
    pub has_ranges: bool,
    /// Size of output addresses: OAS. `None` if reserved.
    pub output: Option<OutputSize>,
    /// Granules of tables: 4, 16, 64 KiB.
    pub granules: [bool; 3],
}

impl Features {
    /// Reads the registers, which never change.
    pub fn read(mut read: impl FnMut(Register) -> u32) -> Self {
        let [idr0, idr1, idr3, idr5] = [IDR0, IDR1, IDR3, IDR5].map(&mut read);
        Self {
            stage_1: bit(idr0, 1),
            has_64_bit_tables: bit(idr0, 3),
            is_coherent: bit(idr0, 4),
            hears_broadcasts: bit(idr0, 5),
            has_el2: bit(idr0, 9),
            has_ats: bit(idr0, 10),
            asid_bits: if bit(idr0, 12) { 16 } else { 8 },
            has_two_levels: field(idr0, 28, 27) == 1,
            // Larger values are reserved.
            stream_bits: field(idr1, 5, 0).min(32),
            command_order_max: field(idr1, 25, 21).min(QUEUE_ORDER_MAX),
            event_order_max: field(idr1, 20, 16).min(QUEUE_ORDER_MAX),
            attributes_overridable: bit(idr1, 27),
            has_preset_places: field(idr1, 30, 29) != 0,
            has_ranges: bit(idr3, 10),
            output: OutputSize::from_field(field(idr5, 2, 0)),
            granules: [bit(idr5, 4), bit(idr5, 5), bit(idr5, 6)],
        }
    }

    /// Whether tables may have this granule.
    pub const fn has_granule(&self, granule: Granule) -> bool {
        let [small, middle, large] = self.granules;
        match granule {
            Granule::Size4K => small,
            Granule::Size16K => middle,
            Granule::Size64K => large,
        }
    }
}

/// Binary logarithm of the longest queue that there may be.
pub(super) const QUEUE_ORDER_MAX: u32 = 19;

const fn bit(register: u32, index: u32) -> bool {
    register >> index & 1 != 0
}

const fn field(register: u32, high: u32, low: u32) -> u32 {
    register >> low & (u32::MAX >> (31 - (high - low)))
}
