//! Nested faults: what an access that the nested tables did not allow leads to.

use memslots::Gpa;
use memslots::space::{Fault, Found, GuestSpace};
use paging::{Format, Level, TableMemory};

use crate::{Mistake, Stay, in_section};

/// Pages of which a vCPU remembers that there is no memory.
pub const MMIO_PAGES: usize = 4;

/// How it was found that there is no memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Source {
    /// The vCPU has been there before, in this generation of the slots.
    Remembered,
    /// The nested table says so.
    Marked,
    /// The slots were searched.
    Searched,
}

/// What a nested fault leads to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Answer {
    /// There is a translation now, by a leaf of this level: the access is tried again.
    Installed(Level),
    /// The translation that there was allows more now: the access is tried again.
    Upgraded,
    /// Another vCPU was first, a change is under way, or the processor has kept an old absence: the
    /// access is tried again.
    Retry,
    /// A store to memory that is not the guest's to write.
    ReadOnly,
    /// There is no memory: a device's registers, or nothing.
    Mmio(Source),
    /// There is no memory for tables.
    OutOfTables,
}

/// Answers a nested fault at `gpa`, which is that of the access or of an entry of the guest's
/// tables.
///
/// The generation under which it is remembered that there is no memory is that of the lookup which
/// found it: were it read afterwards, an update that came in between would make what is remembered
/// look current (P10).
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
