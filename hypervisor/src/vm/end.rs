//! How a run ends before its time.

use hostlink::exit::ExitCode;
use memslots::Gpa;

use super::arch::Board;

/// Ends the run because something that we need is not as it must be.
pub fn refuse<A: Board>(code: ExitCode, reason: &dyn core::fmt::Display) -> ! {
    log::error!("{reason}");
    A::exit(code)
}

/// Ends the guest because of a processor that does not leave guest mode: to go on would give memory
/// back that it still uses.
#[cold]
pub fn end_stalled_guest<A: Board>(why: &dyn core::fmt::Display) -> ! {
    log::error!("the guest ends: {why}");
    A::exit(ExitCode::GuestStalled)
}

/// Ends the guest because there is no page for a table that its access needs. There are enough for
/// all memory there is, so this is for a pool that was made small.
#[cold]
pub fn end_guest_without_tables<A: Board>(gpa: Gpa) -> ! {
    log::error!("the guest ends: no page is left for a nested page table, at {gpa}");
    A::exit(ExitCode::GuestOutOfTables)
}
