//! The translations of a guest's devices: they follow its slots.

use iommu::Stuck;
use paging::Progress;

use crate::arm64::processor::Arm64;
use crate::iommu::lines::Wired;
use crate::iommu::mirror::Slots;
use crate::owned::Domains;
use crate::vm::dma::Tickets;
use crate::vm::{GUEST, Vm};

/// Looks up the guest's slots of memory.
fn look_up<A: Arm64>(vm: &Vm<A>, slots: &mut Slots) {
    slots.clear();
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
    let mirror = &mut *mirror.lock();
    look_up(vm, &mut mirror.slots);
    mirror.follow(|invalidation| domains.begin(invalidation))
}

/// Makes a step of mapping the guest's memory for its devices.
pub fn fill<A: Arm64>(vm: &Vm<A>) -> Progress {
    let Some(mirror) = vm.guest.mirror() else { return Progress::Done };
    let mut mirror = mirror.lock();
    look_up(vm, &mut mirror.slots);
    mirror.fill().unwrap_or_else(|why| {
        log::error!(target: GUEST, "devices do not reach all memory: {why}");
        Progress::Done
    })
}
