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

use super::errata::Errata;
use super::sequence::Stage2Tlb;

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
