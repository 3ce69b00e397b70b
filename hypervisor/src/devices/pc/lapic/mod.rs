//! One local APIC, in x2APIC or in xAPIC mode, or off.
//!
//! It is owned by the CPU that runs its vCPU, so nothing here is atomic; messages from other CPUs
//! go through [`super::inbox`]. As on a processor it is in xAPIC mode after reset, so that software
//! that does not support x2APIC mode finds its registers in memory. They can be moved to another
//! page below 4 GiB, where they are visible unless there is memory; on a processor they would be
//! visible there even then.
//!
//! All TSC values are the vCPU's own, as RDTSC in the guest returns them.

mod base;
mod icr;
pub mod msr;
mod page;
mod registers;
#[cfg(test)]
mod tests;
mod timer;
mod vectors;

pub use timer::{PERIOD_US_MIN, TimerClock, told_rate};
pub use vectors::VectorSet;

use super::apic_ids::ApicId;
use super::message::{Address, Logical, Message, Trigger};
use base::{Base, Interface};
use icr::Icr;
use migration::{Archive, Described, Flaw, fields};
use page::PageRegisters;
use registers::{LVT_BITS, SVR_WRITABLE};
use timer::{Mode, Timer};

/// Address of the registers after reset.
pub const APIC_BASE_ADDRESS: u64 = 0xfee0_0000;

const SVR_ENABLE: u32 = 1 << 8;
const SVR_RESET: u32 = 0xff;

/// Vectors 0 to 15.
const ILLEGAL_VECTORS: u64 = 0xffff;

const ESR_SEND_ILLEGAL_VECTOR: u32 = 1 << 5;
const ESR_RECEIVED_ILLEGAL_VECTOR: u32 = 1 << 6;
const ESR_ILLEGAL_REGISTER: u32 = 1 << 7;

const LVT_MASKED: u32 = 1 << 16;
const LVT_TIMER_MODE: u32 = 3 << 17;
const LVT_COUNT: usize = 6;
const TIMER: usize = 0;
const ERROR: usize = (msr::LVT_ERROR - msr::LVT_TIMER) as usize;

/// The effect of a register write on the rest of the hypervisor.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[must_use]
pub enum Effect {
    /// Nothing.
    None,
    /// Deliver this message. If it reaches the sender too, deliver it to the sender through
    /// [`Lapic::accept_fixed`].
    Ipi(Message),
    /// A vector left service.
    Eoi {
        /// The vector.
        vector: u8,
        /// It came from a level-triggered pin: the I/O APIC must be told.
        level: bool,
    },
    /// [`Lapic::next_deadline`] may have changed, and may have passed.
    TimerChanged,
    /// The same, and [`Lapic::address`] may have changed.
    Readdressed,
}

/// One local APIC.
#[derive(Clone, Debug)]
pub struct Lapic {
    id: ApicId,
    base: Base,
    page: PageRegisters,
    tpr: u8,
    svr: u32,
    /// The guest's view: latched from `errors` by its write.
    esr: u32,
    /// Errors since the last latch.
    errors: u32,
    icr: Icr,
    lvt: [u32; LVT_COUNT],
    irr: VectorSet,
    isr: VectorSet,
    tmr: VectorSet,
    timer: Timer,
}

impl Lapic {
    /// A local APIC after reset.
    pub fn new(apic_id: ApicId, is_bsp: bool, clock: TimerClock) -> Self {
        Self {
            id: apic_id,
            base: Base::new(is_bsp),
            page: PageRegisters::RESET,
            tpr: 0,
            svr: SVR_RESET,
            esr: 0,
            errors: 0,
            icr: Icr::new(),
            lvt: [LVT_MASKED; LVT_COUNT],
            irr: VectorSet::EMPTY,
            isr: VectorSet::EMPTY,
            tmr: VectorSet::EMPTY,
            timer: Timer::new(clock),
        }
    }

    /// Sets the state after INIT, which is that after reset except for the mode and the address of
    /// the registers (SDM vol. 3 sections 12.4.7.3 and 12.12.5.1).
    pub fn init(&mut self) {
        let mut timer = self.timer;
        timer.reset();
        let fresh = Self::new(self.id, false, TimerClock { tsc_hz: 1, apic_hz: 1 });
        *self = Self { timer, base: self.base, ..fresh };
    }

