//! The guest's entry.

use core::panic::PanicInfo;

use baremetal::arch::info::BootInfo;
use baremetal::arch::serial::CONSOLE;
use hostile::orders::Orders;
use spin::Once;

use crate::{machine, report, tests};

/// The loader's information; the test takes its name from it.
static INFO: Once<BootInfo> = Once::new();

baremetal::entry!(main);

fn main(info: BootInfo) -> ! {
    CONSOLE.set_up();
    let info = INFO.call_once(|| info);
    let line = info.command_line.as_str();
    match Orders::parse(line) {
        Ok(orders) => {
            let Orders { test, seed, count, .. } = orders;
            report::say(format_args!("test={test} seed={seed:#x} count={count:?}"));
            machine::prepare(info);
            tests::run(&orders);
        }
        Err(why) => report::end("", &Err(report::failure(format_args!("'{line}': {why}")))),
    }
    machine::off()
}

#[panic_handler]
fn on_panic(info: &PanicInfo<'_>) -> ! {
    report::abort(format_args!("{info}"))
}
