//! Handling of the real machine's interrupts.
//!
//! They are always masked at EL2, and polled: after an exit, and while idling. So a handler never
//! meets a lock that its own CPU holds, and may take any lock.

use core::sync::atomic::{AtomicU32, Ordering};

use super::{clock, console, gic, pci};
use crate::arch::aarch64::boot::cpu;
use crate::arch::{Local, PerCpu};
use crate::devices::virt::map::{PHYSICAL_TIMER_INTID, VIRTUAL_TIMER_INTID};
use crate::image::panic;
use crate::vm;
use crate::vm::GUEST;

/// "Check again": sent to a CPU that should leave guest mode or idling.
pub(crate) const KICK: u32 = 0;
/// Another CPU has panicked.
pub(crate) const STOP: u32 = 1;
/// Maintenance of the virtual CPU interface.
pub(crate) const MAINTENANCE: u32 = 25;
/// EL2's physical timer.
pub(crate) const TIMER: u32 = 26;
/// The virtual timer, which belongs to the guest.
pub(crate) const VIRTUAL_TIMER: u32 = VIRTUAL_TIMER_INTID as u32;
/// EL1's physical timer, which also belongs to the guest.
pub(crate) const PHYSICAL_TIMER: u32 = PHYSICAL_TIMER_INTID as u32;

/// The private interrupts in use.
pub(crate) const PRIVATE: u32 =
    1 << KICK | 1 << STOP | 1 << MAINTENANCE | 1 << TIMER | 1 << VIRTUAL_TIMER | 1 << PHYSICAL_TIMER;

/// The console's and the control channel's interrupt; 0 if there is none.
static CONSOLE: AtomicU32 = AtomicU32::new(0);
static CONTROL: AtomicU32 = AtomicU32::new(0);

/// Routes the interrupts of console and control channel to `cpu`.
pub(crate) fn route_ports(cpu: &PerCpu, console: Option<u32>, control: Option<u32>) {
    for (place, intid) in [(&CONSOLE, console), (&CONTROL, control)] {
        if let Some(intid) = intid {
            place.store(intid, Ordering::Relaxed);
            gic::route(intid, cpu);
        }
    }
}

/// Takes all pending interrupts. Each iteration removes one, and its source is then quiet or
/// masked.
pub(crate) fn take_all() {
    loop {
        let intid = gic::acknowledge();
        if intid >= gic::SPECIAL {
            return;
        }
        gic::drop_priority(intid);
        handle(intid);
    }
}

fn handle(intid: u32) {
    match intid {
        KICK => vm::interrupts::on_kick::<Local>(),
        STOP if panic::has_panicked() => cpu::stop(),
        STOP => log::warn!(target: GUEST, "a CPU was to be stopped, but none has panicked"),
        TIMER => {
            clock::quiet_timer();
            vm::interrupts::on_timer::<Local>();
        }
        // It stays active, and so is not signalled again, until the guest has handled it.
        VIRTUAL_TIMER | PHYSICAL_TIMER => {
            let fired = &PerCpu::current().arch.timers_fired;
            return fired.set(fired.get() | 1 << intid);
        }
        // Its condition ended with the exit: the list registers are empty.
        MAINTENANCE => PerCpu::current().arch.maintenance_fired.set(true),
        _ if intid == CONSOLE.load(Ordering::Relaxed) => vm::interrupts::on_serial_interrupt::<Local>(),
        _ if intid == CONTROL.load(Ordering::Relaxed) => {
            console::pause_control();
            vm::interrupts::on_control_interrupt::<Local>();
        }
        _ if pci::on_interrupt(intid) => {}
        _ => log::warn!(target: GUEST, "interrupt {intid} is used by nobody"),
    }
    gic::deactivate(intid);
}
