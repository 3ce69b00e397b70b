//! x86-64: from the entry to the end.
//!
//! | file | contents |
//! |---|---|
//! | `machine` | processors, platform and VP indices, determined once at the beginning |
//! | `screen` | the report on a screen, page by page |
//! | `window` | page tables whose leaves the checks exchange |
//! | `hypercall` | the guest's end of hypercalls |
//! | `back_end` | flushes of other processors, by interrupt and by hypercall, behind one trait |
//! | `watch` | another processor that checks a page all the time |
//! | `checks` | the rows |
//! | `bench` | the measurements |

mod back_end;
pub(super) mod bench;
pub(super) mod checks;
mod hypercall;
pub(super) mod machine;
pub(super) mod screen;
mod watch;
mod window;

use tlbcheck::command_line::Options;

use super::console;

/// Whether reports have a port of their own.
pub(super) const HAS_SECOND_PORT: bool = true;

/// Refuses `options` that are for another architecture.
pub(super) fn prepare(options: &Options<'_>) {
    if options.omits.is_some() {
        console::bail(format_args!("'drop=' is for Arm64"));
    }
}
