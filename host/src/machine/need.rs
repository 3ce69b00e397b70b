//! The memory that a machine needs.

use crate::size::MIB;

/// Memory of the machine beyond the guest's: the hypervisor's own, and the bundle that stays in
/// memory until the guest has been made from it.
pub(crate) fn memory_around(guest_bytes: u64, bundle_bytes: u64) -> u64 {
    let given = guest_bytes + bundle_bytes;
    (given + given / HEAP_FRACTION).next_multiple_of(64 * MIB) + 256 * MIB
}

/// Memory of a machine whose guests have this much memory and this many vCPUs together: theirs, and
/// what is around them.
pub(crate) fn memory_for_guests(guest_bytes: u64, guests: u64, vcpus: u32, bundle_bytes: u64) -> u64 {
    /// Consoles' rings, tables' roots and the like of a guest.
    const GUEST_BYTES: u64 = 4 * MIB;
    /// The state of a vCPU.
    const VCPU_BYTES: u64 = 128 << 10;
    let states = guests * GUEST_BYTES + u64::from(vcpus) * VCPU_BYTES;
    memory_around(guest_bytes, bundle_bytes) + states.next_multiple_of(MIB)
}

/// The hypervisor uses half of this fraction of the memory that it manages for its heap, in
/// addition to its fixed size.
const HEAP_FRACTION: u64 = 128;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_machine_has_room_beyond_the_guest_and_its_bundle() {
        assert_eq!(memory_around(512 * MIB, 16 * MIB), (576 + 256) * MIB);
        assert!(memory_around(512 * MIB, 300 * MIB) >= (512 + 300 + 256) * MIB);
        assert!(memory_around(64 << 30, 16 * MIB) >= (64 << 30) + (256 + 256) * MIB, "a heap for 64 GiB");
    }

    #[test]
    fn each_guest_and_each_vcpu_takes_some_more() {
        let need = |guests, vcpus| memory_for_guests(512 * MIB, guests, vcpus, 16 * MIB);
        assert!(need(1, 1) > memory_around(512 * MIB, 16 * MIB));
        assert_eq!(need(16, 16) - need(1, 16), 60 * MIB);
        assert_eq!(need(1, 1024) - need(1, 16), 126 * MIB);
        assert!(need(3, 1).is_multiple_of(MIB));
    }
}
