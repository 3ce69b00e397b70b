//! Detects maintenance interrupts without effect: if the state after one is the same as after the
//! one before, it has had no effect, and the next one will follow at once.

use super::{Bits, View};
use crate::devices::virt::gic::Maintenance;

/// Number of maintenance interrupts without progress after which no more are requested.
pub(super) const FUTILE_MAX: u8 = 8;

/// The state that maintenance interrupts depend on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Standing {
    pub(super) view: View,
    /// Number of list registers that have come back changed.
    pub(super) changes: u32,
    pub(super) wanted: Bits,
    pub(super) active: Bits,
}

/// Counts maintenance interrupts without effect.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct FutileWaits {
    last: Option<Standing>,
    futile: u8,
}

impl FutileWaits {
    pub(super) fn note(&mut self, standing: Standing) {
        self.futile = if self.last == Some(standing) { self.futile.saturating_add(1) } else { 0 };
        self.last = Some(standing);
    }

    /// The part of `maintenance` that may be requested: when interrupts have no effect, none until
    /// the state has changed. Waiting interrupts are then handled at the next exit of any other
    /// kind.
    pub(super) fn bounded(&self, maintenance: Maintenance, standing: &Standing) -> Maintenance {
        if self.futile < FUTILE_MAX || self.last != Some(*standing) {
            return maintenance;
        }
        maintenance & Maintenance::TRAP_DEACTIVATION
    }
}
