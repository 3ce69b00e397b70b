//! The report when the hypervisor fails.

use core::fmt::Write;
use core::panic::PanicInfo;
use core::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use hostlink::exit::ExitCode;

use super::console::LogPort;
use super::{Bare, Local, PerCpu, heap};
use crate::vm::arch::{Board, Cpus};

const MAX_FRAMES: usize = 32;

/// Symbol text of the bundle, address and length.
static SYMBOLS: (AtomicU64, AtomicUsize) = (AtomicU64::new(0), AtomicUsize::new(0));
static PANICKED: AtomicBool = AtomicBool::new(false);

/// Registers the bundle's symbols for backtraces.
pub(crate) fn set_symbols(text: &'static [u8]) {
    SYMBOLS.1.store(text.len(), Ordering::Relaxed);
    // Pairs with `lookup`: the length is visible.
    SYMBOLS.0.store(text.as_ptr().addr() as u64, Ordering::Release);
}

#[panic_handler]
fn on_panic(info: &PanicInfo<'_>) -> ! {
    begin_report();
    let _ = writeln!(LogPort, "quell: panic: {info}");
    finish_report(Local::frame_pointer(), None)
}

/// Whether a CPU has panicked: a CPU that is interrupted because of that stops.
pub(crate) fn has_panicked() -> bool {
    PANICKED.load(Ordering::Relaxed)
}

/// Reports a processor exception in the hypervisor itself, which `what` describes, and ends the
/// run. The backtrace begins at `address` and continues from `frame`.
pub(crate) fn report_exception(what: core::fmt::Arguments<'_>, frame: u64, address: u64) -> ! {
    begin_report();
    let _ = writeln!(LogPort, "quell: panic: {what}");
    finish_report(frame, Some(address))
}

/// Silences the other CPUs; the first CPU to get here reports, others stop.
fn begin_report() {
    Local::quiesce();
    // Pairs with the same exchange on another CPU: one of them reports.
    if PANICKED.swap(true, Ordering::SeqCst) {
        Local::stop();
    }
    let Some(me) = PerCpu::try_current() else { return };
    for cpu in PerCpu::online().filter(|cpu| cpu.index != me.index) {
        Local::stop_other(cpu);
    }
}

fn finish_report(frame: u64, address: Option<u64>) -> ! {
    let mut port = LogPort;
    if let Some(cpu) = PerCpu::try_current() {
        let exit = cpu.last_exit.load(Ordering::Relaxed);
        let _ = match cpu.current_vcpu.load(Ordering::Relaxed) {
            0 => writeln!(port, "  on CPU {}, no vCPU", cpu.index),
            row => writeln!(port, "  on CPU {}, vCPU of row {}, last exit {exit:#x}", cpu.index, row - 1),
        };
    }
    if let Some(damage) = heap::damage() {
        let _ = writeln!(port, "  {damage}");
    }
    let _ = writeln!(port, "  backtrace:");
    if let Some(address) = address {
        print_frame(address);
    }
    let mut frame = frame;
    for _ in 0..MAX_FRAMES {
        // A frame pointer is aligned and points into known memory; any other value ends the walk.
        if frame == 0 || !frame.is_multiple_of(8) || !heap::is_stack(frame) {
            break;
        }
        let words = frame as *const u64;
        // SAFETY: the address is aligned, and the two words there are in a mapped stack.
        let (next, return_address) = unsafe { (words.read(), words.add(1).read()) };
        if return_address == 0 {
            break;
        }
        print_frame(return_address);
        if next <= frame {
            break;
        }
        frame = next;
    }
    Local::exit(ExitCode::Panic)
}

fn print_frame(address: u64) {
    let _ = match lookup(address) {
        Some((name, offset)) => writeln!(LogPort, "    {address:#10x} {name}+{offset:#x}"),
        None => writeln!(LogPort, "    {address:#10x}"),
    };
}

/// Finds the symbol that covers `address` by reading the sorted text line by line.
fn lookup(address: u64) -> Option<(&'static str, u64)> {
    // Pairs with `set_symbols`.
    let base = SYMBOLS.0.load(Ordering::Acquire);
    if base == 0 {
        return None;
    }
    let length = SYMBOLS.1.load(Ordering::Relaxed);
    // SAFETY: `set_symbols` was given a static slice.
    let text = unsafe { core::slice::from_raw_parts(base as *const u8, length) };
    let text = core::str::from_utf8(text).ok()?;
    let mut best = None;
    for line in text.lines() {
        let (start, name) = line.split_once(' ')?;
        let start = u64::from_str_radix(start, 16).ok()?;
        if start > address {
            break;
        }
        best = Some((name, address - start));
    }
    best
}
