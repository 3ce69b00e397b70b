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

use crate::image::{self, Kind, Local, On, PerCpu};
use crate::sched::CpuIndex;
use crate::vm;
use crate::vm::arch::{Arch, Board, Clock, Cpus};

impl<V: 'static> Clock for On<V> {
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
// that CPU has started; what others read of it is atomic.
unsafe impl<V: 'static> Cpus for On<V> {
    type CpuData = cpu::CpuData;

    #[inline(always)]
    fn this_cpu() -> &'static vm::PerCpu<Self> {
        vm::PerCpu::<Self>::current()
    }

    #[inline(always)]
    fn cpu(index: CpuIndex) -> Option<&'static vm::PerCpu<Self>> {
        vm::PerCpu::<Self>::get(index)
    }

    fn take_interrupts() {
        cpu::take_interrupts();
    }

    fn wait_for_interrupt() {
        cpu::wait_for_interrupt();
    }

    #[inline(always)]
    fn kick(cpu: &vm::PerCpu<Self>) {
        cpu::kick(cpu.plain());
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
impl<V: Kind> Board for On<V> {
    #[inline(always)]
    fn host() -> Option<&'static vm::Host<Self>>
    where
        Self: Arch,
    {
        V::host()?.get()
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
    fn must_clean_code() -> bool {
        cpu::must_clean_code()
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

    #[cfg(target_arch = "x86_64")]
    fn chosen_console() -> Option<u32> {
        console::chosen()
    }

    #[cfg(target_arch = "x86_64")]
    fn show(text: &mut dyn Iterator<Item = u8>, alone: bool) {
        console::show(text, alone);
    }

    fn exit(code: ExitCode) -> ! {
        if let Some(damage) = image::heap::damage().filter(|_| !image::panic::has_panicked()) {
            panic!("{damage}");
        }
        cpu::exit(code)
    }
}
