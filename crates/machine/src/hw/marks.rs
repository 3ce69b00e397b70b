//! Accessed and dirty bits: the bits that a processor sets in the entries that it uses.

use super::cpu::Hw;
use super::format::{Arch, Entry, Stage};
use super::walk::{Fault, Nested, Step, Translation, Walker};
use crate::layout::PAGE_SIZE;

/// How many times the walk by which a processor sets a bit may go back in time.
pub(super) const ASSIST_BUDGET: u32 = 1;

impl Hw {
    /// Whether a store to `gpa` is recorded in the nested leaf currently in memory; `None` if there
    /// is none.
    pub(crate) fn is_noted(&mut self, cpu: usize, gpa: u64) -> Option<bool> {
        let (mark, now) = (self.steps.len(), self.memory.now());
        let nested = self.walk(cpu, 0, |walker| walker.nested_walk(now, gpa, false));
        self.steps.truncate(mark);
        nested?.ok().map(|nested| nested.dirty)
    }

    /// Whether an entry that was read from memory just now is not marked as accessed.
    pub(super) fn has_unused_steps(&self) -> bool {
        let now = self.memory.now();
        self.steps.iter().any(|step| step.time == now && step.word_gpa.is_some() && !is_accessed(step))
    }

    /// Sets accessed and dirty bits in the guest's entries that were read just now: stores to guest
    /// memory, like any other.
    pub(super) fn set_guest_bits(
        &mut self,
        cpu: usize,
        found: Translation,
        store: bool,
        stored: &mut Vec<u64>,
    ) -> Result<(), Fault> {
        let now = self.memory.now();
        for index in 0..self.steps.len() {
            let step = self.steps[index];
            let Some(gpa) = step.word_gpa.filter(|_| step.time == now) else { continue };
            let is_leaf = matches!(step.format.decode(step.entry, step.level), Entry::Leaf { .. });
            let used = step.format.used(step.entry, store && is_leaf && found.write);
            if used == step.entry {
                continue;
            }
            let nested = self.nested_for_store(cpu, gpa, true)?;
            self.check(nested.place)?;
            if nested.place.pa == step.word {
                self.memory.store(step.word, used);
                stored.push(step.word);
            }
        }
        Ok(())
    }

    /// A nested translation for a store, from memory: the processor records the store in the leaf.
    pub(super) fn nested_for_store(&mut self, cpu: usize, gpa: u64, in_walk: bool) -> Result<Nested, Fault> {
        let now = self.memory.now();
        let walk = |walker: &mut Walker<'_>| walker.nested_walk(now, gpa, in_walk);
        let nested = self.walk(cpu, ASSIST_BUDGET, walk).ok_or(Fault::Guest)??;
        if !nested.write {
            return Err(Fault::Nested { gpa, in_walk, store: true });
        }
        if !nested.dirty {
            self.set_word_used(nested.word, true);
            self.list(cpu, gpa);
        }
        Ok(Nested { dirty: true, ..nested })
    }

    /// Intel64 lists the page whose dirty bit it sets (SDM volume 3, 29.3.6).
    fn list(&mut self, cpu: usize, gpa: u64) {
        if self.arch() == Arch::Intel64 {
            self.listed[cpu].push(gpa / PAGE_SIZE * PAGE_SIZE);
        }
    }

    /// Whether some processor has listed the page, and its list was not taken since.
    pub(crate) fn is_listed(&self, gpa: u64) -> bool {
        self.listed.iter().any(|pages| pages.contains(&(gpa / PAGE_SIZE * PAGE_SIZE)))
    }

    /// Takes what a processor has listed.
    pub(crate) fn take_listed(&mut self, cpu: usize) -> Vec<u64> {
        core::mem::take(&mut self.listed[cpu])
    }

    /// Sets accessed bits in the nested entries that were read just now.
    pub(super) fn set_nested_bits(&mut self) {
        for index in 0..self.steps.len() {
            let step = self.steps[index];
            if step.format.stage == Stage::Nested && !is_accessed(&step) {
                self.set_word_used(step.word, false);
            }
        }
    }

    pub(super) fn set_word_used(&mut self, word: u64, store: bool) {
        let format = self.format(Stage::Nested);
        let entry = self.memory.load(word);
        self.memory.store(word, format.used(entry, store));
    }
}

fn is_accessed(step: &Step) -> bool {
    match step.format.decode(step.entry, step.level) {
        Entry::Table { accessed, .. } | Entry::Leaf { accessed, .. } => accessed,
        Entry::Absent => true,
    }
}
