//! Arm64: from the entry to the end.
//!
//! | file | contents |
//! |---|---|
//! | `machine` | processors and platform, determined once at the beginning |
//! | `tlbi` | TLBI in all its forms, with its barriers: the only code with these instructions |
//! | `window` | page tables whose entries the checks exchange |
//! | `watch` | the other processors check a page all the time |
//! | `checks` | the rows |
//! | `bench` | the measurements |

pub(super) mod bench;
pub(super) mod checks;
pub(super) mod machine;
mod tlbi;
mod watch;
mod window;

use tlbcheck::command_line::Options;

use super::console;

/// Whether reports have a port of their own.
pub(super) const HAS_SECOND_PORT: bool = false;

/// A machine's screen. None is used here.
pub(super) mod screen {
    use baremetal::arch::info::BootInfo;

    pub(in crate::arch) const fn open(_: &BootInfo) -> Result<(), &'static str> {
        Ok(())
    }

    pub(in crate::arch) const fn show(_: &str) {}

    pub(in crate::arch) const fn stay() {}
}

/// Refuses features that do not exist here, and applies the omissions in `options`.
pub(super) fn prepare(options: &Options<'_>) {
    if options.report_to_com2 {
        console::bail(format_args!("'report=com2': there is one serial port"));
    }
    tlbi::omit(options.omits);
}
