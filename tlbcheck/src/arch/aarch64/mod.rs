//! Arm64: from the entry to the end.
//!
//! | file | what it holds |
//! |---|---|
//! | `machine` | processors, platform: found once, at the beginning |
//! | `ends` | the serial port, the ends of the machine |
//! | `tlbi` | TLBI in all its forms, with its barriers: nobody else has the instructions |
//! | `window` | page tables whose entries the checks exchange |
//! | `watch` | the other processors look at a page all the time |
//! | `checks` | the rows |
//! | `bench` | the measurements |

pub(super) mod bench;
pub(super) mod checks;
pub(super) mod ends;
pub(super) mod machine;
mod tlbi;
mod watch;
mod window;

use tlbcheck::command_line::Options;

use super::console;

/// Refuses what there is not, and leaves out what `options` say.
pub(super) fn prepare(options: &Options<'_>) {
    if options.report_to_com2 {
        console::bail(format_args!("'report=com2': there is one serial port"));
    }
    tlbi::omit(options.omits);
}
