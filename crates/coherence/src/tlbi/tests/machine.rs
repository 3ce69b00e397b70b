//! Two processors with TLBs that keep whatever they may, and a record of instructions.

use core::cell::{Cell, RefCell};
use core::ops::Range;
use std::string::String;
use std::vec::Vec;

use crate::tlbi::{Granule, Stage2Tlb};

/// The VMID that the sequences apply to, and another machine's.
pub(super) const VMID: u16 = 3;
pub(super) const OTHER: u16 = 7;
pub(super) const ROOT: u64 = 0x8_0000;

/// An entry that a processor holds for a VMID.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Held {
    /// Stage 2 alone: a leaf of this level (Arm's count) at an address.
    Leaf { ipa: u64, level: u32 },
    /// The address of the table to which the stage-2 entry of this level points.
    Walk { ipa: u64, level: u32 },
    /// Both stages combined: no stage-2 operation finds it.
    Combined,
    /// A speculative walk has mixed two machines (A20).
    Mixed,
}

/// An invalidation in progress.
#[derive(Clone, Copy, Debug)]
enum Pending {
    Stage2 { start: u64, len: u64, ttl: u64 },
    Combined,
    Everything,
    AllVms,
}

/// An instruction that a processor does not do as it should.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Mistake {
    NoCombined,
    NotOrdered,
    CompletesLocally,
    NotCompleted,
    WrongHint,
    WalksGoOn,
}

fn shift(level: u32) -> u32 {
    12 + (3 - level) * 9
}

impl Pending {
    fn removes(self, held: Held) -> bool {
        let meets = |start: u64, len: u64, ipa: u64, level: u32| {
            let first = ipa >> shift(level) << shift(level);
            first < start + len && start < first + (1 << shift(level))
        };
        match (self, held) {
            (Self::Everything | Self::AllVms, _) | (Self::Combined, Held::Combined | Held::Mixed) => true,
            (Self::Stage2 { start, len, ttl }, Held::Leaf { ipa, level }) => {
                (ttl == 0 || ttl == u64::from(level)) && meets(start, len, ipa, level)
            }
            (Self::Stage2 { start, len, ttl: 0 }, Held::Walk { ipa, level }) => meets(start, len, ipa, level),
            _ => false,
        }
    }
}

/// The machine. The instructions are executed by processor 0.
#[derive(Debug)]
pub(super) struct Processors {
    /// What each processor holds, by VMID.
    tlbs: RefCell<[Vec<(u16, Held)>; 2]>,
    pending: RefCell<Vec<(u16, Pending, bool)>>,
    /// A change of the tables that walks do not see yet: the entries that they would load again.
    hidden: RefCell<Vec<Held>>,
    /// Data lines that a guest dirties while it holds a translation.
    pub(super) cleaned_early: Cell<bool>,
    vttbr: Cell<u64>,
    tcr: Cell<u64>,
    /// Walks for EL1 may happen at any time.
    pub(super) is_speculative: Cell<bool>,
    pub(super) trace: RefCell<Vec<String>>,
    mistake: Option<Mistake>,
}

impl Processors {
    /// Both processors hold `held`, and the change that should remove it has just been stored.
    pub(super) fn new(held: &[Held]) -> Self {
        let entries: Vec<_> = held.iter().map(|&held| (VMID, held)).collect();
        Self {
            tlbs: RefCell::new([entries.clone(), entries]),
            pending: RefCell::default(),
            hidden: RefCell::new(held.to_vec()),
            cleaned_early: Cell::new(false),
            vttbr: Cell::new(u64::from(VMID) << 48 | ROOT),
            tcr: Cell::new(0x1234),
            is_speculative: Cell::new(false),
            trace: RefCell::default(),
            mistake: None,
        }
    }

    /// The same with a mistake.
    pub(super) fn with(self, mistake: Mistake) -> Self {
        Self { mistake: Some(mistake), ..self }
    }

    fn makes(&self, mistake: Mistake) -> bool {
        self.mistake == Some(mistake)
    }

    /// The same while another machine's guest is loaded.
    pub(super) fn elsewhere(self) -> Self {
        self.vttbr.set(u64::from(OTHER) << 48 | 0x9_0000);
        self
    }

    fn note(&self, what: &str) {
        self.trace.borrow_mut().push(what.into());
    }

    pub(super) fn trace(&self) -> Vec<String> {
        self.trace.borrow().clone()
    }

    /// The entries that either processor holds under a VMID.
    pub(super) fn held(&self, vmid: u16) -> Vec<Held> {
        let tlbs = self.tlbs.borrow();
        tlbs.iter().flatten().filter(|(of, _)| *of == vmid).map(|(_, held)| *held).collect()
    }

    pub(super) fn hold(&self, cpu: usize, vmid: u16, held: Held) {
        self.tlbs.borrow_mut()[cpu].push((vmid, held));
    }

