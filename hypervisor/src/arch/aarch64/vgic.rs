//! The virtual CPU interface: list registers, and what of it belongs to a vCPU.
//!
//! Source: Arm IHI 0069H, chapter 6 and section 12.4.

use core::sync::atomic::{AtomicU32, Ordering};

use super::gic;
use super::sysreg::{read, write};
use crate::devices::gic::{LIST_MAX, ListRegisters, Maintenance, View, running_priority};

/// ICH_HCR_EL2.En.
const ENABLE: u64 = 1;

/// ICH_VTR_EL2, which is the same on all CPUs.
static TYPE: AtomicU32 = AtomicU32::new(0);

/// Readies the calling CPU's interface: nothing in it.
pub(crate) fn init_cpu() {
    TYPE.store(read!("ich_vtr_el2") as u32, Ordering::Relaxed);
    // SAFETY: no guest has run here yet.
    unsafe {
        write!("ich_hcr_el2", 0);
        write!("ich_vmcr_el2", 0);
    }
    (0..Lists.count()).for_each(|index| Lists.write(index, 0));
    // SAFETY: as above.
    unsafe { write!("ich_hcr_el2", ENABLE) };
}

fn preemption_bits() -> u32 {
    (TYPE.load(Ordering::Relaxed) >> 26 & 7) + 1
}

/// The list registers of the calling CPU.
pub(crate) struct Lists;

macro_rules! by_index {
    ($index:expr, $act:ident) => {
        match $index {
            0 => $act!("ich_lr0_el2"),
            1 => $act!("ich_lr1_el2"),
            2 => $act!("ich_lr2_el2"),
            3 => $act!("ich_lr3_el2"),
            4 => $act!("ich_lr4_el2"),
            5 => $act!("ich_lr5_el2"),
            6 => $act!("ich_lr6_el2"),
            7 => $act!("ich_lr7_el2"),
            8 => $act!("ich_lr8_el2"),
            9 => $act!("ich_lr9_el2"),
            10 => $act!("ich_lr10_el2"),
            11 => $act!("ich_lr11_el2"),
            12 => $act!("ich_lr12_el2"),
            13 => $act!("ich_lr13_el2"),
            14 => $act!("ich_lr14_el2"),
            _ => $act!("ich_lr15_el2"),
        }
    };
}

impl ListRegisters for Lists {
    #[inline(always)]
    fn count(&self) -> usize {
        ((TYPE.load(Ordering::Relaxed) & 0x1f) as usize + 1).min(LIST_MAX)
    }

    #[inline]
    fn read(&self, index: usize) -> u64 {
        by_index!(index, read)
    }

    #[inline]
    fn write(&mut self, index: usize, value: u64) {
        macro_rules! put {
            ($name:literal) => {
                // SAFETY: an interrupt of the guest's; the register exists, `count` says.
                unsafe { write!($name, value) }
            };
        }
        by_index!(index, put)
    }
}

/// Sets which maintenance interrupts the interface asks for.
pub(crate) fn set_maintenance(maintenance: Maintenance) {
    // SAFETY: the virtual interface; while it is on, its maintenance interrupt is handled.
    unsafe { write!("ich_hcr_el2", ENABLE | u64::from(maintenance.bits())) };
}

/// ICH_HCR_EL2.
pub(crate) fn control() -> u64 {
    read!("ich_hcr_el2")
}

/// ICH_VMCR_EL2: what the guest has set up.
#[inline(always)]
pub(crate) fn interface_setup() -> u64 {
    read!("ich_vmcr_el2")
}

/// What the interface lets through.
pub(crate) fn view() -> View {
    let mut active = [(read!("ich_ap0r0_el2") | read!("ich_ap1r0_el2")) as u32, 0, 0, 0];
    let bits = preemption_bits();
    if bits > 5 {
        active[1] = (read!("ich_ap0r1_el2") | read!("ich_ap1r1_el2")) as u32;
    }
    if bits > 6 {
        active[2] = (read!("ich_ap0r2_el2") | read!("ich_ap1r2_el2")) as u32;
        active[3] = (read!("ich_ap0r3_el2") | read!("ich_ap1r3_el2")) as u32;
    }
    View::new(read!("ich_vmcr_el2"), running_priority(&active, bits))
}

/// Deactivates physical private interrupts, a bit for each.
pub(crate) fn deactivate(intids: u32) {
    let mut left = intids;
    while left != 0 {
        gic::deactivate(left.trailing_zeros());
        left &= left - 1;
    }
}

/// A vCPU's part of the interface when it is off the CPU.
#[derive(Clone, Debug)]
pub(crate) struct Interface {
    vmcr: u64,
    active0: [u64; 4],
    active1: [u64; 4],
}

impl Interface {
    /// After reset: everything masked, no group enabled, binary points at their lowest.
    pub(crate) const fn reset() -> Self {
        Self { vmcr: 0, active0: [0; 4], active1: [0; 4] }
    }

    /// From the processor into memory.
    pub(crate) fn save(&mut self) {
        self.vmcr = read!("ich_vmcr_el2");
        self.active0[0] = read!("ich_ap0r0_el2");
        self.active1[0] = read!("ich_ap1r0_el2");
        if preemption_bits() > 5 {
            self.active0[1] = read!("ich_ap0r1_el2");
            self.active1[1] = read!("ich_ap1r1_el2");
        }
        if preemption_bits() > 6 {
            self.active0[2] = read!("ich_ap0r2_el2");
            self.active1[2] = read!("ich_ap1r2_el2");
            self.active0[3] = read!("ich_ap0r3_el2");
            self.active1[3] = read!("ich_ap1r3_el2");
        }
    }

    /// From memory into the processor.
    pub(crate) fn load(&self) {
        // SAFETY: the virtual interface is the guest's; the registers exist, ICH_VTR_EL2 says.
        unsafe {
            write!("ich_vmcr_el2", self.vmcr);
            write!("ich_ap0r0_el2", self.active0[0]);
            write!("ich_ap1r0_el2", self.active1[0]);
            if preemption_bits() > 5 {
                write!("ich_ap0r1_el2", self.active0[1]);
                write!("ich_ap1r1_el2", self.active1[1]);
            }
            if preemption_bits() > 6 {
                write!("ich_ap0r2_el2", self.active0[2]);
                write!("ich_ap1r2_el2", self.active1[2]);
                write!("ich_ap0r3_el2", self.active0[3]);
                write!("ich_ap1r3_el2", self.active1[3]);
            }
        }
    }
}
