//! Non-maskable interrupts: which one is pending, and until when (section 8.2.3).

use crate::x86::{CR0_PE, EFER_LMA, RFLAGS_NT, RFLAGS_VM};
use bitflags::bitflags;

bitflags! {
    /// State of a vCPU's non-maskable interrupts.
    #[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
    pub struct Nmi: u8 {
        /// One is pending.
        const PENDING = 1 << 0;
        /// One is being handled: the next waits for IRET, which is intercepted.
        const BLOCKED = 1 << 1;
        /// The next instruction is that IRET.
        const AT_IRET = 1 << 2;
        /// The guest is executing it.
        const STEPPING = 1 << 3;
        /// A second one is pending.
        const SECOND = 1 << 4;
    }
}

impl Nmi {
    /// Whether one is pending that the guest would take.
    pub const fn is_deliverable(self) -> bool {
        self.bits() & (Self::PENDING.bits() | Self::BLOCKED.bits()) == Self::PENDING.bits()
    }

    /// Whether none is pending and no IRET is being watched.
    pub const fn is_idle(self) -> bool {
        !self.intersects(Self::PENDING.union(Self::AT_IRET).union(Self::STEPPING))
    }

    /// One arrives. A processor holds one while another is being handled. An NMI that is pending
    /// here while none is handled would already have begun on real hardware, so there is room for a
    /// second.
    pub fn post(&mut self) {
        if self.is_deliverable() {
            self.insert(Self::SECOND);
        }
        self.insert(Self::PENDING);
    }

    /// The guest takes the pending one: the next waits for IRET.
    pub fn take(&mut self) {
        self.set(Self::PENDING, self.contains(Self::SECOND));
        self.remove(Self::SECOND);
        self.insert(Self::BLOCKED);
    }

    /// Undoes [`take`](Self::take): the delivery was cut short.
    pub fn give_back(&mut self) {
        self.remove(Self::BLOCKED);
        self.post();
    }
}

/// Whether IRET returns to another task rather than to the frame on the stack (APM volume 3,
/// "IRET"). Its flags are then stored with the task's state, where a trap flag that is not the
/// guest's would stay.
pub const fn iret_switches_tasks(cr0: u64, efer: u64, rflags: u64) -> bool {
    cr0 & CR0_PE != 0 && efer & EFER_LMA == 0 && rflags & (RFLAGS_NT | RFLAGS_VM) == RFLAGS_NT
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Number of NMIs that the guest takes until none is pending, each to its IRET.
    fn handled(mut nmi: Nmi) -> u32 {
        let mut count = 0;
        while nmi.is_deliverable() && count < 10 {
            nmi.take();
            assert!(!nmi.is_deliverable(), "one at a time");
            count += 1;
            nmi.remove(Nmi::BLOCKED);
        }
        count
    }

    #[test]
    fn u23_two_nmis_that_come_while_none_is_handled_are_two() {
        let mut nmi = Nmi::default();
        for posted in 1..=4 {
            nmi.post();
            assert_eq!(handled(nmi), posted.min(2), "{posted} posted");
        }
    }

    #[test]
    fn u23_while_one_is_handled_one_more_is_held() {
        let mut nmi = Nmi::default();
        nmi.post();
        nmi.take();
        for _ in 0..3 {
            nmi.post();
        }
        assert!(!nmi.is_deliverable());
        nmi.remove(Nmi::BLOCKED);
        assert_eq!(handled(nmi), 1);
    }

    #[test]
    fn u23_a_delivery_that_is_cut_short_loses_none() {
        let mut nmi = Nmi::default();
        nmi.post();
        nmi.take();
        nmi.give_back();
        assert_eq!(handled(nmi), 1);
        nmi.take();
        nmi.post();
        nmi.give_back();
        assert_eq!(handled(nmi), 2, "one came meanwhile");
    }

    #[test]
    fn u22_an_iret_to_another_task_is_told_from_others() {
        let nested = RFLAGS_NT | 2;
        assert!(iret_switches_tasks(CR0_PE, 0, nested));
        assert!(!iret_switches_tasks(CR0_PE, 0, 2), "not nested");
        assert!(!iret_switches_tasks(CR0_PE, 0, nested | RFLAGS_VM), "virtual-8086 mode has no tasks");
        assert!(!iret_switches_tasks(0, 0, nested), "nor has real mode");
        assert!(!iret_switches_tasks(CR0_PE, EFER_LMA, nested), "in long mode it faults");
    }
}