    /// Sets the state after power-on.
    pub fn reset(&mut self) {
        self.base = self.base.reset();
        self.init();
    }

    /// The x2APIC id.
    pub const fn apic_id(&self) -> ApicId {
        self.id
    }

    /// The address at which messages reach it.
    pub const fn address(&self) -> Address {
        let logical = match self.base.interface() {
            Interface::Off => Logical::Off,
            Interface::XApic => self.page.logical(),
            Interface::X2Apic => Logical::X2Apic,
        };
        Address { id: self.id, logical }
    }

    /// Whether it is on: only then does CPUID show it.
    #[inline]
    pub const fn is_on(&self) -> bool {
        !matches!(self.base.interface(), Interface::Off)
    }

    /// Whether its registers are MSRs.
    #[inline]
    pub const fn is_x2apic(&self) -> bool {
        matches!(self.base.interface(), Interface::X2Apic)
    }

    /// Whether the guest has software-enabled it (SVR bit 8).
    pub const fn is_enabled(&self) -> bool {
        self.svr & SVR_ENABLE != 0
    }

    /// The task priority. CR8 is its upper four bits.
    pub const fn tpr(&self) -> u8 {
        self.tpr
    }

    /// Sets the task priority, for CR8 (shifted left by four) and for Hyper-V's TPR register.
    pub const fn set_tpr(&mut self, tpr: u8) {
        self.tpr = tpr;
    }

    /// The processor priority (SDM vol. 3 section 12.8.3.1).
    pub fn ppr(&self) -> u8 {
        let in_service = self.isr.highest().unwrap_or(0);
        if self.tpr & 0xf0 >= in_service & 0xf0 { self.tpr } else { in_service & 0xf0 }
    }

    /// Accepts a fixed interrupt. Drops it while the local APIC is software-disabled; a vector
    /// below 16 is a receive error.
    pub fn accept_fixed(&mut self, vector: u8, trigger: Trigger) {
        if !self.is_enabled() {
            return;
        }
        if vector < 16 {
            return self.raise_error(ESR_RECEIVED_ILLEGAL_VECTOR);
        }
        self.irr.insert(vector);
        match trigger {
            Trigger::Edge => _ = self.tmr.remove(vector),
            Trigger::Level => self.tmr.insert(vector),
        }
    }

    /// Accepts the fixed interrupts `64 * word + n` for each bit n of `vectors`, in the same order
    /// as [`accept_fixed`](Self::accept_fixed) would; those that are also in `level` are
    /// level-triggered. `word` is below 4.
    pub fn accept_word(&mut self, word: usize, mut vectors: u64, level: u64) {
        if !self.is_enabled() {
            return;
        }
        if word == 0 && vectors & ILLEGAL_VECTORS != 0 {
            self.raise_error(ESR_RECEIVED_ILLEGAL_VECTOR);
            vectors &= !ILLEGAL_VECTORS;
        }
        self.irr.set_word(word, self.irr.word(word) | vectors);
        let tmr = self.tmr.word(word);
        if (tmr | level) & vectors != 0 {
            self.tmr.set_word(word, tmr & !vectors | level & vectors);
        }
    }

    /// The vector to inject next, if one has a priority class above the processor priority.
    #[inline]
    pub fn pending(&self) -> Option<u8> {
        let vector = self.irr.highest()?;
        let class = vector & 0xf0;
        // That is, its class exceeds that of the processor priority.
        let is_above = class > self.tpr & 0xf0 && self.isr.highest().is_none_or(|other| class > other & 0xf0);
        (is_above && self.is_enabled()).then_some(vector)
    }

    /// The highest request regardless of priorities, to decide at which TPR to check again.
    pub fn highest_irr(&self) -> Option<u8> {
        self.irr.highest()
    }

    /// Whether there is any request, regardless of priorities.
    #[inline]
    pub const fn has_requests(&self) -> bool {
        !self.irr.is_empty()
    }

    /// The vectors whose last interrupt came from a level-triggered pin.
    pub const fn levels(&self) -> &VectorSet {
        &self.tmr
    }

