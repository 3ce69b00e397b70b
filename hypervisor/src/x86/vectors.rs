//! The real machine's vectors.
//!
//! The upper four bits of a vector are its priority class: the local APIC delivers interrupts of a
//! higher class first (APM volume 2, 16.6.4). The hypervisor's own have the highest class. So
//! whatever the devices of guests do, a CPU that takes interrupts takes these first.

use baremetal::HardwareId;
use pci::Message;

use crate::iommu::remaps::INTERRUPTS_AT;

/// An IOMMU has logged something. The lowest of the hypervisor's own: guests can cause it.
pub const IOMMU: u8 = 0xf0;
/// The real COM1 has received something.
pub const SERIAL: u8 = 0xf1;
/// The control channel has received something.
pub const CONTROL: u8 = 0xf2;
/// The one-shot timer.
pub const TIMER: u8 = 0xf3;
/// "Check again": sent to a CPU that should leave guest mode or idling.
pub const KICK: u8 = 0xf4;
/// "Take what is posted": for a processor that does so in guest mode. Elsewhere it is of no effect.
pub const POSTED: u8 = 0xf5;

/// Destinations in interrupt remapping tables, in messages and of I/O APICs have 8 bits, of which
/// all ones mean everybody.
pub fn destination(id: HardwareId) -> Option<u8> {
    u8::try_from(id.0).ok().filter(|&id| id != u8::MAX)
}

/// The message that interrupts a CPU, fixed and edge-triggered, where nothing remaps it (Intel SDM
/// volume 3A, "Message Signalled Interrupts").
pub fn message(to: u8, vector: u8) -> Message {
    Message { address: INTERRUPTS_AT | u64::from(to) << 12, data: vector.into() }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::iommu::routes::FUNCTIONS;

    #[test]
    fn u43_the_hypervisors_own_interrupts_outrank_those_of_guests_devices() {
        const SPURIOUS: u8 = 0xff;
        // In the order of their delivery.
        let own = [POSTED, KICK, TIMER, CONTROL, SERIAL, IOMMU];
        assert!(own.is_sorted_by(|first, next| first > next) && !own.contains(&SPURIOUS));
        for vector in own {
            assert!(FUNCTIONS.chain(pic::VECTORS).all(|other| other >> 4 < vector >> 4), "{vector:#x}");
        }
        for vector in FUNCTIONS {
            assert!(vector >= 32, "{vector:#x} is an exception");
            assert!(!pic::VECTORS.contains(&vector), "{vector:#x} is not ended at the local APIC");
        }
    }

    #[test]
    fn u42_ids_that_do_not_fit_are_no_destinations() {
        let given = [0, 1, 0xfe, 0xff, 0x100, 0x1_0000_0001].map(|id| destination(HardwareId(id)));
        assert_eq!(given, [Some(0), Some(1), Some(0xfe), None, None, None]);
    }

    #[test]
    fn a_message_has_its_destination_in_bits_19_to_12() {
        assert_eq!(message(0xfe, IOMMU), Message { address: 0xfeef_e000, data: 0xf0 });
        assert_eq!(message(1, 0x31), Message { address: 0xfee0_1000, data: 0x31 });
    }
}
