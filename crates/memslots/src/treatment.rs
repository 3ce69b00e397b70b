//! What a change of a slot demands of the translations that were made by it.

use core::ops::Range;

use crate::dirty::DirtyLog;
use crate::slot::{Slot, SpaceId};

/// What must happen to the translations of a former slot's range before the update can be finished.
/// The stronger of two comes later in the order.
///
/// Exhaustive: a caller that overlooks one leaves translations that must go.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Treatment {
    /// Nothing: they allow no more than they may, and faults make them allow more.
    Nothing,
    /// Small pages may become large ones again. That need not happen before the end, nor at all.
    Collapse,
    /// Take write access away, and flush.
    WriteProtect,
    /// Split large pages; take write access away, or clear the dirty bits; and flush.
    StartLog,
    /// Remove them, and flush.
    Zap,
}

/// What becomes of a slot's dirty log.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum LogChange {
    Same,
    /// There is a new one, perhaps instead of another: what was dirty by that is not marked in
    /// this.
    Start,
    Stop,
}

impl LogChange {
    fn of(former: Option<&DirtyLog>, current: Option<&DirtyLog>) -> Self {
        match (former, current) {
            (former, current) if former == current => Self::Same,
            (_, Some(_)) => Self::Start,
            (_, None) => Self::Stop,
        }
    }
}

/// How a slot differs from the one of its name that was there before.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Difference {
    /// Guest address, size and memory are the same.
    is_in_place: bool,
    /// Write access was there, and is not any more.
    loses_write: bool,
    log: LogChange,
}

impl Treatment {
    /// The decision table (P8): a row decides if none above does. Where two demands meet of which
    /// neither contains the other, the translations go.
    const fn decide(difference: Difference) -> Self {
        match difference {
            Difference { is_in_place: false, .. } => Self::Zap,
            // Clearing dirty bits leaves write access, and protecting leaves large pages.
            Difference { loses_write: true, log: LogChange::Start, .. } => Self::Zap,
            Difference { loses_write: true, .. } => Self::WriteProtect,
            Difference { log: LogChange::Start, .. } => Self::StartLog,
            Difference { log: LogChange::Stop, .. } => Self::Collapse,
            Difference { log: LogChange::Same, .. } => Self::Nothing,
        }
    }

    /// Whether a receipt for a flush is needed before the update can be finished.
    pub const fn needs_receipt(self) -> bool {
        match self {
            Self::Nothing | Self::Collapse => false,
            Self::WriteProtect | Self::StartLog | Self::Zap => true,
        }
    }
}

/// A slot that an update removes or changes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SlotChange {
    /// Its address space.
    pub space: SpaceId,
    /// As it was.
    pub former: Slot,
    /// As it is now, if it is.
    pub current: Option<Slot>,
    /// What must happen to the translations in [`range`](Self::range).
    pub treatment: Treatment,
    /// Whether the former slot's log goes on in the current one. If translations with dirty bits
    /// are removed then, their pages must be [marked](crate::GuestMemory::mark_dirty) where they
    /// are now.
    pub keeps_log: bool,
}

impl SlotChange {
    /// The change from a slot with its log to what has its name now; `None` if that is the same.
    pub(crate) fn of(
        space: SpaceId,
        former: (&Slot, Option<&DirtyLog>),
        current: Option<(&Slot, Option<&DirtyLog>)>,
    ) -> Option<Self> {
        if current == Some(former) {
            return None;
        }
        let (slot, log) = former;
        let treatment = match current {
            None => Treatment::Zap,
            Some((now, now_log)) => Treatment::decide(Difference {
                is_in_place: slot.gpa == now.gpa && has_same_memory(slot, now),
                loses_write: now.is_read_only() && !slot.is_read_only(),
                log: LogChange::of(log, now_log),
            }),
        };
        let keeps_log = log.is_some() && current.is_some_and(|(_, now)| now == log);
        Some(Self { space, former: *slot, current: current.map(|(slot, _)| *slot), treatment, keeps_log })
    }

    /// The guest physical addresses whose translations are concerned: the former slot's.
    pub fn range(&self) -> Range<u64> {
        self.former.range()
    }

    /// Whether the memory behind the former slot goes on behind the current one.
    pub(crate) fn keeps_memory(&self) -> bool {
        self.current.is_some_and(|current| has_same_memory(&self.former, &current))
    }
}

fn has_same_memory(one: &Slot, other: &Slot) -> bool {
    one.host == other.host && one.size == other.size
}
