//! The guest's message signalled interrupt (PCI, 6.8.1).

use crate::msix::Message;
use crate::physical::Msi;

/// Message control, in the upper half of the first double word: enabled.
const ENABLE: u32 = 1 << 16;

/// The registers. One message is offered, so each field of masks has one bit.
#[derive(Clone, Debug)]
pub(super) struct State {
    is_64_bit: bool,
    has_masks: bool,
    is_enabled: bool,
    is_masked: bool,
    message: Message,
}

/// What a double word of the capability holds.
enum Field {
    Control,
    Low,
    High,
    Data,
    Mask,
    None,
}

impl State {
    pub(super) const fn new(msi: &Msi) -> Self {
        Self {
            is_64_bit: msi.is_64_bit,
            has_masks: msi.has_masks,
            is_enabled: false,
            is_masked: false,
            message: Message { address: 0, data: 0 },
        }
    }

    pub(super) const fn reset(&mut self) {
        self.is_enabled = false;
        self.is_masked = false;
        self.message = Message { address: 0, data: 0 };
    }

    pub(super) const fn is_enabled(&self) -> bool {
        self.is_enabled
    }

    /// The message, if it is enabled and not masked.
    pub(super) fn message(&self) -> Option<Message> {
        (self.is_enabled && !self.is_masked).then_some(self.message)
    }

    const fn field(&self, index: usize) -> Field {
        match (index, self.is_64_bit) {
            (0, _) => Field::Control,
            (1, _) => Field::Low,
            (2, true) => Field::High,
            (2, false) | (3, true) => Field::Data,
            (3, false) | (4, true) if self.has_masks => Field::Mask,
            // Pending bits: nothing is kept here.
            _ => Field::None,
        }
    }

    /// What can be written of a double word of the capability.
    pub(super) fn read(&self, index: usize) -> u32 {
        match self.field(index) {
            Field::Control => u32::from(self.is_enabled) * ENABLE,
            Field::Low => self.message.address as u32,
            Field::High => (self.message.address >> 32) as u32,
            Field::Data => self.message.data,
            Field::Mask => self.is_masked.into(),
            Field::None => 0,
        }
    }

    /// Writes the bits in `mask` of a double word of the capability.
    pub(super) fn write(&mut self, index: usize, value: u32, mask: u32) {
        let bits = self.read(index) & !mask | value & mask;
        let field = self.field(index);
        let address = &mut self.message.address;
        match field {
            Field::Control => self.is_enabled = bits & ENABLE != 0,
            Field::Low => *address = *address & !0xffff_ffff | u64::from(bits & !3),
            Field::High => *address = *address & 0xffff_ffff | u64::from(bits) << 32,
            Field::Data => self.message.data = bits & 0xffff,
            Field::Mask => self.is_masked = bits & 1 != 0,
            Field::None => {}
        }
    }
}
