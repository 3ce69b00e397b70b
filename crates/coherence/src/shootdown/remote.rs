//! The parts that the caller supplies: its own TLB, and ways to reach those of others.

use core::marker::PhantomData;
use core::ops::ControlFlow;

use crate::set::TargetSet;
use crate::shootdown::range::PageRange;

/// The tag under which a CPU has loaded a space: a PCID, or an ASID local to the CPU.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Tag(pub u16);

/// The TLB of the calling CPU, without global translations: those belong to no space.
pub trait Tlb {
    /// Makes the CPU walk from `root`, under `tag`. Unless `keep` is set, drops all of the tag's
    /// translations and cached upper levels; it may drop more. On x86-64 a write to CR3, with bit
    /// 63 for `keep`.
    fn load(&mut self, root: u64, tag: Tag, keep: bool);

    /// Makes the CPU walk from a root without translations of any space, under a tag of none.
    fn load_none(&mut self);

    /// Drops all translations of the loaded tag, and all cached upper levels.
    fn flush_everything(&mut self);

    /// Drops the translations of these pages from the loaded tag, and, if `tables`, the cached
    /// upper levels on the way to them. On x86-64, INVLPG with each of
    /// [`addresses`](PageRange::addresses).
    fn flush_range(&mut self, range: PageRange, tables: bool);

    /// The number of pages in one request from which on
    /// [`flush_everything`](Self::flush_everything) is cheaper.
    fn pages_max(&self) -> u64 {
        32
    }

    /// One turn of waiting for a CPU, such as a pause instruction. `turns` counts the calls before
    /// this one for the same CPU, from 0 on. `Break` gives up: choose a bound that a working
    /// machine never reaches.
    fn relax(&mut self, turns: u64) -> ControlFlow<()>;
}

/// The proof that the CPU has begun to walk from another root than before, which it needs to be
/// taken out of the set of a space that it had loaded ([`AddressSpace`](super::AddressSpace)). The
/// functions here alone make it.
#[derive(Debug)]
pub(super) struct Elsewhere(());

impl Elsewhere {
    /// Loads a space, as [`Tlb::load`].
    pub(super) fn by_loading(tlb: &mut impl Tlb, root: u64, tag: Tag, keep: bool) -> Self {
        tlb.load(root, tag, keep);
        Self(())
    }

    /// Loads no space.
    pub(super) fn by_loading_none(tlb: &mut impl Tlb) -> Self {
        tlb.load_none();
        Self(())
    }

    /// For model CPUs that make mistakes.
    #[cfg(all(test, loom))]
    pub(super) const fn forged() -> Self {
        Self(())
    }
}

/// A way to reach the TLBs of other CPUs.
///
/// CPUs can always be interrupted; a back end that needs no interrupts takes on some or all of the
/// targets in [`begin`](Self::begin). A flush that uses both is over when both parts are (O18).
pub trait Remote<const BANKS: usize> {
    /// Makes each of `targets` call [`serve`](super::LocalCpu::serve) soon. None of them is the
    /// caller.
    ///
    /// Earlier read-modify-writes must be complete when the interrupt arrives. Locked instructions
    /// are; on Arm, issue a DSB first.
    fn interrupt(&mut self, targets: &TargetSet<BANKS>);

    /// Begins to flush the TLBs of `targets` without their help. Removes from the set the targets
    /// that it takes on; the others are interrupted. If it cannot express a flush, it widens it or
    /// leaves the target in the set. An empty set means no target.
    ///
    /// It has to drop the translations under the tag that the target has loaded when the flush
    /// reaches it, whichever tag that is. Translations under other tags are dropped when the target
    /// loads that space again, unless the flush [frees tables](Flush::frees_tables): then it has to
    /// drop the target's translations of the space under any tag, because between loading the root
    /// and finding the generation changed the target may walk ahead (P1). When the flush is over,
    /// stores made through the dropped translations must be visible (G2).
    fn begin(&mut self, targets: &mut TargetSet<BANKS>, flush: &Flush<'_>, pin: &Pinned) {
        let (_, _, _) = (targets, flush, pin);
    }

    /// Returns when everything that `begin` took on is over. Called once after each `begin`, on the
    /// same CPU: TLBSYNC waits only for the INVLPGBs of its own CPU (O17).
    fn complete(&mut self, pin: &Pinned) {
        let _ = pin;
    }
}

impl<const BANKS: usize, R: Remote<BANKS>> Remote<BANKS> for &mut R {
    fn interrupt(&mut self, targets: &TargetSet<BANKS>) {
        (**self).interrupt(targets);
    }

