//! Whether maintenance interrupts bring anything: one after which everything stands as it did after
//! the one before has brought nothing, and the next will come at once.

use super::{Bits, View};
use crate::devices::virt::gic::Maintenance;

/// So many maintenance interrupts without progress are taken before no more are asked for.
pub(super) const FUTILE_MAX: u8 = 8;

/// All that maintenance interrupts depend on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Standing {
    pub(super) view: View,
    /// How often list registers have come back changed.
    pub(super) changes: u32,
    pub(super) wanted: Bits,
    pub(super) active: Bits,
}

/// How long nothing has come of them.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct FutileWaits {
    last: Option<Standing>,
    futile: u8,
}

impl FutileWaits {
    pub(super) const fn new() -> Self {
        Self { last: None, futile: 0 }
    }

    /// A maintenance interrupt came, and this is how everything stands after it.
    pub(super) fn note(&mut self, standing: Standing) {
        self.futile = if self.last == Some(standing) { self.futile.saturating_add(1) } else { 0 };
        self.last = Some(standing);
    }

    /// What of the maintenance may be asked for: once nothing comes of it, no interrupt until
    /// something has changed. What waits is looked at with the next exit of any other kind.
    pub(super) fn bounded(&self, maintenance: Maintenance, standing: &Standing) -> Maintenance {
        if self.futile < FUTILE_MAX || self.last != Some(*standing) {
            return maintenance;
        }
        maintenance & Maintenance::TRAP_DEACTIVATION
    }
}
