//! The initiator: from a batch to a receipt.

use core::fmt;
use core::marker::PhantomData;
use core::ops::Deref;

use crate::mailbox::Generation;
use crate::set::TargetSet;
use crate::shootdown::batch::{Batch, Kind};
use crate::shootdown::cpu::LocalCpu;
use crate::shootdown::mode::Mode;
use crate::shootdown::range::PageRange;
use crate::shootdown::remote::{Flush, Pinned, Remote, Tlb};
use crate::shootdown::slot::{Change, CpuSlot, List, Request};
use crate::shootdown::space::AddressSpace;

/// The effects of a flush, for counters.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ShootdownOutcome {
    /// Other CPUs that had to flush.
    pub targets: u32,
    /// Of these, those interrupted by this initiator.
    pub interrupted: u32,
    /// Of these, those served by an interrupt that another initiator had sent.
    pub merged: u32,
    /// Of these, those flushed without their help.
    pub direct: u32,
    /// CPUs skipped because they were lazy; not among the targets.
    pub lazy: u32,
    /// The flush was of everything, not of ranges.
    pub everything: bool,
    /// Turns of waiting, summed over all targets.
    pub turns: u64,
}

/// A flush that is over: the batch's items may be freed.
#[must_use = "what was held leaks"]
#[derive(Debug)]
pub struct Done<K, C> {
    /// The proof.
    pub receipt: ShootdownReceipt<K>,
    /// The items that the batch held.
    pub cargo: C,
}

/// Proof that a flush of a batch of kind `K` is over (G1, G2). It cannot be made in another way:
///
/// ```compile_fail,E0451
/// use quell_coherence::shootdown::{ShootdownOutcome, Pages, ShootdownReceipt};
/// let _receipt = ShootdownReceipt::<Pages> { outcome: ShootdownOutcome::default(), kind: core::marker::PhantomData };
/// ```
#[derive(Debug, PartialEq, Eq)]
pub struct ShootdownReceipt<K> {
    outcome: ShootdownOutcome,
    kind: PhantomData<K>,
}

impl<K> ShootdownReceipt<K> {
    /// The effects of the flush.
    pub const fn outcome(&self) -> ShootdownOutcome {
        self.outcome
    }

    /// Whether every CPU that used the space took an interrupt for this flush, so that none is
    /// still in an interrupts-off section that began before. A kernel whose software walks page
    /// tables without a lock but with interrupts off may free tables at once only if this is true;
    /// otherwise it has to wait until such walks have ended, as RCU does (P24).
    pub const fn excludes_walkers(&self) -> bool {
        self.outcome.direct == 0 && self.outcome.lazy == 0
    }
}

/// A CPU did not acknowledge: the machine, or its interrupt, is broken. Nothing may be freed; the
/// batch's items are leaked, and the space counts as being changed forever.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Stalled {
    /// The CPU.
    pub cpu: usize,
    /// The effects of the flush up to that point.
    pub outcome: ShootdownOutcome,
}

impl fmt::Display for Stalled {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "shootdown: CPU {} has not acknowledged", self.cpu)
    }
}

impl core::error::Error for Stalled {}

/// A flush in progress.
pub(super) struct Plan<'r> {
    pub(super) change: Change,
    pub(super) root: u64,
    /// `None` stands for everything.
    pub(super) ranges: Option<&'r [PageRange]>,
    pub(super) outcome: ShootdownOutcome,
}

