//! Registers of one virtual processor, and access to all synthetic registers.

use arrayvec::ArrayVec;
use migration::described;
use tlfs::msr::{self, PageMsr};

use super::eoi_assist::{ApicView, EoiAssist, Settled};
use super::msrs::{GpFault, MsrEffect, MsrRead, PageMove, icr_to_x2apic};
use super::partition::{Partition, describe_page};
use super::stimer::Stimer;
use crate::index::VpIndex;

/// Synthetic timers of a virtual processor.
pub const STIMERS: usize = 4;

/// The synthetic state of one virtual processor.
#[derive(Debug)]
pub struct Vp {
    index: VpIndex,
    assist_page: PageMsr,
    eoi_assist: EoiAssist,
    timers: [Stimer; STIMERS],
    /// The earliest expiration of a timer by the machine's TSC; `u64::MAX` if there is none.
    due_tsc: u64,
    /// How far the partition's TSC is ahead of the machine's, modulo 2^64.
    ahead: u64,
}

// How far the clocks are apart is the receiver's, and so is what follows from that.
described!(Vp: assist_page (describe_page), eoi_assist, timers; same index; stays due_tsc, ahead);

impl Vp {
    /// A virtual processor with an index that is unique in its partition, constant, and below
    /// [`tlfs::MAX_VPS`]. It need not be the APIC's id.
    pub fn new(index: VpIndex) -> Self {
        Self {
            index,
            assist_page: PageMsr::new(),
            eoi_assist: EoiAssist::default(),
            timers: [Stimer::default(); STIMERS],
            due_tsc: u64::MAX,
            ahead: 0,
        }
    }

    /// The index that identifies this virtual processor in hypercalls.
    pub fn index(&self) -> VpIndex {
        self.index
    }

    /// Resets everything to the state at creation: for a reset of the partition, not for INIT.
    pub fn reset(&mut self) {
        *self = Self { ahead: self.ahead, ..Self::new(self.index) };
    }

    /// The partition's TSC is so far ahead of the machine's from now on.
    pub fn set_ahead(&mut self, ahead: u64) {
        self.ahead = ahead;
        self.find_due();
    }

    /// RDMSR when the machine's TSC is `now`.
    ///
    /// # Errors
    ///
    /// [`GpFault`] if there is no such register or it cannot be read.
    pub fn read_msr(&self, partition: &Partition, number: u32, now: u64) -> Result<MsrRead, GpFault> {
        let value = match number {
            msr::VP_INDEX => u64::from(self.index.0),
            msr::VP_RUNTIME => return Ok(MsrRead::RunTime),
            msr::ICR => return Ok(MsrRead::ApicIcr),
            msr::TPR => return Ok(MsrRead::ApicTpr),
            msr::VP_ASSIST_PAGE => self.assist_page.into_bits(),
            msr::STIMER0_CONFIG..=msr::STIMER3_COUNT => {
                let (index, is_count) = timer_register(number);
                let timer = self.timers.get(index).ok_or(GpFault)?;
                if is_count { timer.count() } else { timer.config() }
            }
            _ => partition.read_msr(number, now.wrapping_add(self.ahead)).ok_or(GpFault)?,
        };
        Ok(MsrRead::Value(value))
    }

