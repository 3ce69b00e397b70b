//! The virtual CPU interface: list registers, and maintenance interrupts.
//!
//! Source: Arm IHI 0069H, chapter 6 and section 12.4.

use core::sync::atomic::{AtomicU32, Ordering};

use crate::arch::aarch64::sysreg::{read, write};
use crate::devices::virt::gic::{self, Maintenance};

/// ICH_HCR_EL2.En.
const ENABLE: u64 = 1;

/// ICH_VTR_EL2, which is the same on all CPUs.
static TYPE: AtomicU32 = AtomicU32::new(0);

pub(in crate::arch::aarch64) fn init_cpu() {
    TYPE.store(read!("ich_vtr_el2") as u32, Ordering::Relaxed);
    // SAFETY: the registers are the virtual interface's, and no guest has run on this CPU yet.
    unsafe {
        write!("ich_hcr_el2", 0);
        write!("ich_vmcr_el2", 0);
    }
    (0..list_count()).for_each(|index| write_list(index, 0));
    // SAFETY: as above.
    unsafe { write!("ich_hcr_el2", ENABLE) };
}

pub(in crate::arch::aarch64) fn preemption_bits() -> u32 {
    gic::preemption_bits(TYPE.load(Ordering::Relaxed))
}

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

#[inline(always)]
pub(in crate::arch::aarch64) fn list_count() -> usize {
    gic::list_count(TYPE.load(Ordering::Relaxed))
}

#[inline]
pub(in crate::arch::aarch64) fn read_list(index: usize) -> u64 {
    by_index!(index, read)
}

/// Writes a list register that exists.
#[inline]
pub(in crate::arch::aarch64) fn write_list(index: usize, value: u64) {
    macro_rules! put {
        ($name:literal) => {
            // SAFETY: a list register concerns the guest alone; `list_count` says that it exists.
            unsafe { write!($name, value) }
        };
    }
    by_index!(index, put)
}

pub(in crate::arch::aarch64) fn set_maintenance(maintenance: Maintenance) {
    // SAFETY: the register controls the virtual interface, whose maintenance interrupt the
    // hypervisor handles whenever it is enabled.
    unsafe { write!("ich_hcr_el2", ENABLE | u64::from(maintenance.bits())) };
}

/// ICH_HCR_EL2.
pub(in crate::arch::aarch64) fn control() -> u64 {
    read!("ich_hcr_el2")
}