impl<S, const BANKS: usize, const TAGS: usize> LocalCpu<'_, S, BANKS, TAGS>
where
    S: Deref<Target = AddressSpace<BANKS>>,
{
    /// Flushes the changes of the batch, here and on every CPU that may use the space, and returns
    /// when G1 and G2 hold.
    ///
    /// This CPU need not have the space loaded. Its translations of the space under another tag are
    /// dropped when it next loads the space.
    ///
    /// # Errors
    /// [`Stalled`] when [`Tlb::relax`] gave up on a CPU.
    ///
    /// # Panics
    /// If a CPU that is not among this one's [`Cpus`](super::Cpus) has the space loaded.
    pub fn flush<K: Kind, C, M: Mode<K>>(
        &mut self,
        batch: Batch<'_, K, C, BANKS>,
        _mode: M,
        remote: &mut impl Remote<BANKS>,
        tlb: &mut impl Tlb,
    ) -> Result<Done<K, C>, Stalled> {
        let space = batch.space;
        let others = space.others_open(); // A'
        let outcome = if batch.is_empty() && !others {
            ShootdownOutcome::default()
        } else {
            let ranges = batch.scope().filter(|_| !others);
            let (plan, targets) = self.issue::<K>(space, ranges); // B, C, D
            self.carry_through::<M>(plan, targets, remote, tlb)?
        };
        space.close();
        Ok(Done { receipt: ShootdownReceipt { outcome, kind: PhantomData }, cargo: batch.into_cargo() })
    }

    /// B, C, D: counts the change, and determines which CPUs have to flush.
    pub(super) fn issue<'r, K: Kind>(
        &mut self,
        space: &AddressSpace<BANKS>,
        ranges: Option<&'r [PageRange]>,
    ) -> (Plan<'r>, TargetSet<BANKS>) {
        let generation = space.bump(); // B
        let mut targets = space.members(); // C
        targets.remove(self.index);
        let mut lazy = 0;
        if !K::TABLES {
            lazy = self.spare_lazy(&mut targets); // D
        }
        let outcome = ShootdownOutcome {
            targets: targets.count() as u32,
            lazy,
            everything: ranges.is_none(),
            ..ShootdownOutcome::default()
        };
        let change = Change { space: space.id, generation, tables: K::TABLES };
        (Plan { change, root: space.root(), ranges, outcome }, targets)
    }

    /// D: removes the lazy CPUs from the set, and counts them.
    pub(super) fn spare_lazy(&self, targets: &mut TargetSet<BANKS>) -> u32 {
        let mut lazy = TargetSet::new();
        for cpu in targets.iter().filter(|&cpu| self.cpus.slot(cpu).is_some_and(CpuSlot::is_lazy)) {
            let _fits = lazy.insert(cpu);
        }
        *targets = targets.without(&lazy);
        lazy.count() as u32
    }

    /// E to H, in the order of the mode.
    pub(super) fn carry_through<M: super::mode::sealed::Mode>(
        &mut self,
        mut plan: Plan<'_>,
        mut targets: TargetSet<BANKS>,
        remote: &mut impl Remote<BANKS>,
        tlb: &mut impl Tlb,
    ) -> Result<ShootdownOutcome, Stalled> {
        if M::LOCAL_FIRST {
            self.flush_here(&plan, tlb); // G
        }
        let pin = Pinned::new();
        self.begin(&mut plan, &mut targets, remote, &pin);
        self.ask::<M>(&mut plan, &targets, remote); // E, F
        if !M::LOCAL_FIRST {
            self.flush_here(&plan, tlb); // G
        }
        remote.complete(&pin);
        self.wait(&mut plan, tlb)?; // H
        Ok(plan.outcome)
    }

    /// Lets the back end flush the targets that it can without interrupts. It leaves the others in
    /// `targets`.
    pub(super) fn begin(
        &self,
        plan: &mut Plan<'_>,
        targets: &mut TargetSet<BANKS>,
        remote: &mut impl Remote<BANKS>,
        pin: &Pinned,
    ) {
        let asked = *targets;
        let Plan { change, root, ranges, .. } = *plan;
        remote.begin(targets, &Flush { root, ranges, tables: change.tables }, pin);
        // A CPU that was not a target cannot receive a request.
        *targets = targets.and(&asked);
        plan.outcome.direct = (asked.count() - targets.count()) as u32;
    }

    /// E, F: posts the request to each target, and interrupts those for which it is the first.
    pub(super) fn ask<M: super::mode::sealed::Mode>(
        &mut self,
        plan: &mut Plan<'_>,
        targets: &TargetSet<BANKS>,
        remote: &mut impl Remote<BANKS>,
    ) {
        self.ledger.clear();
        if targets.is_empty() {
            return;
        }
        let list = if M::INLINE { plan.ranges.and_then(List::inline) } else { self.lend(plan.ranges) };
        let request = list.map(|list| Request { change: plan.change, list });
        let mut interrupted = TargetSet::new();
        for cpu in targets.iter() {
            let slot = self.cpus.slot(cpu).expect("who loads a space of these CPUs is one of them");
            let posted = slot.post(request.as_ref(), plan.change.tables || !M::EARLY); // E
            self.ledger.note(cpu, Generation(posted.count));
            if !posted.is_first || !interrupted.insert(cpu) {
                plan.outcome.merged += 1;
            }
        }
        plan.outcome.interrupted = interrupted.count() as u32;
        if !interrupted.is_empty() {
            remote.interrupt(&interrupted); // F
        }
    }

    /// Puts the ranges where targets can read them; `None` if they do not fit, or if a target of an
    /// earlier flush may still read the cells.
    fn lend(&self, ranges: Option<&[PageRange]>) -> Option<List> {
        let (ranges, cells) = (ranges?, self.cpus.cells(self.index));
        let fits = ranges.len() <= cells.len() && !self.is_lent;
        fits.then(|| {
            cells.iter().zip(ranges).for_each(|(cell, range)| cell.write(*range));
            List::Lent { cpu: self.index, len: ranges.len() }
        })
    }

    /// G: flushes this CPU's TLB.
    pub(super) fn flush_here(&mut self, plan: &Plan<'_>, tlb: &mut impl Tlb) {
        let is_loaded = self.loaded.as_deref().is_some_and(|loaded| loaded.id == plan.change.space);
        match plan.ranges {
            Some(ranges) => self.drop_pages(plan.change, ranges.iter().copied(), tlb),
            None if is_loaded => self.catch_up(tlb),
            None => {}
        }
    }

    /// H: waits for each CPU with a request, and meanwhile serves requests of others (O14).
    pub(super) fn wait(&mut self, plan: &mut Plan<'_>, tlb: &mut impl Tlb) -> Result<(), Stalled> {
        for cpu in self.ledger.awaited().iter() {
            let Some(slot) = self.cpus.slot(cpu) else { continue };
            let mut turns = 0u64;
            while !slot.is_complete(self.ledger.generation(cpu).0) {
                if self.slot.is_pending() && self.serve(tlb) {
                    continue;
                }
                if tlb.relax(turns).is_break() {
                    self.is_lent = true;
                    return Err(Stalled { cpu, outcome: plan.outcome });
                }
                turns = turns.saturating_add(1);
                plan.outcome.turns = plan.outcome.turns.saturating_add(1);
            }
        }
        Ok(())
    }
}