    /// VTTBR_EL2 and TCR_EL1.
    pub(super) fn registers(&self) -> (u64, u64) {
        (self.vttbr.get(), self.tcr.get())
    }

    fn ask(&self, what: Pending, is_local: bool) {
        let vmid = (self.vttbr.get() >> 48) as u16;
        self.pending.borrow_mut().push((vmid, what, is_local));
    }

    /// Completes the pending invalidations; broadcasts only on the own processor if `is_local`.
    fn finish(&self, is_local: bool) {
        let mut tlbs = self.tlbs.borrow_mut();
        for (vmid, what, local) in self.pending.take() {
            let cpus = if is_local || local { 1 } else { 2 };
            for tlb in &mut tlbs[..cpus] {
                tlb.retain(|&(of, held)| {
                    let is_its = of == vmid || matches!(what, Pending::AllVms);
                    !(is_its && what.removes(held))
                });
                // A walk now loads from the tables as it sees them.
                for &held in &*self.hidden.borrow() {
                    if !tlb.contains(&(VMID, held)) {
                        tlb.push((VMID, held));
                    }
                }
            }
        }
    }

    /// A walk for EL1 with the current registers.
    fn speculate(&self) {
        let (vmid, base) = ((self.vttbr.get() >> 48) as u16, self.vttbr.get() & 0xffff_ffff_ffff);
        assert!(base != 0, "a VMID without its tables (A20)");
        if self.is_speculative.get() && self.tcr.get() & (1 << 7 | 1 << 23) == 0 && vmid == VMID {
            // The other machine's stage 1 is still loaded.
            self.hold(0, VMID, Held::Mixed);
        }
    }
}

impl Stage2Tlb for Processors {
    fn order_stores(&self) {
        self.note("order_stores");
        if !self.makes(Mistake::NotOrdered) {
            self.hidden.borrow_mut().clear();
        }
    }

    fn complete(&self) {
        self.note("complete");
        if !self.makes(Mistake::NotCompleted) {
            self.finish(self.makes(Mistake::CompletesLocally));
        }
    }

    fn complete_local(&self) {
        self.note("complete_local");
        self.finish(true);
    }

    fn complete_caches(&self) {
        self.note("complete_caches");
    }

    fn context_sync(&self) {
        self.note("context_sync");
    }

    fn page(&self, operand: u64) {
        self.note("page");
        let ttl = if self.makes(Mistake::WrongHint) { 0b0110 } else { operand >> 44 & 0xf };
        assert!(ttl == 0 || ttl >> 2 == 1, "the granule of 4 KiB");
        let start = (operand & ((1 << 40) - 1)) << 12;
        self.ask(Pending::Stage2 { start, len: Granule::Size4K.bytes(), ttl: ttl & 3 }, false);
    }

    fn range(&self, operand: u64) {
        self.note("range");
        assert_eq!(operand >> 46, 1, "the granule of 4 KiB");
        let (scale, num) = (operand >> 44 & 3, operand >> 39 & 31);
        let start = (operand & ((1 << 37) - 1)) << 12;
        let len = (num + 1) << (5 * scale + 1) << 12;
        let ttl = if self.makes(Mistake::WrongHint) { 2 } else { operand >> 37 & 3 };
        self.ask(Pending::Stage2 { start, len, ttl }, false);
    }

    fn combined(&self) {
        self.note("combined");
        if !self.makes(Mistake::NoCombined) {
            self.ask(Pending::Combined, false);
        }
    }

    fn everything(&self) {
        self.note("everything");
        self.ask(Pending::Everything, false);
    }

    fn all_vms(&self) {
        self.note("all_vms");
        self.ask(Pending::AllVms, false);
    }

    fn local_combined(&self) {
        self.note("local_combined");
        self.ask(Pending::Combined, true);
    }

    fn local_all_vms(&self) {
        self.note("local_all_vms");
        self.ask(Pending::AllVms, true);
    }

    fn instruction_cache(&self) {
        self.note("instruction_cache");
    }

    fn local_instruction_cache(&self) {
        self.note("local_instruction_cache");
    }

    fn clean(&self, _memory: Range<u64>) {
        self.note("clean");
        // A guest that still has a translation dirties the line again.
        if !self.held(VMID).is_empty() {
            self.cleaned_early.set(true);
        }
    }

    fn vttbr(&self) -> u64 {
        self.vttbr.get()
    }

    fn set_vttbr(&self, value: u64) {
        self.note("set_vttbr");
        self.vttbr.set(value);
        self.speculate();
    }

    fn forbid_stage1_walks(&self) -> u64 {
        self.note("forbid_stage1_walks");
        let forbidden = if self.makes(Mistake::WalksGoOn) { 0 } else { 1 << 7 | 1 << 23 };
        self.tcr.replace(self.tcr.get() | forbidden)
    }

    fn restore_stage1_walks(&self, former: u64) {
        self.note("restore_stage1_walks");
        self.tcr.set(former);
        self.speculate();
    }
}
