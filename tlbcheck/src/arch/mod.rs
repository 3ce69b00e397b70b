//! The machine-specific parts. An architecture brings its rows and its measurements; the path from
//! the command line to a task, the report and its outputs are the same for all.

mod bench;
mod console;
mod rows;
mod testbed;
mod window;

#[cfg(target_arch = "aarch64")]
mod aarch64;
#[cfg(target_arch = "x86_64")]
mod x86_64;

#[cfg(target_arch = "aarch64")]
use aarch64 as this;
#[cfg(target_arch = "x86_64")]
use x86_64 as this;

use core::panic::PanicInfo;

use baremetal::arch::info::BootInfo;
use this::{checks, machine};
use tlbcheck::command_line::{Options, Task};

baremetal::entry!(main);

fn main(info: BootInfo) -> ! {
    let shown = this::screen::open(&info);
    let line = console::open(&info.command_line);
    let parsed = Options::parse(line);
    // So that the run ends in the requested way despite other errors in the line.
    let debug_exit = line.split_whitespace().any(|word| word == "exit=debug");
    let options = parsed.unwrap_or(Options { debug_exit, ..Options::default() });
    console::choose(&options);
    if let Err(why) = shown {
        console::note(format_args!("the screen is not used: {why}"));
    }
    machine::find(&info, &options);
    if let Err(word) = parsed {
        console::bail(format_args!("'{word}' is not understood; the command line is '{line}'"));
    }
    this::prepare(&options);
    let totals = match options.task {
        Task::Check | Task::List => rows::run(checks::rows(), &options),
        Task::Bench => bench::run(&mut this::bench::COLUMNS.lock()[..], &options),
    };
    console::end(totals)
}

#[panic_handler]
fn on_panic(info: &PanicInfo<'_>) -> ! {
    console::bail(format_args!("{info}"))
}
