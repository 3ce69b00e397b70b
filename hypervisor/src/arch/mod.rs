//! The architectures. Each is a module of the same shape, which implements the
//! [traits](crate::vm::arch) that the core is generic over; the target's one is used.

#[cfg(target_arch = "aarch64")]
mod aarch64;
#[cfg(target_arch = "x86_64")]
mod x86_64;

#[cfg(target_arch = "aarch64")]
use aarch64::board::clock;
#[cfg(target_arch = "aarch64")]
use aarch64::{board::console, boot::cpu};
#[cfg(target_arch = "x86_64")]
use x86_64::clock;
#[cfg(target_arch = "x86_64")]
use x86_64::{console, cpu};

use hostlink::exit::ExitCode;

use crate::image::{self, Host, Local, PerCpu};
use crate::vm::arch::{Board, Clock, Cpus};

impl Clock for Local {
    #[inline(always)]
    fn now() -> u64 {
        clock::now()
    }

    #[inline(always)]
    fn hz() -> u64 {
        clock::hz()
    }
}

// SAFETY: each CPU's block is found by a register of the CPU's own, which its entry sets before any
// code reads it. A `CpuData` is touched by the CPU that it belongs to, and by the boot CPU before
// that CPU has started.
unsafe impl Cpus for Local {
    type CpuData = cpu::CpuData;

    #[inline(always)]
    fn this_cpu() -> &'static PerCpu {
        PerCpu::current()
    }

    #[inline(always)]
    fn cpu(index: u32) -> Option<&'static PerCpu> {
        PerCpu::get(index)
    }

    fn take_interrupts() {
        cpu::take_interrupts();
    }

    fn wait_for_interrupt() {
        cpu::wait_for_interrupt();
    }

    #[inline(always)]
    fn kick(cpu: &PerCpu) {
        cpu::kick(cpu);
    }

    #[inline(always)]
    fn arm_timer(deadline: u64, now: u64) {
        clock::arm_timer(deadline, now);
    }

    fn stop() -> ! {
        cpu::stop()
    }
}

/// AMD64's data caches are coherent regardless of the guest: no cleaning is needed there.
impl Board for Local {
    #[inline(always)]
    fn host() -> Option<&'static Host> {
        image::host()
    }

    #[cfg(target_arch = "aarch64")]
    #[inline(always)]
    fn mark(phase: hostlink::phase::Phase) {
        cpu::mark(phase);
    }

    #[cfg(target_arch = "aarch64")]
    fn must_clean() -> bool {
        cpu::must_clean()
    }

    #[cfg(target_arch = "aarch64")]
    fn clean(memory: core::ops::Range<u64>) {
        cpu::clean(memory);
    }

    unsafe fn zero(start: u64, size: u64) {
        // SAFETY: the caller vouches for the range.
        unsafe { cpu::zero(start, size) };
    }

    fn heap_used() -> u64 {
        image::heap::used()
    }

    fn heap_left() -> u64 {
        image::heap::left()
    }

    fn stack_left() -> u64 {
        image::blocks::stack_left()
    }

    fn receive_control() -> Option<u8> {
        console::receive_control()
    }

    fn send_control(byte: u8) {
        console::send_control(byte);
    }

    fn exit(code: ExitCode) -> ! {
        cpu::exit(code)
    }
}
