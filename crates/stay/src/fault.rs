//! Nested faults: handling an access that the nested tables did not allow.

use memslots::Gpa;
use memslots::space::{Fault, Found, GuestSpace};
use paging::{Format, Level, TableMemory};

use crate::{Mistake, Stay, in_section};

/// Pages that a vCPU remembers as having no memory.
pub const MMIO_PAGES: usize = 4;

/// How it was determined that there is no memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Source {
    /// The vCPU has accessed it before, in this generation of the slots.
    Remembered,
    /// By a mark in the nested table.
    Marked,
    /// The slots were searched.
    Searched,
}

/// The result of a nested fault.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Answer {
    /// There is a translation now, by a leaf of this level: the access is retried.
    Installed(Level),
    /// The existing translation allows more now: the access is retried.
    Upgraded,
    /// Another vCPU was first, a change is in progress, or the processor has cached an absence: the
    /// access is retried.
    Retry,
    /// A store to memory that the guest may not write.
    ReadOnly,
    /// There is no memory: a device's registers, or nothing.
    Mmio(Source),
    /// There is no memory for tables.
    OutOfTables,
}

/// Handles a nested fault at `gpa`, which is the address of the access or of an entry of the
/// guest's tables.
///
/// The absence of memory is remembered with the generation of the lookup that found it. If the
/// generation were read afterwards, an update in between would make the remembered result look
/// current (P10).
#[inline(always)] // One caller for each architecture.
pub fn nested_fault<'a, S: Stay<'a>, F: Format, M: TableMemory>(
    stay: &mut S,
    space: &GuestSpace<F, M>,
    gpa: Gpa,
    is_store: bool,
) -> Answer {
    if stay.mmio().has(gpa, space.slots().generation()) {
        return Answer::Mmio(Source::Remembered);
    }
    match in_section(stay, |_, _| space.fault(gpa, is_store)) {
        Fault::Installed(level) => Answer::Installed(level),
        Fault::Upgraded => Answer::Upgraded,
        Fault::Retry => Answer::Retry,
        Fault::ReadOnly => Answer::ReadOnly,
        Fault::Mmio { found, generation } => {
            let late = stay.makes(Mistake::GenerationReadLate);
            let generation = if late { space.slots().generation() } else { generation };
            let _is_remembered = stay.mmio().insert(gpa, generation);
            Answer::Mmio(match found {
                Found::Marked => Source::Marked,
                Found::Searched => Source::Searched,
            })
        }
        Fault::OutOfTables => Answer::OutOfTables,
    }
}
