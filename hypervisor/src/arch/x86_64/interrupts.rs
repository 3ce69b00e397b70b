//! Vectors and handlers of the real machine.
//!
//! Interrupts are taken in few places: right after an exit (on SVM between STGI and CLI) or a
//! refused entry, while a CPU waits, between the steps of a reset or of a change of memory, and
//! after many turns without an entry. Everything else runs with interrupts off, so a handler never
//! meets a lock that its own CPU holds, and may take any lock.

use baremetal::x86_64::interrupts::{Frame, VECTOR_SPURIOUS};
use core::arch::naked_asm;
use core::fmt::Write;
use core::sync::atomic::{AtomicPtr, Ordering};
use x86_64::registers::control::Cr2;

use super::{apic, cpu, pci};
use crate::arch::{On, PerCpu};
use crate::image::console::LogPort;
use crate::image::{Processor, panic};
use crate::svm::vendor::OnSvm;
use crate::vm;
use crate::vm::GUEST;
use crate::vm::arch::Arch;
use crate::x86::vectors;

baremetal::interrupt_stubs!(volatile => dispatch);

type Dispatch = extern "C" fn(&Frame<0>);

/// The handler, for the kind of processor that runs the guests. Before it is known, any.
static DISPATCH: AtomicPtr<()> = AtomicPtr::new(dispatch_for::<On<OnSvm<Processor>>> as Dispatch as *mut ());

/// Interrupts are for the guests of `A` from here on.
pub(super) fn serve<A: Arch>() {
    DISPATCH.store(dispatch_for::<A> as Dispatch as *mut (), Ordering::Relaxed);
}

#[unsafe(naked)]
extern "C" fn dispatch(_: &Frame<0>) {
    naked_asm!("jmp qword ptr [rip + {}]", sym DISPATCH)
}

extern "C" fn dispatch_for<A: Arch>(frame: &Frame<0>) {
    match frame.vector() {
        vector @ 0..=31 => on_exception(vector, frame),
        vectors::TIMER => {
            vm::interrupts::on_timer::<A>();
            apic::end_of_interrupt();
        }
        vectors::KICK => {
            vm::interrupts::on_kick::<A>();
            apic::end_of_interrupt();
        }
        // The vCPU that it was for has left guest mode, and looks before it is there again.
        vectors::POSTED => apic::end_of_interrupt(),
        vectors::SERIAL => {
            vm::interrupts::on_serial_interrupt::<A>();
            apic::end_of_interrupt();
        }
        vectors::CONTROL => {
            vm::interrupts::on_control_interrupt::<A>();
            apic::end_of_interrupt();
        }
        vectors::IOMMU => {
            if let Some(devices) = pci::devices() {
                devices.report_events();
            }
            apic::end_of_interrupt();
        }
        // Spurious interrupts get no end of interrupt; others are never enabled.
        VECTOR_SPURIOUS => {}
        // They are masked, and this one was in flight. It bypassed the local APIC.
        vector if pic::VECTORS.contains(&vector) => log::warn!(target: GUEST, "interrupt of an 8259"),
        vector => {
            let cpu = PerCpu::current().index;
            if !pci::devices().is_some_and(|devices| devices.routes.deliver(cpu, vector)) {
                log::warn!(target: GUEST, "interrupt on unused vector {vector:#x}");
            }
            apic::end_of_interrupt();
        }
    }
}

/// A processor exception in the hypervisor itself.
fn on_exception(vector: u8, frame: &Frame<0>) {
    // NMIs stop the other CPUs after a panic; any other NMI was not sent by the hypervisor.
    if vector == 2 {
        if panic::has_panicked() {
            cpu::stop();
        }
        // The interrupted code may hold the log's lock.
        let _ = writeln!(LogPort, "quell: warning: unexpected NMI");
        return;
    }
    panic::report_exception(
        format_args!(
            "exception {vector} ({}), error code {:#x}, CR2 {:#x}\n  {frame:x?}",
            exception_name(vector),
            frame.error(),
            Cr2::read_raw(),
        ),
        frame.rbp(),
        frame.rip(),
    )
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
