//! The interrupt command register. In x2APIC mode it is one 64-bit register, and its write sends.
//! In xAPIC mode it is two registers. The write to the lower one sends, and the destination has 8
//! bits.

use crate::devices::GeneralProtection;
use crate::devices::pc::apic_ids::ApicId;
use crate::devices::pc::message::{BROADCAST, Destination, Message, MessageKind, Trigger};
use bitfield_struct::bitfield;
use migration::described;

/// The register (SDM vol. 3 figure 12-28, APM vol. 2 section 16.13).
#[bitfield(u64)]
#[derive(PartialEq, Eq)]
pub(super) struct Icr {
    vector: u8,
    #[bits(3)]
    mode: u8,
    logical: bool,
    /// Delivery status. xAPIC software writes back the value it read, so it is ignored and reads as
    /// idle.
    busy: bool,
    reserved_13: bool,
    /// 0 with `level` 1 and mode INIT is the de-assert message, which local APICs ignore.
    assert: bool,
    level: bool,
    #[bits(2)]
    reserved_16: u8,
    #[bits(2)]
    shorthand: u8,
    #[bits(12)]
    reserved_20: u16,
    pub(super) destination: u32,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Command {
    Send(Message),
    /// A fixed or lowest-priority vector below 16.
    IllegalVector,
    /// A combination that the manuals call invalid; nothing is sent.
    Nothing,
}

/// The 8-bit destination that means all.
const XAPIC_BROADCAST: u32 = 0xff;

impl Icr {
    /// Settable bits of the lower half.
    pub(super) const DEFINED: u64 = 0x000c_cfff;

    /// Converts the value from xAPIC to x2APIC format.
    pub(super) const fn widened(self) -> Self {
        if self.destination() == XAPIC_BROADCAST { self.with_destination(BROADCAST) } else { self }
    }

    /// Converts the value from x2APIC to xAPIC format.
    pub(super) const fn narrowed(self) -> Self {
        self.with_destination(self.destination() & XAPIC_BROADCAST)
    }

    pub(super) fn checked(value: u64) -> Result<Self, GeneralProtection> {
        let icr = Self::from_bits(value);
        if icr.reserved_13() || icr.reserved_16() != 0 || icr.reserved_20() != 0 {
            return Err(GeneralProtection);
        }
        Ok(icr.with_busy(false))
    }

    /// Vector and destination, if this is a fixed, edge-triggered interrupt to one local APIC by
    /// its id.
    #[inline]
    pub(super) const fn plain(self) -> Option<(u8, ApicId)> {
        // The level has no effect for such an interrupt; kernels may set it or not.
        const FREE: u64 =
            Icr::new().with_vector(0xff).with_assert(true).with_destination(u32::MAX).into_bits();
        let is_plain = self.into_bits() & !FREE == 0 && self.vector() >= 16;
        if is_plain && self.destination() != BROADCAST {
            Some((self.vector(), ApicId(self.destination())))
        } else {
            None
        }
    }

    pub(super) fn command(self) -> Command {
        let kind = match self.mode() {
            0 => MessageKind::Fixed(self.vector()),
            1 => MessageKind::Lowest(self.vector()),
            4 => MessageKind::Nmi,
            5 if self.level() && !self.assert() => return Command::Nothing,
            5 => MessageKind::Init,
            6 => MessageKind::Startup(self.vector()),
            // SMI has no handler here; 3 and 7 are reserved.
            _ => return Command::Nothing,
        };
        let destination = match self.shorthand() {
            0 if self.logical() => Destination::Logical(self.destination()),
            0 => Destination::Physical(ApicId(self.destination())),
            1 => Destination::SelfOnly,
            2 => Destination::All,
            _ => Destination::AllButSelf,
        };
        match (kind, destination) {
            (MessageKind::Fixed(0..16) | MessageKind::Lowest(0..16), _) => Command::IllegalVector,
            (MessageKind::Fixed(_), _) => {
                Command::Send(Message { kind, destination, trigger: Trigger::Edge })
            }
            // Shorthands that include the sender are allowed for fixed vectors only (SDM vol. 3
            // table 12-3).
            (_, Destination::SelfOnly | Destination::All) => Command::Nothing,
            _ => Command::Send(Message { kind, destination, trigger: Trigger::Edge }),
        }
    }
}

described!(Icr: 0 & (!0 << 32 | Self::DEFINED));

#[cfg(test)]
mod tests {
    use super::*;

