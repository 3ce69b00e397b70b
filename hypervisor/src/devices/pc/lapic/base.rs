//! The register with the address of a local APIC's registers, and its enable bits (APM vol. 2
//! sections 16.3.1 and 16.9, SDM vol. 3 section 12.12.5).

use super::APIC_BASE_ADDRESS;
use crate::devices::GeneralProtection;
use migration::described;

/// The processor is the one that starts the others. Read-only: writes are ignored.
const BSP: u64 = 1 << 8;
const EXTD: u64 = 1 << 10;
const EN: u64 = 1 << 11;
/// Settable bits of the page's address: the registers can be moved below 4 GiB, where processors
/// have them.
const PAGE: u64 = 0xffff_f000;

/// The interface through which software reaches the registers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Interface {
    /// None.
    Off,
    /// A page of memory.
    XApic,
    /// MSRs.
    X2Apic,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Base {
    page: u64,
    interface: Interface,
    is_bsp: bool,
}

impl Base {
    /// After reset: a page of memory at its default address. INIT does not change it.
    pub(super) const fn new(is_bsp: bool) -> Self {
        Self { page: APIC_BASE_ADDRESS, interface: Interface::XApic, is_bsp }
    }

    pub(super) const fn reset(self) -> Self {
        Self::new(self.is_bsp)
    }

    #[inline]
    pub(super) const fn interface(self) -> Interface {
        self.interface
    }

    /// Whether the registers are in the page of this guest physical address.
    pub(super) const fn has_page(self, gpa: u64) -> bool {
        matches!(self.interface, Interface::XApic) && gpa & !0xfff == self.page
    }

    pub(super) const fn bits(self) -> u64 {
        let interface = match self.interface {
            Interface::Off => 0,
            Interface::XApic => EN,
            Interface::X2Apic => EN | EXTD,
        };
        self.page | interface | if self.is_bsp { BSP } else { 0 }
    }

    /// The register with another value, if the transition is allowed: x2APIC mode can be entered
    /// only from xAPIC mode, and left only by disabling the local APIC.
    pub(super) const fn written(self, value: u64) -> Result<Self, GeneralProtection> {
        let interface = match (value & EN != 0, value & EXTD != 0) {
            (false, false) => Interface::Off,
            (true, false) => Interface::XApic,
            (true, true) => Interface::X2Apic,
            (false, true) => return Err(GeneralProtection),
        };
        let is_way = !matches!(
            (self.interface, interface),
            (Interface::Off, Interface::X2Apic) | (Interface::X2Apic, Interface::XApic)
        );
        if value & !(PAGE | BSP | EXTD | EN) != 0 || !is_way {
            return Err(GeneralProtection);
        }
        Ok(Self { page: value & PAGE, interface, ..self })
    }
}

described!(Interface: [Self::Off, Self::XApic, Self::X2Apic]);

described!(Base: page & PAGE, interface; same is_bsp);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn u26_each_way_between_the_modes_is_open_or_faults() {
        let off = Base { interface: Interface::Off, ..Base::new(false) };
        let xapic = Base::new(false);
        let x2apic = Base { interface: Interface::X2Apic, ..xapic };
        // From each mode to off, to the invalid state (EXTD alone), to xAPIC and to x2APIC mode.
        for (from, open) in [
            (off, [true, false, true, false]),
            (xapic, [true, false, true, true]),
            (x2apic, [true, false, false, true]),
        ] {
            for (bits, open) in [0, EXTD, EN, EN | EXTD].into_iter().zip(open) {
                let to = from.written(APIC_BASE_ADDRESS | bits);
                assert_eq!(to.is_ok(), open, "from {from:?} by {bits:#x}");
                if let Ok(to) = to {
                    assert_eq!(to.bits(), APIC_BASE_ADDRESS | bits);
                }
            }
        }
    }

    #[test]
    fn u26_reserved_bits_of_the_base_fault_and_the_first_processor_stays_the_first() {
        for bit in (0..8).chain([9]).chain(32..64) {
            let value = Base::new(true).bits() | 1 << bit;
            assert_eq!(Base::new(true).written(value), Err(GeneralProtection), "bit {bit}");
        }
        assert_eq!(Base::new(true).written(0xfee0_0800).unwrap().bits(), 0xfee0_0900);
        assert_eq!(Base::new(false).written(0xfee0_0900).unwrap().bits(), 0xfee0_0800);
    }

    #[test]
    fn u26_registers_are_in_one_page_of_memory_in_xapic_mode_alone() {
        let moved = Base::new(true).written(0xfed4_0800).unwrap();
        for (gpa, usual, elsewhere) in [
            (0xfee0_0000, true, false),
            (0xfee0_0fff, true, false),
            (0xfee0_1000, false, false),
            (0xfed4_0020, false, true),
            (0x1_fee0_0000, false, false),
        ] {
            assert_eq!(Base::new(true).has_page(gpa), usual, "{gpa:#x}");
            assert_eq!(moved.has_page(gpa), elsewhere, "{gpa:#x}");
            for value in [0xfee0_0000, 0xfee0_0c00] {
                assert!(!Base::new(true).written(value).unwrap().has_page(gpa), "{value:#x}, {gpa:#x}");
            }
        }
    }
}
