//! Stage 2: its format, as this processor needs it, and its tables.

use alloc::sync::Arc;
use coherence::tlbi::{self, Errata, Granule, Setup};
use core::sync::atomic::{AtomicBool, Ordering};
use paging::{
    Arm64Stage2, Entries, FlushRange, Format, Level, Permissions, PhysAddr, TableMemory, format_like,
};
use stay::Cost;

use super::cost::Word;
use super::flush;
use crate::arch::aarch64::boot::features;
use crate::arch::aarch64::sysreg::read;
use crate::arm64::guest::Tag;
use crate::arm64::processor::Features;
use crate::vm::memory::NestedTables;

type Forced = Arm64Stage2<3, true>;
type Plain = Arm64Stage2<3, false>;

/// Whether stage 2 alone decides how memory is cached (HCR_EL2.FWB): the encoding of memory types
/// differs.
static FORCED: AtomicBool = AtomicBool::new(false);

/// Chooses the encoding, before the first entry.
fn init() {
    FORCED.store(features::get().contains(Features::FORCED_WRITE_BACK), Ordering::Relaxed);
}

/// Three levels of stage 2, in the encoding of the processor.
pub(crate) struct Stage2;

impl Format for Stage2 {
    // `protected` leaves memory types unchanged, in either encoding.
    format_like! { Plain:
        INPUT_BITS SIGN_EXTENDED OUTPUT_BITS ROOT LARGEST REPLACES_IN_PLACE SETTLED
        admits is_present is_leaf table address is_dirty protected dirtied cleaned
    }

    #[inline]
    fn leaf(pa: PhysAddr, level: Level, permissions: Permissions) -> u64 {
        match FORCED.load(Ordering::Relaxed) {
            true => Forced::leaf(pa, level, permissions),
            false => Plain::leaf(pa, level, permissions),
        }
    }

    #[inline]
    fn permissions(leaf: u64) -> Permissions {
        match FORCED.load(Ordering::Relaxed) {
            true => Forced::permissions(leaf),
            false => Plain::permissions(leaf),
        }
    }
}

/// The processors' features, which are assumed to be the same on all, and the method to invalidate
/// stage 2 on them, with the cost of doing so. Called before the first guest.
pub(crate) fn set_up() -> (Setup, Cost) {
    let features =
        tlbi::Features::from_id(read!("id_aa64isar0_el1"), read!("s3_0_c0_c7_2"), read!("ctr_el0"));
    let cost = Cost::measure(&Word::new());
    log::info!("flushes of stage 2: {cost}");
    init();
    let (errata, limits) = (Errata::of(read!("midr_el1")), cost.limits());
    (Setup { granule: Granule::Size4K, features, errata, limits }, cost)
}

/// Tables from the pool, with the properties that walks by the processor need.
#[derive(Clone, Debug)]
pub(crate) struct Tables {
    pool: NestedTables,
    /// The machine that walks them.
    tag: Arc<Tag>,
}

impl Tables {
    pub(crate) fn new(pool: NestedTables) -> Self {
        Self { pool, tag: Arc::default() }
    }

    pub(crate) fn tag(&self) -> Arc<Tag> {
        self.tag.clone()
    }
}

// SAFETY: as for `NestedTables`, whose tables these are.
unsafe impl TableMemory for Tables {
    fn allocate(&self) -> Option<PhysAddr> {
        self.pool.allocate()
    }

    unsafe fn free(&self, table: PhysAddr) {
        // SAFETY: the caller vouches for the table.
        unsafe { self.pool.free(table) };
    }

    unsafe fn entries(&self, table: PhysAddr) -> &Entries {
        // SAFETY: the caller vouches for the table.
        unsafe { self.pool.entries(table) }
    }

    fn publish(&self) {
        flush::order_stores();
    }

    fn break_before_make(&self, range: FlushRange) {
        flush::break_before_make(&self.tag, &range);
    }

    fn resizes_in_place(&self) -> bool {
        features::get().contains(Features::REPLACES_IN_PLACE)
    }
}
