//! Fatal errors that end a run early.

use hostlink::exit::ExitCode;
use memslots::Gpa;

use super::arch::Board;

/// Ends the run because a requirement of the hypervisor is not met.
pub fn refuse<A: Board>(code: ExitCode, reason: &dyn core::fmt::Display) -> ! {
    log::error!("{reason}");
    A::exit(code)
}

/// Ends the guest because a processor does not leave guest mode. To continue would free memory that
/// this processor still uses.
#[cold]
pub fn end_stalled_guest<A: Board>(why: &dyn core::fmt::Display) -> ! {
    log::error!("the guest ends: {why}");
    A::exit(ExitCode::GuestStalled)
}

/// Ends the guest because no page is left for a table that its access needs. The default pool
/// suffices for all memory, so this happens only with a pool that was configured small.
#[cold]
pub fn end_guest_without_tables<A: Board>(gpa: Gpa) -> ! {
    log::error!("the guest ends: no page is left for a nested page table, at {gpa}");
    A::exit(ExitCode::GuestOutOfTables)
}
