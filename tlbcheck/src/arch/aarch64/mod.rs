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

mod bench;
mod checks;
pub(super) mod ends;
mod machine;
mod tlbi;
mod watch;
mod window;

use core::panic::PanicInfo;

use baremetal::aarch64::info::BootInfo;
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
    if options.report_to_com2 {
        console::bail(format_args!("'report=com2': there is one serial port"));
    }
    tlbi::omit(options.omits);
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
