//! Slots of devices, and translations for devices.

use paging::{Gpa, Level, Permissions, PhysAddr, Progress};

use super::arena::*;
use super::untouched;
use crate::space::Fault;
use crate::{AccessError, Slot, SlotError, SlotFlags, SlotId};

/// RAM, and a device's registers behind it, whose backing does not exist.
fn ram_and_registers() -> [Slot; 2] {
    let registers = Slot { flags: SlotFlags::DEVICE, ..slot(1, 4 * MIB, 4 * PAGE) };
    [slot(0, 0, 4 * MIB), registers]
}

#[test]
fn registers_are_mapped_uncached_and_are_not_executed() {
    let (space, _) = space(&ram_and_registers(), Level::Page2M);
    assert_eq!(space.fault(Gpa(4 * MIB), false), Fault::Installed(Level::Page4K));
    let mapping = space.tables().query(4 * MIB).unwrap();
    assert_eq!(mapping.permissions, Permissions::RW | Permissions::DEVICE);
    assert_eq!(space.fault(Gpa(0), false), Fault::Installed(Level::Page2M));
    assert_eq!(space.tables().query(0).unwrap().permissions, Permissions::RWX);
    assert_eq!(space.audit().unwrap().wrong_count, 0);
}

#[test]
fn software_does_not_touch_registers() {
    let slots = untouched(&ram_and_registers());
    let memory = slots.memory();
    let gpa = Gpa(4 * MIB + 8);
    // An access would be to an address without memory, and end the test.
    assert_eq!(memory.read(gpa, &mut [0; 8]), Err(AccessError::Unmapped { gpa }));
    assert_eq!(memory.write(gpa, &[0; 8]), Err(AccessError::Unmapped { gpa }));
    assert_eq!(memory.read_u64(gpa), Err(AccessError::Unmapped { gpa }));
    assert!(memory.locate(gpa, 8).is_err());
    let beyond = Gpa(4 * MIB);
    assert_eq!(memory.write(Gpa(4 * MIB - 4), &[0; 8]), Err(AccessError::Unmapped { gpa: beyond }));
}

#[test]
fn p16_all_of_a_slot_is_mapped_before_a_device_uses_it() {
    // The middle slot is not aligned to large pages.
    let slots = [slot(0, 0, 4 * MIB), slot(1, 4 * MIB + PAGE, 3 * MIB), slot(2, 8 * MIB, 2 * MIB)];
    let (space, _) = space(&slots, Level::Page2M);
    // A vCPU was there before.
    touch(&space, 5 * MIB..5 * MIB + PAGE);
    let mut prefault = space.prefault(SlotId(1), slots[1].gpa).unwrap();
    assert_eq!(space.remove(SlotId(0)).err(), Some(SlotError::Busy), "nothing is freed meanwhile");
    let mut steps = 0;
    while prefault.step(96) != Progress::Done {
        steps += 1;
    }
    assert_eq!(steps, 768 / 96 - 1, "each step has as many pages as it may");
    drop(prefault);
    for gpa in slots[1].range().step_by(PAGE as usize) {
        let mapping = space.tables().query(gpa).unwrap();
        assert_eq!(mapping.pa, PhysAddr(slots[1].host.0 + gpa - slots[1].gpa.0));
        assert!(mapping.permissions.contains(Permissions::WRITE));
    }
    assert_eq!(leaf_count(&space, slots[0].range()) + leaf_count(&space, slots[2].range()), 0);
}

#[test]
fn p16_a_slot_is_mapped_by_large_pages_and_read_only_memory_without_stores() {
    let slots = [slot(0, 0, 4 * MIB), Slot { flags: SlotFlags::READ_ONLY, ..slot(1, 4 * MIB, PAGE) }];
    let (space, _) = space(&slots, Level::Page2M);
    for slot in &slots {
        assert_eq!(space.prefault(slot.id, slot.gpa).unwrap().step(10), Progress::Done);
    }
    assert_eq!(leaf_count(&space, 0..4 * MIB), 2);
    assert!(!space.tables().query(4 * MIB).unwrap().permissions.contains(Permissions::WRITE));
}
