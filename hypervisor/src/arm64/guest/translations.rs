//! The translations of a guest's devices: they follow its slots.

use iommu::Stuck;
use paging::Progress;
use stay::iommu::mirror::Slots;

use crate::arm64::processor::Arm64;
use crate::iommu::lines::Wired;
use crate::owned::Domains;
use crate::vm::dma::Tickets;
use crate::vm::{GUEST, Vm};

/// Adds the guest's slots of memory.
fn look_up<A: Arm64>(vm: &Vm<A>, slots: &mut Slots) {
    vm.space.slots().memory().for_each(|slot| {
        if !slot.is_device() {
            // There is a place for each.
            let _ = slots.try_push(*slot);
        }
    });
}

/// Has the SMMUs forget what is no memory of the guest's any more. Stage 2 of the vCPUs is another
/// table: what changes there without the slots leaves devices alone.
///
/// # Errors
///
/// [`Stuck`] if one takes no more commands.
pub fn begin_flush<A: Arm64>(vm: &Vm<A>, domains: &Domains<Wired>) -> Result<Tickets, Stuck> {
    let Some(mirror) = vm.guest.mirror() else { return Ok(Tickets::new()) };
    // The commands are given with the lock held: who finds nothing to unmap finds their tickets.
    let mut mirror = mirror.lock();
    mirror.follow(|slots| look_up(vm, slots), &A::TLB, |invalidation| domains.begin(invalidation))
}

/// Makes a step of mapping the guest's memory for its devices.
pub fn fill<A: Arm64>(vm: &Vm<A>) -> Progress {
    let Some(mirror) = vm.guest.mirror() else { return Progress::Done };
    let filled = mirror.lock().fill(|slots| look_up(vm, slots));
    filled.unwrap_or_else(|why| {
        log::error!(target: GUEST, "devices do not reach all memory: {why}");
        Progress::Done
    })
}
