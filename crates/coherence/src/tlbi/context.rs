//! The virtual machine that a TLBI applies to.
//!
//! TLB maintenance for stage 2 acts on the VMID in VTTBR_EL2. A processor that has another virtual
//! machine's VMID there, or none, changes the register for the length of a sequence. Meanwhile it
//! may walk speculatively, so the registers must be consistent at every moment (A20):
//!
//! * VMID and table base are written together, the real ones of one machine; never a VMID with base
//!   0 or with another machine's tables.
//! * Some processors walk for EL1 by a speculative AT while EL2 runs ([`Errata::speculative_at`]).
//!   They would walk the former machine's stage 1 through the other's stage 2, and keep the result
//!   under the other's VMID. There, stage-1 walks are first disabled (TCR_EL1.EPD0 and EPD1), and
//!   enabled again after the former VTTBR_EL2 has been restored.

use core::ops::Range;

use super::errata::Errata;

/// A value of VTTBR_EL2.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Vttbr(u64);

impl Vttbr {
    /// For stage-2 tables whose root is at the physical address `root`, aligned to its size, and
    /// their machine's VMID. CnP is 0: processors do not share entries.
    pub const fn new(root: u64, vmid: u16) -> Self {
        Self((vmid as u64) << 48 | root & 0x0000_ffff_ffff_fffe)
    }

    /// The register's value.
    pub const fn bits(self) -> u64 {
        self.0
    }

    /// The VMID in it.
    pub const fn vmid(self) -> u16 {
        (self.0 >> 48) as u16
    }
}

/// The instructions, one method each, without any barrier of their own. HCR_EL2.TGE must be 0:
/// otherwise EL1's operations apply to the host.
///
/// The compiler must not move or omit any of them: `asm!` without `nomem`.
pub trait Stage2Tlb {
    /// DSB ISHST: stores to tables are visible to every processor's walks.
    fn order_stores(&self);
    /// DSB ISH: inner shareable maintenance has completed, and accesses, for all processors.
    fn complete(&self);
    /// DSB NSH: this processor's own maintenance has completed.
    fn complete_local(&self);
    /// DSB SY: cache maintenance by address has completed.
    fn complete_caches(&self);
    /// ISB.
    fn context_sync(&self);
    /// TLBI IPAS2E1IS; for [`page`](super::page).
    fn page(&self, operand: u64);
    /// TLBI RIPAS2E1IS; for [`range`](fn@super::range). Used only with
    /// [`Features::range`](super::Features::range).
    fn range(&self, operand: u64);
    /// TLBI VMALLE1IS: stage-1 and combined entries of the VMID.
    fn combined(&self);
    /// TLBI VMALLS12E1IS: all entries of the VMID.
    fn everything(&self);
    /// TLBI ALLE1IS: all entries of all VMIDs.
    fn all_vms(&self);
    /// TLBI VMALLE1: as [`combined`](Self::combined), on this processor.
    fn local_combined(&self);
    /// TLBI ALLE1: as [`all_vms`](Self::all_vms), on this processor.
    fn local_all_vms(&self);
    /// IC IALLUIS.
    fn instruction_cache(&self);
    /// IC IALLU.
    fn local_instruction_cache(&self);
    /// DC CIVAC for each line of some physical memory.
    fn clean(&self, memory: Range<u64>);
    /// Reads VTTBR_EL2.
    fn vttbr(&self) -> u64;
    /// Writes VTTBR_EL2.
    fn set_vttbr(&self, value: u64);
    /// Sets EPD0 and EPD1 in TCR_EL1, and returns its former value.
    fn forbid_stage1_walks(&self) -> u64;
    /// Writes TCR_EL1.
    fn restore_stage1_walks(&self, former: u64);
}

/// VTTBR_EL2 names a virtual machine; dropping this restores its former value.
///
/// Interrupts must be off meanwhile, and no guest may be entered.
#[must_use = "the former VTTBR_EL2 comes back at once"]
#[derive(Debug)]
pub struct Context<'t, T: Stage2Tlb> {
    tlb: &'t T,
    /// The former VTTBR_EL2, and the former TCR_EL1 if it was changed.
    former: Option<(u64, Option<u64>)>,
}

impl<'t, T: Stage2Tlb> Context<'t, T> {
    /// Makes TLB maintenance act on the machine that `vttbr` names. Changes nothing if that
    /// machine's guest was running.
    pub fn enter(tlb: &'t T, vttbr: Vttbr, errata: Errata) -> Self {
        let old = tlb.vttbr();
        if old == vttbr.bits() {
            return Self { tlb, former: None };
        }
        let stage1 = errata.speculative_at.then(|| {
            let former = tlb.forbid_stage1_walks();
            tlb.context_sync();
            former
        });
        tlb.set_vttbr(vttbr.bits());
        // The TLBI must come after the write.
        tlb.context_sync();
        Self { tlb, former: Some((old, stage1)) }
    }

    pub(super) const fn tlb(&self) -> &'t T {
        self.tlb
    }
}

impl<T: Stage2Tlb> Drop for Context<'_, T> {
    fn drop(&mut self) {
        let Some((vttbr, stage1)) = self.former else { return };
        self.tlb.set_vttbr(vttbr);
        self.tlb.context_sync();
        if let Some(former) = stage1 {
            self.tlb.restore_stage1_walks(former);
            self.tlb.context_sync();
        }
    }
}
