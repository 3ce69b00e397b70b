//! The parts of the bare-metal images of all architectures besides the [core](crate::vm): memory,
//! stacks, the log, the report of a panic, and the one machine.
//!
//! | module | contents |
//! |---|---|
//! | `blocks` | the block of each CPU: stacks with guard pages, per-CPU data |
//! | `console` | the log |
//! | `heap` | the heap, and the location of the image |
//! | `panic` | the report of a panic |

pub(crate) mod blocks;
pub(crate) mod console;
pub(crate) mod heap;
pub(crate) mod panic;

use core::fmt::Display;
use core::ops::Range;

use hostlink::counters::Beacon;
use hostlink::exit::ExitCode;
use spin::Once;

use crate::arch::{Local, Vm};
use crate::free_memory::FreeMemory;
use crate::vm::{self, Files, run};

/// Through this the host tool finds the counters.
#[unsafe(no_mangle)]
pub(crate) static QUELL_BEACON: Beacon = Beacon::new();

static MACHINE: Once<Vm> = Once::new();

/// The machine, once it exists.
#[inline(always)]
pub(crate) fn machine() -> Option<&'static Vm> {
    MACHINE.get()
}

/// Ends the run because a requirement of the hypervisor is not met.
pub(crate) fn refuse(code: ExitCode, reason: &dyn Display) -> ! {
    vm::end::refuse::<Local>(code, reason)
}

/// Reads the boot module, which this loader calls `kind`; ends the run if there is no valid one.
///
/// # Safety
///
/// The memory of the module is mapped, and is never modified.
pub(crate) unsafe fn files_of_module(module: Option<Range<u64>>, kind: &str) -> Files {
    let module = module.unwrap_or_else(|| {
        let why = format_args!("no bundle: give it as {kind} (QEMU: -initrd)");
        refuse(ExitCode::BadConfig, &why)
    });
    // SAFETY: the caller vouches for the memory.
    let bundle = unsafe {
        core::slice::from_raw_parts(module.start as *const u8, (module.end - module.start) as usize)
    };
    let files = Files::read(bundle).unwrap_or_else(|why| refuse(ExitCode::BadConfig, &why));
    vm::files::make_defect(&files.config);
    if let Some(symbols) = files.symbols {
        panic::set_symbols(symbols);
    }
    files
}

/// Creates the machine that the files describe, and runs it on this CPU, which is the boot CPU, and
/// the others. `ready` is called when the machine exists, before any vCPU runs.
pub(crate) fn run_machine(files: Files, free: &mut FreeMemory, unix: Option<u64>, ready: impl FnOnce()) -> ! {
    let vm = vm::machine::create::<Local>(files, free, unix)
        .unwrap_or_else(|why| refuse(ExitCode::BadConfig, &why));
    let vm = MACHINE.call_once(|| vm);
    vm.publish_counters(&QUELL_BEACON);
    ready();
    run::start(vm);
    run::cpu_loop(vm)
}