    /// Requests, what is in service, and which vectors came from level-triggered pins: for a
    /// processor that is a local APIC itself. It leaves the last as they are.
    pub const fn sets(&mut self) -> (&mut VectorSet, &mut VectorSet, &VectorSet) {
        (&mut self.irr, &mut self.isr, &self.tmr)
    }

    /// The vector in service of highest priority, which the next EOI ends.
    pub fn highest_isr(&self) -> Option<u8> {
        self.isr.highest()
    }

    /// `vector`, which [`Self::pending`] returned, is injected: moves it from request to service.
    pub const fn begin_service(&mut self, vector: u8) {
        if self.irr.remove(vector) {
            self.isr.insert(vector);
        }
    }

    /// Undoes `begin_service(vector)`: the injection was cut short before the guest saw it.
    pub const fn cancel_service(&mut self, vector: u8) {
        if self.isr.remove(vector) {
            self.irr.insert(vector);
        }
    }

    /// Ends the service of [`Self::highest_isr`].
    pub fn eoi(&mut self) -> Effect {
        let Some(vector) = self.isr.highest() else { return Effect::None };
        self.isr.remove(vector);
        Effect::Eoi { vector, level: self.tmr.contains(vector) }
    }

    /// Whether the guest may end `vector` in memory instead of by a register (the EOI assist of
    /// TLFS section 10.3.5): `vector` alone is in service, no waiting interrupt could be injected
    /// at its EOI, and no I/O APIC waits for it.
    ///
    /// While the assist is offered, withdraw it as soon as this becomes false; when the guest has
    /// used it, call [`Self::eoi`] before any other method of this local APIC.
    pub fn can_lazy_eoi(&self, vector: u8) -> bool {
        let mut others = self.isr;
        let is_in_service = others.remove(vector);
        is_in_service && others.is_empty() && self.irr.is_empty() && !self.tmr.contains(vector)
    }

    /// The TSC value at which [`Self::expire`] should be called for the timer. It may have passed
    /// already.
    pub const fn next_deadline(&self) -> Option<u64> {
        if self.lvt[TIMER] & LVT_MASKED != 0 { None } else { self.timer.next_deadline() }
    }

    /// Collects the timer's end if it has passed: requests its vector, which is returned, and arms
    /// the next period. While the timer is masked the end has no effect.
    pub fn expire(&mut self, now_tsc: u64) -> Option<u8> {
        let lvt = self.lvt[TIMER];
        if !self.timer.expire(timer_mode(lvt), now_tsc) || lvt & LVT_MASKED != 0 {
            return None;
        }
        self.accept_fixed(lvt as u8, Trigger::Edge);
        Some(lvt as u8)
    }

    /// The guest's TSC was changed by `delta` (a write to the TSC or TSC_ADJUST MSR). To be called
    /// for every such change, so that a count in progress keeps its length.
    pub fn tsc_jumped(&mut self, delta: i64) {
        self.timer.tsc_jumped(delta);
    }

    fn raise_error(&mut self, error: u32) {
        self.errors |= error;
        let lvt = self.lvt[ERROR];
        // An error vector below 16 is an error too, which is recorded already: no recursion.
        if lvt & LVT_MASKED == 0 && lvt as u8 >= 16 {
            self.accept_fixed(lvt as u8, Trigger::Edge);
        }
    }
}

impl Described for Lapic {
    fn describe(&mut self, archive: &mut Archive<'_>) -> Result<(), Flaw> {
        const ERRORS: u32 = ESR_SEND_ILLEGAL_VECTOR | ESR_RECEIVED_ILLEGAL_VECTOR | ESR_ILLEGAL_REGISTER;
        let lvt_bits = |mut lvt: [u32; LVT_COUNT]| {
            lvt.iter_mut().zip(LVT_BITS).for_each(|(entry, (bits, _))| *entry &= bits);
            lvt
        };
        fields!(self, archive: base, page, tpr, svr & SVR_WRITABLE as u32, esr & ERRORS,
            errors & ERRORS, icr, lvt [lvt_bits], irr, isr, tmr, timer; same id)
    }
}

/// The mode of the timer's LVT entry. The reserved encoding cannot be written.
const fn timer_mode(lvt: u32) -> Mode {
    match Mode::of(lvt) {
        Some(mode) => mode,
        None => Mode::OneShot,
    }
}