    fn begin(&mut self, targets: &mut TargetSet<BANKS>, flush: &Flush<'_>, pin: &Pinned) {
        (**self).begin(targets, flush, pin);
    }

    fn complete(&mut self, pin: &Pinned) {
        (**self).complete(pin);
    }
}

/// The flush that a direct back end has to do.
#[derive(Clone, Copy, Debug)]
pub struct Flush<'a> {
    pub(super) root: u64,
    /// `None` stands for everything.
    pub(super) ranges: Option<&'a [PageRange]>,
    pub(super) tables: bool,
}

impl<'a> Flush<'a> {
    /// The space's root, as passed to [`Spaces::create`](super::Spaces::create).
    pub const fn root(&self) -> u64 {
        self.root
    }

    /// The pages; `None` stands for the whole space. More may be flushed.
    pub const fn ranges(&self) -> Option<&'a [PageRange]> {
        self.ranges
    }

    /// Page tables are freed: cached upper levels must be dropped as well, under all tags.
    pub const fn frees_tables(&self) -> bool {
        self.tables
    }
}

/// Interrupts only: calls the function with the CPUs to interrupt.
#[derive(Clone, Copy, Debug)]
pub struct ByInterrupt<F>(pub F);

impl<const BANKS: usize, F: FnMut(&TargetSet<BANKS>)> Remote<BANKS> for ByInterrupt<F> {
    fn interrupt(&mut self, targets: &TargetSet<BANKS>) {
        (self.0)(targets);
    }
}

/// Instructions that flush other CPUs' TLBs: INVLPGB and TLBSYNC, or TLBI and DSB of the inner
/// shareable domain.
pub trait Broadcast {
    /// Invalidates on all CPUs and under all tags that may have the space. Earlier stores to page
    /// tables must be ordered first; on Arm that takes a DSB.
    fn invalidate(&mut self, flush: &Flush<'_>, pin: &Pinned);

    /// Returns when the invalidations of this CPU are complete everywhere, and stores made through
    /// the removed translations are visible.
    fn synchronise(&mut self, pin: &Pinned);
}

/// Broadcast instructions for CPUs that take part in them, interrupts for the others.
#[derive(Clone, Debug)]
pub struct ByBroadcast<B, R, const BANKS: usize> {
    /// The instructions.
    pub broadcast: B,
    /// Interrupts for the other CPUs.
    pub interrupts: R,
    /// The CPUs whose TLBs the instructions reach.
    pub reached: TargetSet<BANKS>,
    begun: bool,
}

impl<B, R, const BANKS: usize> ByBroadcast<B, R, BANKS> {
    /// A back end.
    pub const fn new(broadcast: B, interrupts: R, reached: TargetSet<BANKS>) -> Self {
        Self { broadcast, interrupts, reached, begun: false }
    }
}

impl<B: Broadcast, R: Remote<BANKS>, const BANKS: usize> Remote<BANKS> for ByBroadcast<B, R, BANKS> {
    fn interrupt(&mut self, targets: &TargetSet<BANKS>) {
        self.interrupts.interrupt(targets);
    }

    fn begin(&mut self, targets: &mut TargetSet<BANKS>, flush: &Flush<'_>, pin: &Pinned) {
        let asked = targets.count();
        self.reached.iter().for_each(|cpu| targets.remove(cpu));
        self.begun = targets.count() != asked;
        if self.begun {
            self.broadcast.invalidate(flush, pin);
        }
    }

    fn complete(&mut self, pin: &Pinned) {
        if core::mem::take(&mut self.begun) {
            self.broadcast.synchronise(pin);
        }
    }
}

/// Keeps the holder on its CPU from the beginning of a flush to its completion. It cannot be sent
/// to another thread:
///
/// ```compile_fail,E0277
/// fn elsewhere(pin: quell_coherence::shootdown::Pinned) {
///     std::thread::spawn(move || drop(pin));
/// }
/// ```
///
/// nor can a reference to it (which is all that back ends get):
///
/// ```compile_fail,E0277
/// fn elsewhere(pin: &'static quell_coherence::shootdown::Pinned) {
///     std::thread::spawn(move || std::println!("{pin:?}"));
/// }
/// ```
#[derive(Debug)]
pub struct Pinned(PhantomData<*const ()>);

impl Pinned {
    /// For the CPU whose [`LocalCpu`](super::LocalCpu) is borrowed for the whole flush.
    pub(super) const fn new() -> Self {
        Self(PhantomData)
    }
}