    fn sent(value: u64) -> Option<(MessageKind, Destination)> {
        match Icr::checked(value).unwrap().command() {
            Command::Send(message) => Some((message.kind, message.destination)),
            _ => None,
        }
    }

    #[test]
    fn reserved_bits_fault() {
        assert!((0..32).filter(|bit| Icr::DEFINED >> bit & 1 != 0).all(|bit| Icr::checked(1 << bit).is_ok()));
        for bit in [13, 16, 17].into_iter().chain(20..32) {
            assert_eq!(Icr::checked(1 << bit | 0x40), Err(GeneralProtection), "bit {bit}");
        }
        assert_eq!(Icr::checked(0x1040).unwrap().into_bits(), 0x40, "delivery status reads as idle");
    }

    #[test]
    fn h26_vectors_below_16_are_illegal_for_vectored_modes_only() {
        for vector in 0..16 {
            assert_eq!(Icr::checked(vector).unwrap().command(), Command::IllegalVector);
            assert_eq!(Icr::checked(0x100 | vector).unwrap().command(), Command::IllegalVector);
        }
        assert_eq!(
            sent(7 << 32 | 0x600 | 5),
            Some((MessageKind::Startup(5), Destination::Physical(ApicId(7))))
        );
        assert_eq!(sent(7 << 32 | 0x400), Some((MessageKind::Nmi, Destination::Physical(ApicId(7)))));
    }

    #[test]
    fn the_plain_form_is_what_the_command_says() {
        let mut plain = 0;
        for bits in (0..1 << 12).map(|bits: u64| bits << 8) {
            for (vector, destination) in [(0x0f, 3), (0x10, 3), (0xff, u32::MAX), (0xfe, 0)] {
                let icr = Icr::from_bits(bits | vector | u64::from(destination) << 32);
                if let Some((vector, id)) = icr.plain() {
                    plain += 1;
                    let kind = MessageKind::Fixed(vector);
                    let destination = Destination::Physical(id);
                    let message = Message { kind, destination, trigger: Trigger::Edge };
                    assert!(Icr::checked(icr.into_bits()).is_ok());
                    assert_eq!(icr.command(), Command::Send(message));
                }
            }
        }
        assert_eq!(plain, 4, "two destinations, with and without assert");
    }

    #[test]
    fn forms_that_linux_sends() {
        assert_eq!(sent(3 << 32 | 0xfd), Some((MessageKind::Fixed(0xfd), Destination::Physical(ApicId(3)))));
        let found = sent(0x1_0004 << 32 | 0x8fd);
        assert_eq!(found, Some((MessageKind::Fixed(0xfd), Destination::Logical(0x1_0004))));
        assert_eq!(sent(0xc_00fb), Some((MessageKind::Fixed(0xfb), Destination::AllButSelf)));
        assert_eq!(sent(0x8_00fb), Some((MessageKind::Fixed(0xfb), Destination::All)));
        assert_eq!(sent(0x4_00f6), Some((MessageKind::Fixed(0xf6), Destination::SelfOnly)));
        assert_eq!(sent(2 << 32 | 0xc500), Some((MessageKind::Init, Destination::Physical(ApicId(2)))));
        assert_eq!(sent(2 << 32 | 0x8500), None, "INIT de-assert is ignored");
    }

    #[test]
    fn invalid_combinations_send_nothing() {
        for mode in [1_u64, 4, 5, 6] {
            for shorthand in [1_u64, 2] {
                assert_eq!(sent(shorthand << 18 | mode << 8 | 0x4040), None, "mode {mode}, {shorthand}");
            }
            assert!(sent(3 << 18 | mode << 8 | 0x4040).is_some());
        }
        for mode in [2_u64, 3, 7] {
            assert_eq!(sent(1 << 32 | mode << 8 | 0x4040), None, "mode {mode}");
        }
    }
}
