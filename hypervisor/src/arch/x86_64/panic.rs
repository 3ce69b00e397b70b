//! The end of the hypervisor: what is reported when it fails, and how the run ends.

use core::fmt::Write;
use core::panic::PanicInfo;
use core::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};

use hostlink::exit::{self, ExitCode};
use x86_64::instructions::port::Port;
use x86_64::registers::control::Cr2;

use super::console::panic_port;
use super::interrupts::Frame;
use super::percpu::PerCpu;
use super::{apic, memory};

/// Deepest backtrace.
const MAX_FRAMES: usize = 32;

/// Symbol text of the bundle, address and length.
static SYMBOLS: (AtomicU64, AtomicUsize) = (AtomicU64::new(0), AtomicUsize::new(0));
static PANICKED: AtomicBool = AtomicBool::new(false);

/// Remembers the bundle's symbols for backtraces.
pub(super) fn set_symbols(text: &'static [u8]) {
    SYMBOLS.1.store(text.len(), Ordering::Relaxed);
    SYMBOLS.0.store(text.as_ptr().addr() as u64, Ordering::Release);
}

/// Ends the run with `code`. Without QEMU's exit device the CPUs stop here.
pub(super) fn exit(code: ExitCode) -> ! {
    // SAFETY: the port is QEMU's exit device or nothing.
    unsafe { Port::new(exit::PORT).write(code as u32) };
    stop()
}

/// Stops the calling CPU for ever.
fn stop() -> ! {
    loop {
        x86_64::instructions::interrupts::disable();
        x86_64::instructions::hlt();
    }
}

/// Ends the run because something that we need is not as it must be.
pub(super) fn refuse(code: ExitCode, reason: &dyn core::fmt::Display) -> ! {
    log::error!("{reason}");
    exit(code)
}

#[panic_handler]
fn on_panic(info: &PanicInfo<'_>) -> ! {
    begin_report();
    let _ = writeln!(panic_port(), "quell: panic: {info}");
    let rbp: u64;
    // SAFETY: reads a register.
    unsafe { core::arch::asm!("mov {}, rbp", out(reg) rbp, options(nomem, nostack)) };
    finish_report(rbp, None)
}

/// A processor exception in the hypervisor itself.
pub(super) fn on_exception(vector: u8, frame: &Frame) {
    // NMIs stop the other CPUs when one has panicked; any other NMI is none of our making.
    if vector == 2 {
        if PANICKED.load(Ordering::Relaxed) {
            stop();
        }
        log::warn!("unexpected NMI");
        return;
    }
    begin_report();
    let _ = writeln!(
        panic_port(),
        "quell: panic: exception {vector} ({}), error code {:#x}, CR2 {:#x}\n  {frame:x?}",
        exception_name(vector),
        frame.error,
        Cr2::read_raw(),
    );
    finish_report(frame.rbp, Some(frame.rip))
}

fn exception_name(vector: u8) -> &'static str {
    match vector {
        0 => "divide error",
        6 => "invalid opcode",
        8 => "double fault, most likely a stack overflow",
        13 => "general protection",
        14 => "page fault",
        18 => "machine check",
        _ => "see the manual",
    }
}

/// Silences the other CPUs; the first CPU to get here reports, others stop.
fn begin_report() {
    x86_64::instructions::interrupts::disable();
    // SAFETY: the panic may have come between CLGI and STGI, where NMIs would be held.
    unsafe { core::arch::asm!("stgi", options(nomem, nostack)) };
    if PANICKED.swap(true, Ordering::SeqCst) {
        stop();
    }
    let Some(me) = PerCpu::try_current() else { return };
    for cpu in PerCpu::all().filter(|cpu| cpu.index != me.index && cpu.online.load(Ordering::Relaxed)) {
        apic::send_nmi(cpu.apic_id);
    }
}

fn finish_report(rbp: u64, rip: Option<u64>) -> ! {
    let mut port = panic_port();
    if let Some(cpu) = PerCpu::try_current() {
        let exit = cpu.last_exit.load(Ordering::Relaxed);
        let _ = match cpu.current_vcpu.load(Ordering::Relaxed) {
            0 => writeln!(port, "  on CPU {}, no vCPU", cpu.index),
            vcpu => writeln!(port, "  on CPU {}, vCPU {}, last exit {exit:#x}", cpu.index, vcpu - 1),
        };
    }
    let _ = writeln!(port, "  backtrace:");
    if let Some(rip) = rip {
        print_frame(rip);
    }
    let mut frame = rbp;
    for _ in 0..MAX_FRAMES {
        // A frame pointer is aligned and points into memory that we have; anything else ends the walk.
        if frame == 0 || !frame.is_multiple_of(8) || !memory::is_stack(frame) {
            break;
        }
        let words = frame as *const u64;
        // SAFETY: the address lies in a mapped stack, 16 bytes below its end.
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
    exit(ExitCode::Panic)
}

fn print_frame(address: u64) {
    let _ = match lookup(address) {
        Some((name, offset)) => writeln!(panic_port(), "    {address:#10x} {name}+{offset:#x}"),
        None => writeln!(panic_port(), "    {address:#10x}"),
    };
}

/// Finds the symbol that covers `address` by reading the sorted text line by line.
fn lookup(address: u64) -> Option<(&'static str, u64)> {
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
