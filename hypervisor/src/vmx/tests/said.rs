//! What an exit says: the fields that describe it (28.2), and that all of it is taken over.

use baremetal::random::Random;

use super::mock::Fields;
use crate::vmx::controls::ACKNOWLEDGE;
use crate::vmx::fields as f;
use crate::vmx::table::{ENTRY_FAILURE, EXCEPTION, Exit};
use crate::vmx::vmcs::Vmcs;
use crate::x86::vcpu::event::{ERROR_VALID, TYPE_EXCEPTION, TYPE_MASK, TYPE_NMI, TYPE_SOFTWARE, VALID};

/// Of what describes an event: NMIs have been unblocked by IRET, or undefined.
const UNBLOCKED: u64 = 1 << 12;

/// An exit, as a test has it. What is not defined for it is ignored.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Said {
    /// The reason, or an exception's code, as the table has it.
    pub(crate) code: u64,
    /// The instruction's length.
    pub(crate) length: u64,
    pub(crate) qualification: u64,
    /// The guest physical address.
    pub(crate) physical: u64,
    /// The exception, or the interrupt that was taken; 0 for one without more about it.
    pub(crate) exception: u64,
    /// The event that was cut short.
    pub(crate) event: u64,
}

impl Said {
    /// An interrupt of the machine.
    pub(crate) const INTERRUPT: Self = Self::of(1, 0, 0);

    pub(crate) const fn of(code: u64, length: u64, qualification: u64) -> Self {
        Self { code, length, qualification, physical: 0, exception: 0, event: 0 }
    }

    pub(crate) const fn is_failure(&self) -> bool {
        self.code & ENTRY_FAILURE != 0
    }

    fn is_exception(&self) -> bool {
        (EXCEPTION..EXCEPTION + 0x100).contains(&self.code)
    }

    fn reason(&self) -> u64 {
        if self.is_exception() { 0 } else { self.code }
    }

    /// Whether an event can have been cut short (28.2.4). An NMI cuts none.
    pub(crate) fn cuts(&self) -> bool {
        matches!(self.reason(), 0 | 9 | 44 | 48 | 49 | 62) && self.code != EXCEPTION + 2
    }

    /// The event that was cut short, or 0.
    fn cut(&self) -> u64 {
        if self.cuts() && self.event & VALID != 0 { self.event } else { 0 }
    }

    /// The exception or interrupt, or 0 (28.2.2).
    fn vectored(&self, acknowledges: bool) -> u64 {
        let vector = self.code & 0xff;
        match self.exception & !0xff {
            _ if self.code == 1 && acknowledges => VALID | self.exception & 0xff,
            _ if !self.is_exception() => 0,
            0 if vector == 2 => VALID | TYPE_NMI | vector,
            0 => VALID | TYPE_EXCEPTION | vector,
            other => other | VALID | vector,
        }
    }

    /// Whether the exit is an instruction's, or INT's, INT1's, INT3's, INTO's (28.2.5).
    fn has_length(&self) -> bool {
        let is_instructions = |event: u64| event & VALID != 0 && event & TYPE_MASK >= TYPE_SOFTWARE;
        matches!(self.reason(), 10..=32 | 36 | 39 | 40 | 46 | 47 | 50 | 51 | 53..=55 | 57..=61 | 63..=70 | 76 | 77)
            || is_instructions(self.cut())
            || is_instructions(self.vectored(false))
    }

    /// Whether there is a qualification (28.2.1). Elsewhere it is clear, which nobody uses.
    fn has_qualification(&self) -> bool {
        matches!(self.code, 4 | 9 | 14 | 19..=25 | 28..=30 | 36 | 44..=48 | 50 | 53 | 56 | 58 | 62..=64)
            || self.is_failure()
            || self.code == EXCEPTION + 1
    }

    /// Of exceptions, and of qualifications of memory: what is undefined (28.2.3).
    fn undefined(&self) -> u64 {
        let says = matches!(self.code, 48 | 62) || self.is_exception();
        if says && self.cut() != 0 { UNBLOCKED } else { 0 }
    }

    /// Fills in the fields.
    pub(super) fn record(&self, fields: &mut Fields, random: &mut Random) {
        fields.insert(f::EXIT_REASON.raw(), self.reason());
        if self.is_failure() {
            fields.insert(f::QUALIFICATION.raw(), self.qualification);
            return;
        }
        let undefined = self.undefined();
        for (field, value, undefined) in [
            (
                f::QUALIFICATION.raw(),
                self.qualification,
                if self.has_qualification() { undefined } else { !0 },
            ),
            (f::GUEST_PHYSICAL.raw(), self.physical, if matches!(self.code, 48 | 49) { 0 } else { !0 }),
            (f::GUEST_LINEAR.raw(), 0, !0),
            (f::EXIT_LENGTH.raw(), self.length, if self.has_length() { 0 } else { 0xffff_ffff }),
            (f::EXIT_INSTRUCTION.raw(), 0, 0xffff_ffff),
        ] {
            fields.insert(field, value & !undefined | random.word() & undefined);
        }
        let acknowledges = fields[&f::EXIT_CONTROLS.raw()] >> ACKNOWLEDGE & 1 != 0;
        for (event, undefined, info, code) in [
            (self.vectored(acknowledges), undefined, f::EXIT_INTERRUPTION, f::EXIT_ERROR_CODE),
            (self.cut(), UNBLOCKED, f::VECTORING, f::VECTORING_ERROR_CODE),
        ] {
            let (anything, other) = (random.word() & 0xffff_ffff, random.word() & 0xffff_ffff);
            let valid = event & 0xffff_ffff & !undefined | anything & undefined;
            fields.insert(info.raw(), if event == 0 { anything & !VALID } else { valid });
            fields.insert(code.raw(), if event & ERROR_VALID == 0 { other } else { event >> 32 });
        }
    }

    /// Software has taken over what is defined.
    ///
    /// # Panics
    ///
    /// If not.
    pub(super) fn check(&self, vmcs: &Vmcs) {
        let taken = Exit::of(vmcs);
        let agree = |taken: u64, said: u64, undefined: u64, what: &str| {
            let (taken, said) = (taken & !undefined, said & !undefined);
            assert_eq!(taken, said, "{what} of {self:x?}: {taken:#x} is taken, and {said:#x} said");
        };
        agree(taken.code, self.code, 0, "EXIT_REASON");
        if self.has_qualification() {
            agree(taken.qualification, self.qualification, self.undefined(), "QUALIFICATION");
        }
        if self.is_failure() {
            return;
        }
        if self.has_length() {
            agree(vmcs.length, self.length, 0, "EXIT_LENGTH");
        }
        if matches!(self.code, 48 | 49) {
            agree(taken.guest_physical, self.physical, 0, "GUEST_PHYSICAL");
        }
        if self.is_exception() {
            agree(taken.exception, self.vectored(false), self.undefined(), "EXIT_INTERRUPTION");
        }
        let event = if taken.event & VALID == 0 { 0 } else { taken.event };
        agree(event, self.cut(), UNBLOCKED, "VECTORING");
    }
}
