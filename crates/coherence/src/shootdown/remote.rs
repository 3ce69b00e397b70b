//! What the caller supplies: its own TLB, and ways to reach those of others.

use core::marker::PhantomData;
use core::ops::ControlFlow;

use crate::set::TargetSet;
use crate::shootdown::range::PageRange;

/// Which of a CPU's tags a space is loaded under: a PCID, or an ASID that is the CPU's own.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Tag(pub u16);

/// The TLB of the CPU that calls, without its global translations: those are no space's.
pub trait Tlb {
    /// Makes the CPU walk from `root`, under `tag`. Unless `keep`, all of the tag's translations
    /// and cached upper levels are dropped; more may be. On x86-64 a write to CR3, with bit 63 for
    /// `keep`.
    fn load(&mut self, root: u64, tag: Tag, keep: bool);

    /// Makes the CPU walk from a root that has none of any space's translations; not under a tag of
    /// a space.
    fn load_none(&mut self);

    /// Drops all translations of the tag that is loaded, and all cached upper levels.
    fn flush_everything(&mut self);

    /// Drops the translations of these pages from the tag that is loaded, and, if `tables`, the
    /// cached upper levels on the way to them. On x86-64, INVLPG with each of
    /// [`addresses`](PageRange::addresses).
    fn flush_range(&mut self, range: PageRange, tables: bool);

    /// Pages of one request from which on [`flush_everything`](Self::flush_everything) is cheaper.
    fn pages_max(&self) -> u64 {
        32
    }

    /// One turn of waiting for a CPU; `turns` were spent on it before. `Break` gives up: choose a
    /// bound that a working machine never reaches.
    fn relax(&mut self, turns: u64) -> ControlFlow<()>;
}

/// How the TLBs of other CPUs are reached.
///
/// CPUs can always be interrupted; what can do without that takes on some or all of the targets in
/// [`begin`](Self::begin). A flush that is part one, part the other is over when both are (O18).
pub trait Remote<const BANKS: usize> {
    /// Makes each of `targets` call [`serve`](super::LocalCpu::serve) soon. None of them is the
    /// caller.
    ///
    /// Read-modify-writes that come before must be over when the interrupt arrives. Locked
    /// instructions are; on Arm a DSB comes first.
    fn interrupt(&mut self, targets: &TargetSet<BANKS>);

    /// Begins to flush the TLBs of `targets` without their help. Removes from the set those that it
    /// takes on; the others are interrupted. What it cannot express it widens, or it leaves the
    /// target in the set; an empty set is nobody.
    ///
    /// It has to drop what the target has loaded when the flush comes to it, whatever tag that is
    /// under. What lies under other tags is dropped when the target loads that space again, unless
    /// the flush [frees tables](Flush::frees_tables): then it has to drop whatever the target has
    /// of the space under any tag, for from loading the root to finding the generation changed the
    /// target may walk ahead (P1). When the flush is over, stores that were made by the
    /// translations it dropped must be visible (G2).
    fn begin(&mut self, targets: &mut TargetSet<BANKS>, flush: &Flush<'_>, pin: &Pinned) {
        let (_, _, _) = (targets, flush, pin);
    }

    /// Returns when all that `begin` took on is over. Called once after each `begin`, on the same
    /// CPU: TLBSYNC waits for the INVLPGBs of its own CPU only (O17).
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

/// What a direct back end is to flush.
#[derive(Clone, Copy, Debug)]
pub struct Flush<'a> {
    pub(super) root: u64,
    /// `None` stands for everything.
    pub(super) ranges: Option<&'a [PageRange]>,
    pub(super) tables: bool,
}

impl<'a> Flush<'a> {
    /// The space's root, as it was given to [`Spaces::create`](super::Spaces::create).
    pub const fn root(&self) -> u64 {
        self.root
    }

    /// The pages; `None` stands for all of the space. More may be flushed.
    pub const fn ranges(&self) -> Option<&'a [PageRange]> {
        self.ranges
    }

    /// Page tables are freed: cached upper levels have to go, too, and under all tags.
    pub const fn frees_tables(&self) -> bool {
        self.tables
    }
}

/// Interrupts, and nothing else: calls the function with the CPUs to interrupt.
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
    /// tables come first; on Arm that takes a DSB.
    fn invalidate(&mut self, flush: &Flush<'_>, pin: &Pinned);

    /// Returns when what was invalidated on this CPU is over everywhere, and what was stored by it
    /// is visible.
    fn synchronise(&mut self, pin: &Pinned);
}

/// Broadcast instructions for CPUs that listen to them, interrupts for the others.
#[derive(Clone, Debug)]
pub struct ByBroadcast<B, R, const BANKS: usize> {
    /// The instructions.
    pub broadcast: B,
    /// For the others.
    pub interrupts: R,
    /// Whose TLBs the instructions reach.
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

/// The holder stays on its CPU from the beginning of a flush to its completion. It cannot go to
/// another:
///
/// ```compile_fail,E0277
/// fn elsewhere(pin: quell_coherence::shootdown::Pinned) {
///     std::thread::spawn(move || drop(pin));
/// }
/// ```
///
/// nor can a reference to it (which is what back ends get):
///
/// ```compile_fail,E0277
/// fn elsewhere(pin: &'static quell_coherence::shootdown::Pinned) {
///     std::thread::spawn(move || std::println!("{pin:?}"));
/// }
/// ```
#[derive(Debug)]
pub struct Pinned(PhantomData<*const ()>);

impl Pinned {
    /// Of the CPU whose [`LocalCpu`](super::LocalCpu) is borrowed for the whole of the flush.
    pub(super) const fn new() -> Self {
        Self(PhantomData)
    }
}
