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
mod bench;
mod checks;
pub(super) mod ends;
mod hypercall;
mod machine;
mod watch;
mod window;

use core::panic::PanicInfo;

use baremetal::x86_64::info::BootInfo;
use tlbcheck::command_line::{Options, Task};

use super::console;

baremetal::entry!(main);

/// Where the first processor begins.
fn main(info: BootInfo) -> ! {
    let line = console::open(&info.command_line);
    let parsed = Options::parse(line);
    // To end the run as it is asked for, what else is wrong notwithstanding.
    let debug_exit = line.split_whitespace().any(|word| word == "exit=debug");
    let options = parsed.unwrap_or(Options { debug_exit, ..Options::default() });
    console::choose(&options);
    machine::find(&info, &options);
    if let Err(word) = parsed {
        console::bail(format_args!("'{word}' is not understood; the command line is '{line}'"));
    }
    if options.omits.is_some() {
        console::bail(format_args!("'drop=' is for Arm64"));
    }
    let totals = match options.task {
        Task::Check => checks::run(&options),
        Task::List => checks::list(),
        Task::Bench => bench::run(&options),
    };
    console::end(totals)
}

#[panic_handler]
fn on_panic(info: &PanicInfo<'_>) -> ! {
    console::bail(format_args!("{info}"))
}
