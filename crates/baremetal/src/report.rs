//! Programs that report to the host: text on the console, lines of JSON on the report channel.

use core::fmt::{Arguments, Write};

use spin::{Mutex, Once};

use crate::arch::info::BootInfo;
use crate::arch::serial::{CONSOLE, REPORTS};
use crate::verdict::{Verdict, as_json, failure, in_words};

/// How a program's output differs from another's.
#[derive(Clone, Copy, Debug)]
pub struct Program {
    /// Begins each line of text.
    pub name: &'static str,
    /// Before and after each line of JSON.
    pub around: [&'static str; 2],
    /// Switches the machine off.
    pub off: fn() -> !,
}

static PROGRAM: Once<Program> = Once::new();
/// The loader's information; tests take their names from it.
static INFO: Once<BootInfo> = Once::new();
/// The running test, by its name on the command line or in the table.
static RUNNING: Mutex<&str> = Mutex::new("");

/// Names the image's [`Program`](crate::report::Program) and its main function, a `fn(&'static
/// BootInfo) -> Verdict`. When that returns, or panics, the machine is switched off.
#[macro_export]
macro_rules! program {
    ($program:expr, $main:path) => {
        $crate::entry!(start);

        fn start(info: $crate::arch::info::BootInfo) -> ! {
            $crate::report::run($program, $main, info)
        }

        #[panic_handler]
        fn on_panic(info: &::core::panic::PanicInfo<'_>) -> ! {
            $crate::report::abort(format_args!("{info}"))
        }
    };
}

#[doc(hidden)]
pub fn run(program: Program, main: fn(&'static BootInfo) -> Verdict, info: BootInfo) -> ! {
    PROGRAM.call_once(|| program);
    let verdict = main(INFO.call_once(|| info));
    if verdict.is_err() {
        end("", &verdict);
    }
    (program.off)()
}

/// Writes a line to the console.
pub fn say(text: Arguments<'_>) {
    let name = PROGRAM.get().map_or("", |program| program.name);
    let _ = write!({ CONSOLE }, "{name}{text}\r\n");
}

/// Sends a line of JSON to the host.
pub fn json(text: Arguments<'_>) {
    let [before, after] = PROGRAM.get().map_or(["\n"; 2], |program| program.around);
    let _ = write!({ REPORTS.or_logged() }, "{before}{text}{after}");
}

/// Tells the host that the program has reached a point.
pub fn event(name: &str) {
    json(format_args!(r#"{{"event":"{name}"}}"#));
}

/// A test begins.
pub fn begin(name: &'static str) {
    *RUNNING.lock() = name;
}

/// A test ends.
pub fn end(name: &str, verdict: &Verdict) {
    say(format_args!("{}", in_words(name, verdict)));
    json(format_args!("{}", as_json(name, verdict)));
}

/// Reports the running test as failed, and ends the machine: the program itself cannot continue.
pub fn abort(why: Arguments<'_>) -> ! {
    let name = RUNNING.try_lock().map_or("", |name| *name);
    end(name, &Err(failure(why)));
    match PROGRAM.get() {
        Some(program) => (program.off)(),
        None => loop {
            core::hint::spin_loop();
        },
    }
}
