//! Lazy end of interrupt through the assist page.
//!
//! TLFS, "EOI Assist". The hypervisor sets a bit in the virtual processor's assist page when an end
//! of interrupt would have no effect other than ending the interrupt. If the guest finds the bit
//! set, it clears it atomically instead of writing the EOI register, and saves an exit.
//!
//! While the guest runs, only the guest accesses the bit. Between exit and entry only the
//! hypervisor does, so its accesses need not be atomic. An interrupt that arrives for a running
//! virtual processor makes it exit, which is when the bit is withdrawn; so a set bit never delays a
//! pending interrupt.
//!
//! | exit | entry |
//! |---|---|
//! | [`EoiAssist::settle`], before anything else | [`EoiAssist::arm`], after everything else |
//! | bit clear: the guest has ended the interrupt | one interrupt in service, nothing pending: set the bit |
//! | bit set: clear it, the guest will write the register | otherwise leave it clear |

use migration::described;

/// The bit in the EOI assist field, the first 32-bit word of the assist page.
pub const NO_EOI_REQUIRED: u32 = 1;

/// The local APIC's state as far as it matters for an end of interrupt.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ApicView {
    /// The vector in service, if there is exactly one.
    pub in_service: Option<u8>,
    /// That interrupt is level-triggered: its end must reach the device.
    pub level: bool,
    /// An interrupt is requested that is not in service, of any priority, masked or not.
    pub pending: bool,
}

/// The result of settling a bit that was set.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[must_use]
pub enum Settled {
    /// The guest has ended this interrupt: the local APIC must take it out of service.
    Ended(u8),
    /// The guest has not used the bit. The field must be cleared.
    Withdrawn,
}

/// Whether the bit is set, and for which interrupt.
#[derive(Clone, Copy, Debug, Default)]
pub struct EoiAssist {
    armed: Option<u8>,
}

described!(EoiAssist: armed);

impl EoiAssist {
    /// Whether the bit is set, unless the guest has cleared it.
    pub fn is_armed(&self) -> bool {
        self.armed.is_some()
    }

    /// Called before an entry: returns whether to set the bit. The bit must be clear and settled.
    pub fn arm(&mut self, apic: &ApicView) -> bool {
        self.armed = apic.in_service.filter(|_| !apic.level && !apic.pending);
        self.is_armed()
    }

    /// Called after an exit, before the local APIC is read: interprets the field's value. `None` if
    /// the bit had not been set; the field need not be read then.
    pub fn settle(&mut self, field: u32) -> Option<Settled> {
        let vector = self.armed.take()?;
        Some(if field & NO_EOI_REQUIRED == 0 { Settled::Ended(vector) } else { Settled::Withdrawn })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const QUIET: ApicView = ApicView { in_service: Some(0x30), level: false, pending: false };

    #[test]
    fn not_armed_unless_only_the_end_of_one_edge_interrupt_is_left() {
        let mut assist = EoiAssist::default();
        assert!(!assist.arm(&ApicView { in_service: None, ..QUIET }), "none, or several nested");
        assert!(!assist.arm(&ApicView { level: true, ..QUIET }), "the device must hear of it");
        assert!(!assist.arm(&ApicView { pending: true, ..QUIET }), "the next one would wait");
        assert_eq!(assist.settle(0), None, "a field that was never set means nothing");
        assert!(assist.arm(&QUIET));
    }

    #[test]
    fn a_cleared_bit_ends_the_interrupt_once() {
        let mut assist = EoiAssist::default();
        assert!(assist.arm(&QUIET));
        assert_eq!((assist.settle(0), assist.settle(0)), (Some(Settled::Ended(0x30)), None));
    }

    #[test]
    fn a_set_bit_is_withdrawn_so_that_the_next_end_exits() {
        let mut assist = EoiAssist::default();
        assert!(assist.arm(&QUIET));
        assert_eq!(assist.settle(NO_EOI_REQUIRED), Some(Settled::Withdrawn));
        assert!(!assist.is_armed());
        // A lower one became pending meanwhile: not armed, because its delivery needs the EOI's
        // exit.
        assert!(!assist.arm(&ApicView { pending: true, ..QUIET }));
    }

    #[test]
    fn reserved_bits_of_the_field_are_no_answer() {
        let mut assist = EoiAssist::default();
        assert!(assist.arm(&QUIET));
        assert_eq!(assist.settle(!NO_EOI_REQUIRED), Some(Settled::Ended(0x30)));
        assert!(assist.arm(&QUIET));
        assert_eq!(assist.settle(u32::MAX), Some(Settled::Withdrawn));
    }
}