    /// WRMSR when the machine's TSC is `now`.
    ///
    /// # Errors
    ///
    /// [`GpFault`] if there is no such register, it cannot be written, or not with this value;
    /// nothing has changed then.
    pub fn write_msr(
        &mut self,
        partition: &Partition,
        number: u32,
        value: u64,
        now: u64,
    ) -> Result<MsrEffect, GpFault> {
        match number {
            msr::EOI if value >> 32 == 0 => Ok(MsrEffect::ApicEoi),
            msr::ICR => Ok(MsrEffect::ApicIcr(icr_to_x2apic(value))),
            msr::TPR => u8::try_from(value).map(MsrEffect::ApicTpr).map_err(|_| GpFault),
            msr::VP_ASSIST_PAGE => Ok(self.set_assist_page(PageMsr::from_bits(value))),
            msr::STIMER0_CONFIG..=msr::STIMER3_COUNT => {
                let (index, is_count) = timer_register(number);
                let timer = self.timers.get_mut(index).ok_or(GpFault)?;
                let (clock, now) = (partition.clock(), now.wrapping_add(self.ahead));
                if is_count {
                    timer.set_count(value, &clock, now);
                } else {
                    timer.set_config(value, &clock, now)?;
                }
                self.find_due();
                Ok(MsrEffect::Timers)
            }
            msr::EOI | msr::VP_INDEX | msr::VP_RUNTIME => Err(GpFault),
            _ => partition.write_msr(number, value),
        }
    }

    /// The machine's TSC at the earliest expiration of a synthetic timer. If it is in the past,
    /// [`Vp::expire`] has vectors to return.
    pub fn next_deadline_tsc(&self) -> Option<u64> {
        (self.due_tsc != u64::MAX).then_some(self.due_tsc)
    }

    fn find_due(&mut self) {
        let due = self.timers.iter().filter_map(Stimer::deadline_tsc).min();
        let behind = self.ahead.cast_signed().saturating_neg();
        self.due_tsc = due.map_or(u64::MAX, |due| due.saturating_add_signed(behind));
    }

    /// The vectors to request at the virtual processor's own local APIC, fixed and edge-triggered,
    /// for the timers that have expired by the machine's TSC `now`; each once.
    #[inline]
    pub fn expire(&mut self, partition: &Partition, now: u64) -> ArrayVec<u8, STIMERS> {
        if now < self.due_tsc {
            return ArrayVec::new();
        }
        let (clock, now) = (partition.clock(), now.wrapping_add(self.ahead));
        let vectors = self.timers.iter_mut().filter_map(|timer| timer.expire(&clock, now)).collect();
        self.find_due();
        vectors
    }

    /// The address of the guest's assist page; without one there is nothing to arm.
    pub fn assist_page(&self) -> Option<u64> {
        self.assist_page.gpa()
    }

    /// Called before an entry, after everything that requests interrupts. If it returns an address,
    /// the caller sets the EOI assist field there to
    /// [`NO_EOI_REQUIRED`](super::eoi_assist::NO_EOI_REQUIRED). If that fails, [`Vp::settle_eoi`]
    /// withdraws it.
    pub fn arm_eoi(&mut self, apic: &ApicView) -> Option<u64> {
        let gpa = self.assist_page.gpa()?;
        self.eoi_assist.arm(apic).then_some(gpa)
    }

    /// Called after an exit, before the local APIC is read: returns the address of the EOI assist
    /// field if it must be read and passed to [`Vp::settle_eoi`].
    #[inline]
    pub fn armed_eoi(&self) -> Option<u64> {
        if self.eoi_assist.is_armed() { self.assist_page.gpa() } else { None }
    }

    /// Settles an armed field by its value; pass
    /// [`NO_EOI_REQUIRED`](super::eoi_assist::NO_EOI_REQUIRED) for a field that cannot be read.
    pub fn settle_eoi(&mut self, field: u32) -> Option<Settled> {
        self.eoi_assist.settle(field)
    }

    fn set_assist_page(&mut self, value: PageMsr) -> MsrEffect {
        let page = PageMove { from: self.assist_page.gpa(), to: value.gpa() };
        self.assist_page = value;
        page.effect(MsrEffect::VpAssistPage)
    }
}

/// The timer that a register belongs to, and whether it is the count register.
fn timer_register(number: u32) -> (usize, bool) {
    let offset = number.wrapping_sub(msr::STIMER0_CONFIG);
    ((offset / 2) as usize, !offset.is_multiple_of(2))
}

#[cfg(test)]
mod tests;
