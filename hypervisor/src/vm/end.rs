//! Fatal errors that end a run early.

use hostlink::exit::ExitCode;

use super::arch::Board;

/// Ends the run because a requirement of the hypervisor is not met.
pub fn refuse<A: Board>(code: ExitCode, reason: &dyn core::fmt::Display) -> ! {
    log::error!("{reason}");
    A::exit(code)
}

/// Ends the run because a processor does not leave guest mode: it is broken. To continue would free
/// memory that this processor still uses.
#[cold]
pub fn end_stalled_run<A: Board>(why: &dyn core::fmt::Display) -> ! {
    log::error!("the guest ends: {why}");
    A::exit(ExitCode::GuestStalled)
}
