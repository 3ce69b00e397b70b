//! The real GICv3, through [`baremetal`]'s operations.
//!
//! Only group 1 is used, without LPIs. Ending an interrupt takes two steps (EOImode 1): the
//! priority drops when the hypervisor has seen it; the guest's own interrupts are deactivated by
//! the guest, through its list registers.

use baremetal::HardwareId;
use core::sync::atomic::{AtomicU64, Ordering};

use baremetal::aarch64::gic::{self, GROUP_1, ROUTING};
pub(crate) use baremetal::aarch64::gic::{
    SPECIAL, acknowledge, affinity, deactivate, end as drop_priority, find_redistributor, send,
};

use crate::arch::PerCpu;

static DISTRIBUTOR: AtomicU64 = AtomicU64::new(0);

/// Sets up the distributor: group 1, routing by affinity. Called once.
pub(crate) fn init_distributor(base: u64) -> Result<(), &'static str> {
    for bits in [0, ROUTING, ROUTING | GROUP_1] {
        gic::set_control(base, bits)?;
    }
    DISTRIBUTOR.store(base, Ordering::Relaxed);
    Ok(())
}

/// Routes a shared, level-triggered interrupt to a CPU.
pub(crate) fn route(intid: u32, cpu: &PerCpu) {
    gic::route(DISTRIBUTOR.load(Ordering::Relaxed), intid, cpu.id);
}

pub(crate) fn route_masked(intid: u32, cpu: &PerCpu) {
    gic::set_enabled(DISTRIBUTOR.load(Ordering::Relaxed), intid, false);
    aim(intid, cpu.id);
}

/// Routes one that is masked to the CPU with this affinity.
pub(crate) fn aim(intid: u32, affinity: HardwareId) {
    gic::route_as(DISTRIBUTOR.load(Ordering::Relaxed), intid, affinity, false);
}

/// Routes an edge-triggered interrupt to a CPU.
pub(crate) fn route_edge(intid: u32, cpu: &PerCpu) {
    gic::route_as(DISTRIBUTOR.load(Ordering::Relaxed), intid, cpu.id, true);
    set_enabled(intid, true);
}

/// Enables a shared interrupt, or masks it.
pub(crate) fn set_enabled(intid: u32, is_enabled: bool) {
    gic::set_enabled(DISTRIBUTOR.load(Ordering::Relaxed), intid, is_enabled);
}

/// Sets up the calling CPU's part, with these private interrupts enabled. The interface's registers
/// are open ([`controls`](crate::arm64::controls)).
pub(crate) fn init_cpu(redistributor: u64, enabled: u32) -> Result<(), &'static str> {
    gic::set_private(redistributor, enabled)?;
    gic::open_interface(true);
    Ok(())
}
