//! The parts of the bare-metal images of all architectures besides the [core](crate::vm): memory,
//! stacks, the log, the report of a panic, and the one machine. [`arch`](crate::arch) gives it the
//! processor.

pub(crate) mod blocks;
pub(crate) mod console;
pub(crate) mod heap;
pub(crate) mod panic;
pub(crate) mod registers;

use core::fmt::Display;
use core::ops::Range;
use hostlink::counters::Beacon;
use hostlink::exit::ExitCode;
use spin::Once;

use crate::free_memory::FreeMemory;
use crate::vm::arch::{Arch, Board};
use crate::vm::files::Bundle;
use crate::vm::{self, run};

/// A CPU's data, where it does not matter what virtualizes the processor.
pub(crate) type PerCpu = vm::PerCpu<Local>;

/// The target's processor.
pub(crate) struct Processor;

#[cfg(target_arch = "aarch64")]
pub(crate) use crate::arm64::arch_impl::OnArm64 as On;
#[cfg(target_arch = "x86_64")]
pub(crate) use crate::x86::arch_impl::OnX86 as On;

/// The target's architecture; on x86-64, without what virtualizes the processor.
pub(crate) type Local = On<Processor>;

/// A kind of processor. One of them runs the image's guests.
pub(crate) trait Kind: Sized + 'static {
    /// What the guests share, once it exists; `None` for the [neutral](Local) one.
    #[inline(always)]
    fn host() -> Option<&'static Once<vm::Host<On<Self>>>>
    where
        On<Self>: Arch,
    {
        None
    }
}

/// Makes these the kinds of processors of the image.
macro_rules! kinds {
    ($($kind:ty),+) => {
        $(impl crate::image::Kind for $kind {
            #[inline(always)]
            fn host() -> Option<&'static spin::Once<crate::vm::Host<crate::image::On<Self>>>> {
                static HOST: spin::Once<crate::vm::Host<crate::image::On<$kind>>> = spin::Once::new();
                Some(&HOST)
            }
        })+
    };
}
pub(crate) use kinds;

/// What the image needs of the processor and the board besides the core's traits.
pub(crate) trait Bare: Board {
    fn stack_pointer() -> u64;

    fn frame_pointer() -> u64;

    /// Calls `main` on a stack and never returns.
    ///
    /// # Safety
    ///
    /// The stack is not in use.
    unsafe fn switch_stack(top: u64, main: extern "C" fn() -> !) -> !;

    /// Prepares the report of a panic: nothing interrupts it.
    fn quiesce();

    /// Stops another CPU after a panic.
    fn stop_other(cpu: &PerCpu);

    /// Writes text to the log's port, and to the screen.
    fn log_text(text: &str);
}

/// Through this the host tool finds the counters.
#[unsafe(no_mangle)]
pub(crate) static QUELL_BEACON: Beacon = Beacon::new();

/// Ends the run because a requirement of the hypervisor is not met.
pub(crate) fn refuse(code: ExitCode, reason: &dyn Display) -> ! {
    vm::end::refuse::<Local>(code, reason)
}

/// Reads the boot module, which this loader calls `kind`; ends the run if there is no valid one.
///
/// # Safety
///
/// The memory of the module is mapped, and is never modified.
pub(crate) unsafe fn read_module(module: Option<Range<u64>>, kind: &str) -> Bundle {
    let module = module.unwrap_or_else(|| {
        let why = format_args!("no bundle: give it as {kind} (QEMU: -initrd)");
        refuse(ExitCode::BadConfig, &why)
    });
    // SAFETY: the caller vouches for the memory.
    let bundle = unsafe {
        core::slice::from_raw_parts(module.start as *const u8, (module.end - module.start) as usize)
    };
    let bundle = Bundle::read(bundle).unwrap_or_else(|why| refuse(ExitCode::BadConfig, &why));
    vm::defects::make_defect(&bundle.config);
    if let Some(symbols) = bundle.symbols {
        panic::set_symbols(symbols);
    }
    bundle
}

/// Creates the guests that the bundle describes, and runs them on this CPU, which is the boot CPU,
/// and the others. `listen` is called when the guests exist, before any vCPU runs: requests may
/// come, and what is typed on the machine's console. It is told whether that is the only guest's.
pub(crate) fn run_guests<K: Kind>(
    bundle: Bundle,
    free: &mut FreeMemory,
    unix: Option<u64>,
    listen: impl FnOnce(bool),
) -> !
where
    On<K>: Arch,
{
    let host = create_host::<K>(bundle, free, unix);
    listen(host.bundle.console_is_the_machines());
    run::start(host);
    run::cpu_loop(host)
}

/// Creates what the guests share, and the guests. What this needs on the stack, some 20 KiB, is
/// free again when it returns: the CPU creates guests later on the same stack.
#[inline(never)]
fn create_host<K: Kind>(bundle: Bundle, free: &mut FreeMemory, unix: Option<u64>) -> &'static vm::Host<On<K>>
where
    On<K>: Arch,
{
    let host = vm::Host::new(bundle, free, unix).unwrap_or_else(|why| refuse(ExitCode::BadConfig, &why));
    let host = K::host().expect("the kind runs guests").call_once(|| host);
    console::charge_by(host);
    host.create_guests().unwrap_or_else(|why| refuse(ExitCode::BadConfig, &why));
    host.publish_counters(&QUELL_BEACON);
    host
}
