//! The interrupts of the real function: what the hypervisor writes, never a guest.

use super::capability::{Msi, Msix};
use crate::config::{Address, ConfigSpace};
use crate::msix::Message;

/// Message control of MSI, in the upper half of the first double word: enabled, and how many
/// messages are.
const MSI_ENABLE: u32 = 1 << 16;
const MSI_COUNT: u32 = 7 << 20;
/// Message control of MSI-X: enabled; all are masked.
const MSIX_ENABLE: u32 = 1 << 31;
const MSIX_MASK: u32 = 1 << 30;

impl Msi {
    /// Has the function at `address` send `message` as its only one, or none.
    ///
    /// It is disabled while it changes, and an interrupt of that time is lost: so what is on, and
    /// stays on, must not be changed. False, and disabled, if the message does not fit: it is of 16
    /// bits, at an address that may have to be below 4 GiB (PCI, 6.8.1).
    pub fn send(&self, space: &impl ConfigSpace, address: Address, message: Option<Message>) -> bool {
        let at = u16::from(self.offset);
        let control = space.read(address, at) & !(MSI_ENABLE | MSI_COUNT);
        space.write(address, at, control);
        let Some(message) = message else { return true };
        let high = (message.address >> 32) as u32;
        if message.data > 0xffff || message.address & 3 != 0 || (high != 0 && !self.is_64_bit) {
            return false;
        }
        space.write(address, at + 4, message.address as u32);
        let data = if self.is_64_bit {
            space.write(address, at + 8, high);
            at + 12
        } else {
            at + 8
        };
        space.write(address, data, message.data);
        if self.has_masks {
            // All others stay masked.
            space.write(address, data + 4, !1);
        }
        space.write(address, at, control | MSI_ENABLE);
        true
    }
}

impl Msix {
    /// Enables MSI-X of the function at `address`, or disables it, and masks all vectors, or leaves
    /// that to the table (PCI, 6.8.2.3).
    pub fn control(&self, space: &impl ConfigSpace, address: Address, is_enabled: bool, is_masked: bool) {
        let at = u16::from(self.offset);
        let mut word = space.read(address, at) & !(MSIX_ENABLE | MSIX_MASK);
        word |= if is_enabled { MSIX_ENABLE } else { 0 } | if is_masked { MSIX_MASK } else { 0 };
        space.write(address, at, word);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::mock::{Device, Machine, at, nvme};
    use crate::physical::Physical;

    const MESSAGE: Message = Message { address: 0xfee0_1000, data: 0x4041 };

    fn msi(control: u32, message: Option<Message>) -> (bool, [u32; 6]) {
        let mut device = Device::new(1234, 1, 0).capability(0x50, &[control << 16 | 5, 0, 0, 0, 0, 0]);
        for register in (0x54..0x68).step_by(4) {
            device = device.writable(register, u32::MAX);
        }
        let machine = Machine::new([("00:04.0", device.writable(0x50, 0x0071_0000))]);
        let found = Physical::read(&machine, at("00:04.0")).unwrap();
        let sent = found.capabilities.msi.unwrap().send(&machine, found.address, message);
        let device = machine.device("00:04.0");
        (sent, core::array::from_fn(|index| device.word(0x50 + 4 * index as u16)))
    }

    #[test]
    fn one_message_is_sent_in_each_form() {
        let low = MESSAGE.address as u32;
        assert_eq!(msi(0x00a, Some(MESSAGE)), (true, [0x000b_0005, low, 0x4041, 0, 0, 0]));
        assert_eq!(msi(0x02b, Some(MESSAGE)), (true, [0x000b_0005, low, 0x4041, 0, 0, 0]), "it sent four");
        assert_eq!(msi(0x10a, Some(MESSAGE)), (true, [0x010b_0005, low, 0x4041, !1, 0, 0]));
        let far = Message { address: 0x1_fee0_1000, ..MESSAGE };
        assert_eq!(msi(0x08a, Some(far)), (true, [0x008b_0005, low, 1, 0x4041, 0, 0]));
        assert_eq!(msi(0x18a, Some(far)), (true, [0x018b_0005, low, 1, 0x4041, !1, 0]));
    }

    #[test]
    fn a_message_that_does_not_fit_is_refused_and_none_is_sent() {
        let off = [0x000a_0005, 0, 0, 0, 0, 0];
        assert_eq!(msi(0x00b, Some(Message { address: 1 << 32, ..MESSAGE })), (false, off));
        assert_eq!(msi(0x00b, Some(Message { data: 0x1_0000, ..MESSAGE })), (false, off));
        assert_eq!(msi(0x00b, Some(Message { address: 2, ..MESSAGE })), (false, off));
        assert_eq!(msi(0x03b, None), (true, off));
    }

    #[test]
    fn msix_is_controlled_by_two_bits() {
        let machine = Machine::new([("00:04.0", nvme().writable(0x40, 0xc000_0000))]);
        let msix = Physical::read(&machine, at("00:04.0")).unwrap().capabilities.msix.unwrap();
        for (is_enabled, is_masked, bits) in [
            (true, true, 0xc000_0000),
            (true, false, 0x8000_0000),
            (false, true, 0x4000_0000),
            (false, false, 0),
        ] {
            msix.control(&machine, at("00:04.0"), is_enabled, is_masked);
            assert_eq!(machine.device("00:04.0").word(0x40), bits | 0x0040_8011);
        }
    }
}
