//! The interrupts that the guest's CPU interface admits: ICH_VMCR_EL2 and the active priorities.

use super::Groups;

/// The part of a vCPU's CPU interface that decides which interrupts are signalled. Read from the
/// hardware while the vCPU is on the CPU, otherwise from the saved state.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct View {
    vmcr: u64,
    running: u8,
}

const VENG0: u64 = 1 << 0;
const VENG1: u64 = 1 << 1;
const VCBPR: u64 = 1 << 4;
const VEOIM: u64 = 1 << 9;

impl View {
    /// From ICH_VMCR_EL2 and the running priority ([`running_priority`]).
    pub const fn new(vmcr: u64, running: u8) -> Self {
        Self { vmcr, running }
    }

    /// Groups that the guest has enabled (ICC_IGRPEN0_EL1, ICC_IGRPEN1_EL1).
    pub const fn groups(self) -> Groups {
        Groups::from_bits((self.vmcr & (VENG0 | VENG1)) as u8)
    }

    /// Whether an end of interrupt only drops the priority, and ICC_DIR_EL1 deactivates
    /// (ICC_CTLR_EL1.EOImode).
    pub const fn splits_eoi(self) -> bool {
        self.vmcr & VEOIM != 0
    }

    /// Priority mask: only numerically lower priorities are signalled (ICC_PMR_EL1).
    pub const fn mask(self) -> u8 {
        (self.vmcr >> 24) as u8
    }

    /// Whether an interrupt of this priority and group is signalled to the vCPU, if it is the
    /// highest pending one (IHI 0069H section 4.8). PSTATE is ignored, as it is for the end of a
    /// WFI.
    pub const fn admits(self, priority: u8, group1: bool) -> bool {
        let enabled = self.vmcr & if group1 { VENG1 } else { VENG0 } != 0;
        enabled && priority < self.mask() && priority & self.preemption_mask(group1) < self.running
    }

    /// The bits of a priority that decide about preemption (section 4.8.5): those above the binary
    /// point. If group 1 has its own binary point, its split is one bit lower than group 0's for
    /// the same value.
    const fn preemption_mask(self, group1: bool) -> u8 {
        let point = if group1 && self.vmcr & VCBPR == 0 {
            (self.vmcr >> 18 & 7) as u32
        } else {
            (self.vmcr >> 21 & 7) as u32 + 1
        };
        (0xff_u32 << point) as u8
    }
}

/// The highest priority among `active`: ICH_AP0R&lt;n&gt;_EL2 ORed with ICH_AP1R&lt;n&gt;_EL2, n
/// from 0, on hardware with `preemption_bits` (ICH_VTR_EL2.PREbits + 1). 0xff if there is none.
pub fn running_priority(active: &[u32], preemption_bits: u32) -> u8 {
    let shift = 8_u32.saturating_sub(preemption_bits);
    let first = active.iter().zip(0_u32..4).find(|(word, _)| **word != 0);
    first.map_or(0xff, |(word, index)| ((index * 32 + word.trailing_zeros()) << shift) as u8)
}

#[cfg(test)]
mod tests {
    use super::*;

    const OPEN: u64 = 0xff << 24 | VENG1 | VENG0;

    #[test]
    fn mask_groups_and_running_priority_hold_back() {
        let view = View::new(OPEN, 0xff);
        assert!(view.admits(0xf8, true) && view.admits(0, false));
        assert!(!View::new(OPEN & !VENG1, 0xff).admits(0, true));
        assert!(View::new(OPEN & !VENG1, 0xff).admits(0, false));
        let masked = View::new(0xa0 << 24 | VENG1, 0xff);
        assert!(masked.admits(0x98, true) && !masked.admits(0xa0, true), "equal is masked");
        let running = View::new(OPEN, 0xa0);
        assert!(running.admits(0x98, true) && !running.admits(0xa0, true) && !running.admits(0xa8, true));
    }

    #[test]
    fn the_binary_point_decides_what_preempts() {
        // Group 1's point at 5: bits 7:5 decide; 0xa8 and 0xb8 are the same as 0xa0.
        let view = |vmcr: u64, running| View::new(OPEN | vmcr, running);
        assert!(
            view(5 << 18, 0xb8).admits(0xa0, true),
            "the running priority is a group priority on hardware"
        );
        assert!(!view(5 << 18, 0xa0).admits(0x98 | 0x20, true));
        assert!(!view(4 << 21, 0x80).admits(0x98, false), "bits 7:5 for group 0 at 4");
        assert!(view(4 << 21 | 7 << 18 | VCBPR, 0xa0).admits(0x98, true), "group 0's point for both");
        assert!(!view(7 << 21, 0).admits(0, false), "point 7 of group 0: no preemption");
    }

    #[test]
    fn running_priority_is_the_lowest_bit() {
        assert_eq!(running_priority(&[0, 0, 0, 0], 5), 0xff);
        assert_eq!(running_priority(&[1 << 20 | 1 << 31], 5), 0xa0);
        assert_eq!((running_priority(&[0, 1, 0, 1], 7), running_priority(&[], 5)), (64, 0xff));
    }
}
