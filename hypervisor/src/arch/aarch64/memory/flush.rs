//! TLB maintenance: the instructions, and how a change of guest memory reaches all processors.
//!
//! The sequences are `coherence::tlbi`'s. This module has their instructions, and is the only one
//! that writes a TLBI for a guest.

use coherence::tlbi::Stage2Tlb;
use core::arch::asm;
use core::ops::Range;
use hostlink::defect::Defect;
use paging::FlushRange;
use stay::{Mistake, Mistakes, broadcast};

use crate::arch::Local;
use crate::arch::aarch64::sysreg::{read, write};
use crate::arm64::audit::auditor::Auditor;
use crate::arm64::controls::data_line;
use crate::arm64::guest::Tag;
use crate::vm::arch::Board;
use crate::vm::defects::{Defects, makes};

pub(crate) struct Tlb;

impl Mistakes for Tlb {
    #[inline(always)]
    fn makes(&self, mistake: Mistake) -> bool {
        Defects.makes(mistake)
    }
}

/// Defines a method that executes one instruction; a defect may omit it.
macro_rules! instruction {
    ($($name:ident: $text:literal $(but $defect:ident)?;)*) => {
        $(
            #[inline(always)]
            fn $name(&self) {
                $(if makes(Defect::$defect) {
                    return;
                })?
                // SAFETY: maintenance of the guest's translations, or a barrier. Without `nomem`
                // the compiler moves no memory access across it.
                unsafe { asm!($text, options(nostack, preserves_flags)) };
            }
        )*
    };
}

impl Stage2Tlb for Tlb {
    instruction! {
        order_stores: "dsb ishst" but Stage2NoIshst;
        complete_local: "dsb nsh";
        complete_caches: "dsb sy";
        context_sync: "isb";
        combined: "tlbi vmalle1is" but Stage2NoCombined;
        everything: "tlbi vmalls12e1is" but Stage2NoTlbi;
        all_vms: "tlbi alle1is";
        instruction_cache: "ic ialluis";
        local_instruction_cache: "ic iallu";
    }

    #[inline(always)]
    fn local_combined(&self) {
        // SAFETY: as above.
        unsafe { asm!("tlbi vmalle1", options(nostack, preserves_flags)) };
        Auditor::drop_local::<Local>();
    }

    #[inline(always)]
    fn local_all_vms(&self) {
        // SAFETY: as above.
        unsafe { asm!("tlbi alle1", options(nostack, preserves_flags)) };
        Auditor::drop_local::<Local>();
    }

    #[inline(always)]
    fn complete(&self) {
        // SAFETY: a barrier, across which the compiler moves nothing.
        unsafe {
            match makes(Defect::Stage2DsbNsh) {
                false => asm!("dsb ish", options(nostack, preserves_flags)),
                true => asm!("dsb nsh", options(nostack, preserves_flags)),
            }
        }
    }

    #[inline(always)]
    fn page(&self, operand: u64) {
        if makes(Defect::Stage2NoTlbi) {
            return;
        }
        // SAFETY: as above.
        unsafe { asm!("tlbi ipas2e1is, {}", in(reg) operand, options(nostack, preserves_flags)) };
    }

    #[inline(always)]
    fn range(&self, operand: u64) {
        if makes(Defect::Stage2NoTlbi) {
            return;
        }
        // RIPAS2E1IS by its encoding, because the image also runs on processors without it: used
        // only with the feature. SAFETY: as above.
        unsafe { asm!("sys #4, c8, c0, #2, {}", in(reg) operand, options(nostack, preserves_flags)) };
    }

    fn clean(&self, memory: Range<u64>) {
        clean(memory);
    }

    #[inline(always)]
    fn vttbr(&self) -> u64 {
        read!("vttbr_el2")
    }

    #[inline(always)]
    fn set_vttbr(&self, value: u64) {
        // SAFETY: the caller names tables that are complete, and EL2 does not translate by them; no
        // guest runs on this CPU now.
        unsafe { write!("vttbr_el2", value) };
    }

    fn forbid_stage1_walks(&self) -> u64 {
        const EPD: u64 = 1 << 7 | 1 << 23;
        let former = read!("tcr_el1");
        // SAFETY: EL2 does not translate by the guest's register, and its value is restored before
        // the guest runs.
        unsafe { write!("tcr_el1", former | EPD) };
        former
    }

    fn restore_stage1_walks(&self, former: u64) {
        // SAFETY: as above.
        unsafe { write!("tcr_el1", former) };
    }
}

/// Cleans and invalidates the data-cache lines of a range of physical memory, which is mapped one
/// to one.
fn clean(memory: Range<u64>) {
    let line = data_line(read!("ctr_el0"));
    let mut at = memory.start & !(line - 1);
    // Eight at a time, while that many are left: the loop costs as much as the instruction.
    while at.saturating_add(8 * line) <= memory.end {
        // SAFETY: cache maintenance changes no contents; the memory is mapped.
        unsafe {
            asm!(
                "dc civac, {0}", "add {0}, {0}, {1}", "dc civac, {0}", "add {0}, {0}, {1}",
                "dc civac, {0}", "add {0}, {0}, {1}", "dc civac, {0}", "add {0}, {0}, {1}",
                "dc civac, {0}", "add {0}, {0}, {1}", "dc civac, {0}", "add {0}, {0}, {1}",
                "dc civac, {0}", "add {0}, {0}, {1}", "dc civac, {0}", "add {0}, {0}, {1}",
                inout(reg) at, in(reg) line, options(nostack, preserves_flags),
            );
        }
    }
    while at < memory.end {
        // SAFETY: as above.
        unsafe { asm!("dc civac, {}", in(reg) at, options(nostack, preserves_flags)) };
        at += line;
    }
}

/// Makes stores to tables visible to walks before what follows.
pub(crate) fn order_stores() {
    Tlb.order_stores();
}

/// The walker has made an entry invalid, and is about to write another one there.
pub(crate) fn break_before_make(tag: &Tag, range: &FlushRange) {
    if let Some(host) = Local::host() {
        broadcast::break_before_make(&Tlb, &host.common.address_space(tag), range);
    }
}
