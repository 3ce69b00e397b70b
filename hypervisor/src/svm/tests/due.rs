//! What an entry has to deliver, by the manuals: an event that an exit has cut short comes again,
//! unless an exception has taken its place, and nothing comes that nobody has sent (SDM volume 3,
//! sections 7.15, 28.2.4; APM volume 2, sections 8.2.9, 15.7.2, 15.20).

use super::guest::{Guest, Kind};
use crate::x86::RFLAGS_IF;
use crate::x86::processor::Vendor;
use crate::x86::vcpu::block::ControlBlock;
use crate::x86::vcpu::block::Field::Rflags;
use crate::x86::vcpu::event::{TYPE_EXCEPTION, TYPE_INTERRUPT, TYPE_MASK, TYPE_NMI, VALID};
use crate::x86::vcpu::nmi::Nmi;

/// What an event has for the processor: bit 12 and what is above it are reserved.
const MEANT: u64 = 0xffff_ffff_8000_0fff;
/// #DF.
const DOUBLE_FAULT: u64 = 8;

fn is(event: u64, kind: u64) -> bool {
    event & (VALID | TYPE_MASK) == VALID | kind
}

/// Whether an exception in the delivery of another makes a double fault, or ends all.
fn is_double(first: u64, second: u64) -> bool {
    // Benign, contributory, a page fault, a double fault.
    let class = |event: u64| match event & 0xff {
        0 | 10..=13 => 1,
        14 => 2,
        DOUBLE_FAULT => 3,
        _ => 0,
    };
    matches!((class(first), class(second)), (1, 1) | (2, 1 | 2) | (3, 1..))
}

/// The event that an entry has to deliver, or 0.
#[derive(Default)]
pub(crate) struct Due(pub(crate) u64);

impl Due {
    /// See [`Guest::due`]. An entry that is called off has prepared its event, if it is no
    /// interrupt: that stays.
    pub(crate) fn of<A: Kind>(
        &mut self,
        guest: &Guest<'_, '_, A>,
        cut: u64,
        raised: Option<u64>,
        is_blocked: bool,
    ) -> u64 {
        if self.0 == 0 || is(self.0, TYPE_INTERRUPT) {
            self.0 = guest.due(cut, raised, is_blocked);
        }
        self.0
    }

    pub(crate) fn is_nmi(&self) -> bool {
        is(self.0, TYPE_NMI)
    }
}

impl<A: Kind> Guest<'_, '_, A> {
    /// The event that the next entry has to deliver, after an exit that has cut `cut` short and
    /// whose handler has raised this exception. Whether NMIs are blocked is the caller's to know.
    pub(crate) fn due(&self, cut: u64, raised: Option<u64>, is_blocked: bool) -> u64 {
        if let Some(second) = raised {
            let first = if is(cut, TYPE_EXCEPTION) { cut } else { 0 };
            let is_one = first == 0 || !is_double(first, second) || second & 0xff == DOUBLE_FAULT;
            assert!(is_one, "{second:#x} in the delivery of {cut:#x}");
            assert!(first & 0xff != DOUBLE_FAULT || !is_double(first, second), "a third fault");
            assert!(second & 0xff != DOUBLE_FAULT || cut & VALID != 0, "a double fault, and no first");
            return second & MEANT;
        }
        let is_own = is(cut, TYPE_EXCEPTION) && !matches!(cut & 0xff, 3 | 4);
        if is_own || is(cut, TYPE_NMI) {
            return cut & MEANT;
        }
        let state = &*self.0.state;
        if state.block.has_shadow() || state.block.has_debug_pending() {
            return 0;
        }
        if state.nmi.contains(Nmi::PENDING) && !is_blocked {
            return VALID | TYPE_NMI | 2;
        }
        // As a local APIC, the processor delivers interrupts itself.
        let is_processors = state.lapic.is_x2apic() && <A as Vendor>::has_apic();
        let is_open = state.block.read(Rflags) & RFLAGS_IF != 0 && !is_processors;
        let vector = state.lapic.pending().filter(|_| is_open);
        vector.map_or(0, |vector| VALID | TYPE_INTERRUPT | u64::from(vector))
    }

    /// An interrupt whose delivery was cut short is a request again.
    pub(crate) fn check_request(&mut self, cut: u64) {
        if is(cut, TYPE_INTERRUPT) {
            let (irr, isr, _) = self.0.state.lapic.sets();
            let vector = cut as u8;
            assert!(irr.contains(vector) && !isr.contains(vector), "the local APIC has not got {cut:#x}");
        }
    }

    /// An NMI is not forgotten, if something else comes before it.
    pub(crate) fn check_nmi(&self, cut: u64, delivered: u64) {
        let is_kept = self.0.state.nmi.contains(Nmi::PENDING);
        assert!(!is(cut, TYPE_NMI) || is(delivered, TYPE_NMI) || is_kept, "an NMI is lost");
    }
}
