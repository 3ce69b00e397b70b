//! The local APIC by the processor (chapter 30): it delivers what is requested, ends what is in
//! service, and takes the guest's interrupts to itself, without an exit.
//!
//! It does so while the local APIC is in x2APIC mode and enabled. [`Lapic`] is the model all the
//! time. Requests and what is in service are in the virtual-APIC page from the entry on; they come
//! back into the model when somebody asks for them: at HLT, before the mode changes, for an
//! interrupt whose delivery was cut short. What arrives meanwhile is a request of the model, and
//! goes into the page at the next entry. The trigger modes are the model's alone.

use core::sync::atomic::Ordering;

use super::controls::{self, Word};
use super::copies::Copied;
use super::vmcs::{APIC_MODE, Vmcs};
use crate::devices::pc::lapic::{Lapic, VectorSet};
use crate::pages::Pages;

/// Where requests, and what is in service, are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ApicLocation {
    /// In the model, always.
    Never,
    /// In the model: the local APIC is in another mode.
    Model,
    /// In the model until the next entry. The page has none.
    Back,
    /// In the page.
    Page,
}

/// What the processor has of a local APIC.
#[derive(Debug)]
pub(super) struct VirtualApic {
    page: Pages,
    /// Address of the vCPU's posted interrupts.
    pub(super) posted: u64,
    pub(super) location: ApicLocation,
    /// Vectors whose end of interrupt exits: those that came from a level-triggered pin.
    pub(super) exits: VectorSet,
}

/// Places in the page, in words of 64 bits: a register every 16 bytes.
pub(super) const TPR: usize = 0x80 / 8;
pub(super) const ISR: usize = 0x100 / 8;
pub(super) const IRR: usize = 0x200 / 8;
pub(super) const SELF_IPI: usize = 0x3f0 / 8;

impl VirtualApic {
    pub(super) fn new() -> Self {
        Self { page: Pages::new(1), posted: 0, location: ApicLocation::Never, exits: VectorSet::EMPTY }
    }

    pub(super) const fn address(&self) -> u64 {
        self.page.start()
    }

    #[inline(always)]
    pub(super) fn read(&self, place: usize) -> u64 {
        self.page.words()[place].load(Ordering::Relaxed)
    }

    #[inline(always)]
    pub(super) fn write(&self, place: usize, value: u64) {
        self.page.words()[place].store(value, Ordering::Relaxed);
    }

    /// The guest's task priority, as CR8 shows it.
    #[inline(always)]
    pub(super) fn priority(&self) -> u8 {
        (self.read(TPR) >> 4 & 0xf) as u8
    }

    #[inline(always)]
    pub(super) fn set_priority(&self, priority: u8) {
        if priority != self.priority() {
            self.write(TPR, u64::from(priority) << 4);
        }
    }

    /// Moves the set at `place` out of the page.
    fn take(&self, place: usize, set: &mut VectorSet) {
        for register in 0..8 {
            let at = place + 2 * register;
            let vectors = self.read(at);
            self.write(at, 0);
            set.set_word(register / 2, set.word(register / 2) | vectors << (32 * (register % 2)));
        }
    }

    /// Moves a set into the page; the highest vector that it had, or 0.
    fn put(&self, place: usize, set: &mut VectorSet) -> u8 {
        let Some(highest) = set.highest() else { return 0 };
        for register in 0..=usize::from(highest / 32) {
            let at = place + 2 * register;
            self.write(at, self.read(at) | u64::from(set.register(register)));
        }
        *set = VectorSet::EMPTY;
        highest
    }
}

impl Vmcs {
    /// The next entry is the processor's to deliver interrupts, or the model's, as the local APIC's
    /// mode demands. Returns whether the processor has got requests.
    #[inline(never)] // Most entries have none.
    pub(super) fn keep(&mut self, lapic: &mut Lapic) -> bool {
        let is_possible = lapic.is_x2apic() && lapic.is_enabled();
        if is_possible != (self.apic.location != ApicLocation::Model) {
            self.set_mode(is_possible);
        }
        if !is_possible {
            return false;
        }
        let mut status = 0;
        if self.apic.location == ApicLocation::Page {
            status = self.copy(Copied::InterruptStatus);
        } else {
            self.apic.location = ApicLocation::Page;
            self.apic.write(TPR, lapic.tpr().into());
        }
        let (irr, isr, tmr) = lapic.sets();
        if *tmr != self.apic.exits {
            self.apic.exits = *tmr;
            self.dirty_words |= APIC_MODE;
        }
        let is_requested = !irr.is_empty();
        let requested = self.apic.put(IRR, irr).max(status as u8);
        let in_service = self.apic.put(ISR, isr).max((status >> 8) as u8);
        let status = u64::from(in_service) << 8 | u64::from(requested);
        if status != self.copy(Copied::InterruptStatus) {
            self.set_copy(Copied::InterruptStatus, status);
        }
        is_requested
    }

    /// Requests, and what is in service, come back into the model.
    pub(super) fn take_apic_back(&mut self, lapic: &mut Lapic) {
        if self.apic.location != ApicLocation::Page {
            return;
        }
        self.apic.location = ApicLocation::Back;
        lapic.set_tpr(self.apic.read(TPR) as u8);
        // Where the status has no vector, the set is empty.
        let status = self.copy(Copied::InterruptStatus);
        let (irr, isr, _) = lapic.sets();
        for (place, set, highest) in [(IRR, irr, status & 0xff), (ISR, isr, status >> 8)] {
            if highest != 0 {
                self.apic.take(place, set);
            }
        }
    }

    /// INIT, or a reset, which the model has taken: nothing of the former local APIC stays.
    pub(super) fn forget_apic(&mut self) {
        for place in [IRR, ISR] {
            self.apic.take(place, &mut VectorSet::EMPTY.clone());
        }
        self.apic.write(TPR, 0);
        if self.apic.location != ApicLocation::Never {
            self.set_mode(false);
        }
    }

    fn set_mode(&mut self, is_processors: bool) {
        self.apic.location = if is_processors { ApicLocation::Back } else { ApicLocation::Model };
        controls::APIC.into_iter().for_each(|bit| self.set_control(Word::Secondary, bit, is_processors));
        self.set_control(Word::Pin, controls::POSTED, is_processors && self.controls.posted);
        self.dirty_words |= APIC_MODE;
    }

    /// What the guest has written to the register by which it interrupts itself.
    pub(super) fn self_ipi(&self) -> u64 {
        self.apic.read(SELF_IPI) & 0xffff_ffff
    }
}
