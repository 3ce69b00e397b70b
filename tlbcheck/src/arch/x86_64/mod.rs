//! x86-64: from the entry to the end.
//!
//! | file | what it holds |
//! |---|---|
//! | `machine` | processors, platform, VP indices: found once, at the beginning |
//! | `ends` | the two serial ports, the ends of the machine |
//! | `window` | page tables whose leaves the checks exchange |
//! | `hypercall` | the guest's end of hypercalls |
//! | `back_end` | flushes of other processors, by interrupt and by hypercall, behind one trait |
//! | `watch` | another processor that looks at a page all the time |
//! | `checks` | the rows |
//! | `bench` | the measurements |

mod back_end;
pub(super) mod bench;
pub(super) mod checks;
pub(super) mod ends;
mod hypercall;
pub(super) mod machine;
mod watch;
mod window;

use tlbcheck::command_line::Options;

use super::console;

/// Refuses what is asked for of another architecture, by `options`.
pub(super) fn prepare(options: &Options<'_>) {
    if options.omits.is_some() {
        console::bail(format_args!("'drop=' is for Arm64"));
    }
}
