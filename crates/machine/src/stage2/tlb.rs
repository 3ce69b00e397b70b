//! Instructions of TLB maintenance, as the machine's processors execute them.

use std::cell::Cell;
use std::ops::Range;

use coherence::tlbi::Stage2Tlb;
use stay::{Mistake, Mistakes};

use crate::bug::Bug;
use crate::hw::cpu::{Roots, Tag};
use crate::hw::instruction::Tlbi;
use crate::machine::AbstractMachine;

/// Instructions, as one CPU executes them.
pub(crate) struct Tlb<'m> {
    pub(super) machine: &'m AbstractMachine,
    pub(super) cpu: usize,
    /// The register, and its value when the processor last synchronized: until it does so again, it
    /// may use either.
    pub(super) vttbr: Cell<u64>,
    pub(super) in_effect: Cell<u64>,
    /// Tables that are loaded with VTTBR_EL2; `None` if it is written only for a sequence, while
    /// nothing walks.
    pub(super) roots: Option<Roots>,
}

impl Tlb<'_> {
    fn ask(&self, what: Tlbi) {
        let what = if self.machine.has(Bug::WalkCacheKept) { what.of_leaves() } else { what };
        let (vttbr, in_effect) = (self.vttbr.get(), self.in_effect.get());
        let used = if vttbr != in_effect && self.machine.below(2) == 0 { in_effect } else { vttbr };
        self.machine.hw.borrow_mut().tlbi(self.cpu, (used >> 48) as Tag, what);
    }

    /// Reserved encodings do nothing.
    fn ask_if(&self, what: Option<Tlbi>) {
        match what {
            Some(what) => self.ask(what),
            None => self.machine.fail(|| "the operand of a TLBI is reserved".into()),
        }
    }
}

impl Stage2Tlb for Tlb<'_> {
    // Memory is sequentially consistent here, and there are no caches except TLBs.
    fn order_stores(&self) {}
    fn complete_caches(&self) {}
    fn instruction_cache(&self) {}
    fn local_instruction_cache(&self) {}
    fn clean(&self, _memory: Range<u64>) {}
    fn restore_stage1_walks(&self, _former: u64) {}

    fn forbid_stage1_walks(&self) -> u64 {
        0
    }

    fn context_sync(&self) {
        let vttbr = self.vttbr.get();
        if vttbr == self.in_effect.get() || self.machine.has(Bug::VttbrNotSynchronized) {
            return;
        }
        self.in_effect.set(vttbr);
        if let Some(roots) = self.roots {
            self.machine.hw.borrow_mut().load(self.cpu, (vttbr >> 48) as Tag, roots);
            self.machine.hook();
        }
    }

    fn complete(&self) {
        if self.machine.has(Bug::CompletedLocally) {
            return self.complete_local();
        }
        self.machine.hw.borrow_mut().dsb(self.cpu);
        self.machine.hook();
    }

    fn complete_local(&self) {
        self.machine.hw.borrow_mut().dsb_local(self.cpu);
        self.machine.hook();
    }

    fn page(&self, operand: u64) {
        self.ask_if(Tlbi::page(operand));
    }

    fn range(&self, operand: u64) {
        if !self.machine.config.arm.range {
            self.machine.fail(|| "a range instruction, which the processor does not have".into());
        }
        self.ask_if(Tlbi::range(operand));
    }

    fn combined(&self) {
        if !self.machine.has(Bug::CombinedKept) {
            self.ask(Tlbi::Vmall);
        }
    }

    fn everything(&self) {
        self.ask(Tlbi::VmallS12);
    }

    fn all_vms(&self) {
        self.machine.fail(|| "nobody invalidates for all machines".into());
    }

    fn local_combined(&self) {
        self.ask(Tlbi::VmallLocal);
    }

    fn local_all_vms(&self) {
        let is_missed = self.machine.misses_rollover(self.cpu);
        if !is_missed && !self.machine.has(Bug::GenerationFlushedEarly) {
            self.ask(Tlbi::AllLocal);
        }
    }

    fn vttbr(&self) -> u64 {
        self.vttbr.get()
    }

    fn set_vttbr(&self, value: u64) {
        self.vttbr.set(value);
        if self.roots.is_some() {
            if self.machine.has(Bug::GenerationFlushedEarly) {
                // As if it were always necessary, but not afterwards.
                self.ask(Tlbi::AllLocal);
                self.complete_local();
            }
            self.machine.stage2.vttbr[self.cpu].set(value);
            self.machine.hook();
        }
    }
}

impl Mistakes for Tlb<'_> {
    fn makes(&self, mistake: Mistake) -> bool {
        self.machine.makes(mistake)
    }
}
