//! The guest's entry.

use baremetal::arch::info::BootInfo;
use baremetal::arch::serial::CONSOLE;
use baremetal::report::{self, Program};
use baremetal::verdict::{Verdict, failure};
use hostile::orders::Orders;

use crate::{machine, tests};

/// Earlier output on the report channel must not become the beginning of a line.
const PROGRAM: Program = Program { name: "hostile: ", around: ["\r\n"; 2], off: machine::off };

baremetal::program!(PROGRAM, main);

fn main(info: &'static BootInfo) -> Verdict {
    CONSOLE.set_up();
    let line = info.command_line.as_str();
    let orders = Orders::parse(line).map_err(|why| failure(format_args!("'{line}': {why}")))?;
    let Orders { test, seed, count, .. } = orders;
    report::say(format_args!("test={test} seed={seed:#x} count={count:?}"));
    machine::prepare(info);
    tests::run(&orders);
    Ok(())
}
