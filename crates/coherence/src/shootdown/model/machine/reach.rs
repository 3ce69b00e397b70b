//! How a CPU of the model reaches others: by interrupt, or by the hypervisor.

use super::{ModelState, Tagged};
use crate::TargetSet;
use crate::shootdown::{Flush, Pinned, Remote};

/// Interrupts for all but those that the hypervisor flushes.
pub(in crate::shootdown::model) struct Reach<'m> {
    pub(in crate::shootdown::model) machine: &'m ModelState,
    /// The CPUs that the hypervisor flushes.
    pub(in crate::shootdown::model) direct: TargetSet<1>,
    /// It flushes what is loaded and nothing else, even if tables go.
    pub(in crate::shootdown::model) is_shallow: bool,
}

impl<'m> Reach<'m> {
    pub(in crate::shootdown::model) fn by_interrupt(machine: &'m ModelState) -> Self {
        Self { machine, direct: TargetSet::new(), is_shallow: false }
    }

    /// By the hypervisor where it is CPU 1, and by interrupt otherwise.
    pub(in crate::shootdown::model) fn by_hypercall(machine: &'m ModelState) -> Self {
        Self { direct: TargetSet::from_banks([0b10]), ..Self::by_interrupt(machine) }
    }
}

impl Remote<1> for Reach<'_> {
    fn interrupt(&mut self, targets: &TargetSet<1>) {
        targets.iter().for_each(|cpu| self.machine.send_interrupt(cpu));
    }

    /// The call returns when it is over: each target is taken out of guest mode, and its TLB
    /// cleaned.
    fn begin(&mut self, targets: &mut TargetSet<1>, flush: &Flush<'_>, _: &Pinned) {
        for cpu in targets.and(&self.direct).iter() {
            let _out = self.machine.instruction(cpu);
            let mut state = self.machine.tlbs[cpu].lock().expect("nobody panics in it");
            state.drop_pages(flush.ranges(), flush.ranges().is_none() || flush.frees_tables());
            if flush.frees_tables() && !self.is_shallow {
                state
                    .tags
                    .iter_mut()
                    .for_each(|tagged| *tagged = Tagged { tree: tagged.tree, ..Tagged::default() });
            }
        }
        *targets = targets.without(&self.direct);
    }
}
