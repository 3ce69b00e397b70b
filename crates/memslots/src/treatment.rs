//! The treatment that a change of a slot requires for translations made with it.

use core::ops::Range;

use crate::dirty::DirtyLog;
use crate::slot::{Slot, SpaceId};

/// The treatment that the translations of a former slot's range require before the update can be
/// finished. A stronger treatment is later in the order.
///
/// Exhaustive: a caller that overlooks one leaves translations that must be removed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Treatment {
    /// Nothing: they allow no more than they may, and faults add missing permissions.
    Nothing,
    /// Small pages may become large ones again. That need not happen before the end, or at all.
    Collapse,
    /// Remove write access, and flush.
    WriteProtect,
    /// Split large pages; remove write access, or clear the dirty bits; and flush.
    StartLog,
    /// Remove them, and flush.
    Zap,
}

/// The change of a slot's dirty log.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum LogChange {
    Same,
    /// There is a new log, perhaps replacing another: pages dirty in the old log are not marked in
    /// the new one.
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

/// The difference between a slot and the former slot with its name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Difference {
    /// Guest address, size and memory are the same.
    is_in_place: bool,
    /// The slot was writable, and is not any more.
    loses_write: bool,
    log: LogChange,
}

impl Treatment {
    /// The decision table (P8): a row applies if none above does. If two requirements meet and
    /// neither includes the other, the translations are zapped.
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
    /// The former slot.
    pub former: Slot,
    /// The current slot, if it still exists.
    pub current: Option<Slot>,
    /// The treatment of the translations in [`range`](Self::range).
    pub treatment: Treatment,
    /// Whether the former slot's log continues in the current one. If translations with dirty bits
    /// are removed then, their pages must be [marked](crate::GuestMemory::mark_dirty) at their
    /// current addresses.
    pub keeps_log: bool,
}

impl SlotChange {
    /// The change from a slot with its log to the current one of that name; `None` if equal.
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

    /// The guest physical addresses whose translations are affected: the former slot's.
    pub fn range(&self) -> Range<u64> {
        self.former.range()
    }

    /// Whether the memory behind the former slot stays behind the current one.
    pub(crate) fn keeps_memory(&self) -> bool {
        self.current.is_some_and(|current| has_same_memory(&self.former, &current))
    }
}

fn has_same_memory(one: &Slot, other: &Slot) -> bool {
    one.host == other.host && one.size == other.size
}
