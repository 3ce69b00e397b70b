//! A tiny bare guest: instruction counts of exits, and the wrong actions a guest can take.
//!
//! The kernel command line selects one: `bench=NAME` with a name from [`bench`], or `test=NAME`
//! with a name from the table in [`tests`] or `all`, or from [`svm`]. `count=N` with it sets the
//! number of calls of a benchmark, if that is variable, or its largest number of targets, the
//! amount of garbage of each kind, or the number of changes, interrupts or runs of a test. Results
//! are sent to COM2 in lines of JSON, and in words to COM1; then the machine is switched off.
#![no_std]
#![no_main]

mod apic;
mod bench;
mod clock;
mod guarded;
mod hypercall;
mod interrupts;
mod paging;
mod pci;
mod processors;
mod report;
mod svm;
mod tests;

use baremetal::x86_64::info::BootInfo;
use baremetal::x86_64::tables;
use bench::reported;
use report::{PROGRAM, Verdict, failure};

baremetal::program!(PROGRAM, main);

fn main(info: &'static BootInfo) -> Verdict {
    hypercall::prepare();
    interrupts::prepare();
    paging::open_window();
    processors::prepare();
    let cmdline = info.command_line.as_str();
    let mut words = cmdline.split_whitespace().filter_map(|word| word.split_once('='));
    svm::run_on(words.clone().find_map(|(key, value)| (key == "on").then_some(value)))?;
    svm::set_ram(info.ram.iter().map(|range| range.end));
    report::say(format_args!("quell-probe: {cmdline}"));
    let count = words.clone().find_map(|(key, value)| (key == "count").then(|| value.parse()));
    let count = count.transpose().map_err(|_| failure(format_args!("count= takes a number")))?;
    match words.find(|(key, _)| matches!(*key, "bench" | "test")) {
        Some(("bench", "exits")) => reported("exits", bench::exits),
        Some(("bench", "flush")) => reported("flush", || bench::flush(count.unwrap_or(254))),
        Some(("bench", name)) if name.starts_with("memslot-") => {
            reported("memslot", || bench::memslot(name, count.unwrap_or(16)));
        }
        Some(("bench", "remove")) => reported("remove", bench::remove),
        Some(("bench", "direct")) => reported("direct", svm::bench_direct),
        Some(("bench", "touch")) => reported("touch", bench::touch),
        Some(("bench", "log")) => reported("log", bench::log),
        Some(("bench", name)) => bench::running(name, count.unwrap_or(1)),
        Some(("test", name)) if name.starts_with("svm") => {
            count.into_iter().for_each(svm::set_count);
            svm::run(name)?;
        }
        Some(("test", name)) => tests::run(name, count),
        _ => return Err(failure(format_args!("nothing to do: '{cmdline}'"))),
    }
    Ok(())
}
