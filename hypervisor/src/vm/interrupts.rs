//! Handling of the CPU's own interrupts: kicks, its timer, the serial ports.

use core::sync::atomic::Ordering;
use hostlink::counters::Counter;

use super::arch::Arch;
use super::counting;
use super::percpu::PerCpu;
use crate::sched::VcpuIndex;
use crate::sched::notify::Published;

/// Makes the vCPU that runs here check everything before it goes on.
fn request_attention<A: Arch>(posted: Published) {
    let Some(host) = A::host() else { return };
    let vcpu = A::this_cpu().current_vcpu.load(Ordering::Relaxed);
    // This may wake a vCPU that has just blocked. That is harmless: it blocks again.
    if let Some(row) = vcpu.checked_sub(1) {
        host.notify(VcpuIndex(row), posted);
    }
}

/// A kick has arrived. An emulator may delay its delivery until the next tick
/// ([`Host::tick_max`](super::Host::tick_max)).
pub fn on_kick<A: Arch>() {
    let cpu = A::this_cpu();
    cpu.was_kicked.set(true);
    if let Some(due) = cpu.tick_due().filter(|&due| due <= A::now()) {
        count_late_kick(cpu, due);
    }
    cpu.kicked_at.store(0, Ordering::Relaxed);
    A::let_go(cpu);
}

/// The timer fired: the vCPU or idle loop here checks the time before it goes on.
pub fn on_timer<A: Arch>() {
    let cpu = A::this_cpu();
    if let Some(due) = cpu.tick_due() {
        count_late_kick(cpu, due);
    }
    cpu.disarmed();
    request_attention::<A>(Published::NOTHING);
}

/// The tick was due: counts a kick that was sent long before and has not been taken. Recent kicks
/// may still have been in flight.
#[cold]
fn count_late_kick<A: Arch>(cpu: &PerCpu<A>, due: u64) {
    let long_before = due.saturating_sub(cpu.tick_max.get() / 2);
    if (1..long_before).contains(&cpu.kicked_at.swap(0, Ordering::Relaxed)) {
        counting::count_here::<A>(Counter::KickLate);
    }
}

/// The control channel has received something.
pub fn on_control_interrupt<A: Arch>() {
    if let Some(host) = A::host() {
        request_attention::<A>(host.set_requests_wait(true));
    }
}

/// The real console has received something. It is for the guest whose console is there, if that
/// exists: otherwise for nobody, and dropped, because a level-triggered interrupt would come again
/// and again. A key may choose another guest before.
pub fn on_serial_interrupt<A: Arch>() {
    let Some(host) = A::host() else { return };
    // The lock keeps the guest from being freed meanwhile.
    let guests = host.guests.lock();
    let guest = |number: u32| guests.get(number as usize)?.as_ref().map(|guest| guest.vm());
    if let Some((number, vm)) = A::chosen_console().and_then(|number| Some((number, guest(number)?))) {
        host.shown.store(number, Ordering::Relaxed);
        if let Some(rings) = &vm.rings {
            rings.show(|shown| A::show(shown, true));
        }
    }
    let shown = guest(host.shown.load(Ordering::Relaxed));
    A::receive_console(shown.filter(|vm| !vm.is_arriving()));
}
