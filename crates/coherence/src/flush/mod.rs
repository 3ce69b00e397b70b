//! The initiator's side: issue, dispatch, wait, each a type that only the previous step creates.
//!
//! [`issue`] publishes the request. Targets that are not in guest mode are done at that point: they
//! flush before they next enter. [`Issued::dispatch`] kicks the rest; the caller then flushes its
//! own CPU, if needed, while the others leave guest mode. [`Dispatched::wait`] returns when no
//! target can use an old translation any more.
//!
//! The initiator's own vCPU is a target like any other: it is out of guest mode while the initiator
//! runs, so it is neither kicked nor waited for. For the same reason any number of initiators may
//! flush each other at once, with interrupts off: none waits for another (O13, O14). Only the
//! initiator's own translation section must have ended.

use core::fmt;
use core::ops::ControlFlow;

use crate::CpuId;
use crate::mailbox::{Generation, Scope, Widened};
use crate::set::{Bits, Members, TargetSet};
use crate::target::{Claim, Target};
use crate::word;

/// The machine operations that the engine needs.
pub trait Hardware {
    /// Makes `cpu` leave guest mode soon, by an interrupt that the guest cannot hold off.
    ///
    /// It stays pending if the CPU is not in guest mode yet; it is harmless if the CPU has left.
    fn kick(&self, cpu: CpuId);

    /// One turn of waiting, such as a pause instruction. `turns` counts the calls before this one
    /// for the same target, from 0 on.
    ///
    /// `Break` gives up: choose a bound that a working machine never reaches.
    fn relax(&self, turns: u64) -> ControlFlow<()>;
}

/// Targets by index.
pub trait Targets {
    /// The target with this index; the same one for the whole flush. `None` is skipped: guests name
    /// virtual processors that do not exist. Removed targets keep their place.
    fn target(&self, index: usize) -> Option<&Target>;

    /// Calls `act` once with each target of `set` that exists, in any order. Worth overriding where
    /// targets are adjacent in memory: a flush of many vCPUs that do not run does little else.
    #[inline(always)]
    fn for_each<S: Members + ?Sized>(&self, set: &S, mut act: impl FnMut(usize, &Target)) {
        set.for_each_bank(|bank, bits| {
            for place in Bits(bits) {
                let index = bank * 64 + place;
                if let Some(target) = self.target(index) {
                    act(index, target);
                }
            }
        });
    }
}

impl Targets for [Target] {
    fn target(&self, index: usize) -> Option<&Target> {
        self.get(index)
    }
}

impl Targets for [&Target] {
    fn target(&self, index: usize) -> Option<&Target> {
        self.get(index).copied()
    }
}

/// The initiator's record of the targets that it waits for. Reused from flush to flush, one per
/// physical CPU. 520 bytes per 64 targets.
#[derive(Clone, Debug)]
pub struct Ledger<const BANKS: usize> {
    awaited: TargetSet<BANKS>,
    generations: [[Generation; 64]; BANKS],
}

impl<const BANKS: usize> Ledger<BANKS> {
    /// An empty ledger.
    pub const fn new() -> Self {
        Self { awaited: TargetSet::new(), generations: [[Generation(0); 64]; BANKS] }
    }

    /// Waits for no target.
    pub(crate) fn clear(&mut self) {
        self.awaited = TargetSet::new();
    }

    /// Targets to wait for.
    pub(crate) const fn awaited(&self) -> TargetSet<BANKS> {
        self.awaited
    }

    /// The generation to wait for of a target that was noted.
    pub(crate) fn generation(&self, index: usize) -> Generation {
        self.generations[index / 64][index % 64]
    }

    pub(crate) fn note(&mut self, index: usize, generation: Generation) {
        let fits = self.awaited.insert(index);
        assert!(fits, "target {index} exists, and the ledger has {BANKS} banks");
        self.generations[index / 64][index % 64] = generation;
    }

    /// Targets to wait for, each with its generation.
    fn entries(&self) -> impl Iterator<Item = (usize, Generation)> + '_ {
        self.awaited.iter().map(|index| (index, self.generations[index / 64][index % 64]))
    }
}

impl<const BANKS: usize> Default for Ledger<BANKS> {
    fn default() -> Self {
        Self::new()
    }
}

/// The effects of a flush, for counters.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct FlushOutcome {
    /// Targets that received the request and whose vCPU is present.
    pub targets: u32,
    /// Targets whose vCPU is absent. Not included above or below.
    pub absent: u32,
    /// Targets that have halted in another address space and so received no request. Not included
    /// above or below.
    pub elsewhere: u32,
    /// For a list: targets that had not taken an earlier request yet. One flush serves both.
    pub joined: u32,
    /// Those of the targets that flush everything because the list is longer than any mailbox.
    pub too_many_ranges: u32,
    /// Those of the targets that flush everything because their mailbox was too full of other
    /// ranges.
    pub mailbox_overflows: u32,
    /// Those of the targets that were neither kicked nor waited for: they flush when they next
    /// enter.
    pub deferred: u32,
    /// Of the remaining targets, those that this initiator kicked.
    pub kicks: u32,
    /// Of the remaining targets, those served by a kick that another CPU had claimed.
    pub merged: u32,
    /// Turns of waiting, summed over all targets.
    pub turns: u64,
}

/// Publishes a request for `scope` to every target of `set` that exists.
///
/// Change the page tables before this call; free unmapped memory only for a [`Receipt`].
///
/// # Panics
/// If the ledger has no place for a target that exists.
#[inline(always)] // The result is large to move, and unused if no target is in guest mode.
pub fn issue<'a, T: Targets + ?Sized, S: Members + ?Sized, const BANKS: usize>(
    targets: &'a T,
    set: &S,
    scope: Scope<'_>,
    ledger: &'a mut Ledger<BANKS>,
) -> Issued<'a, T, BANKS> {
    issue_unless(targets, set, scope, word::FLUSH_GUEST, ledger, |_| false)
}

/// Like [`issue`], for a guest that has changed the tables of one address space and no global
/// translation: it skips targets that have halted in another address space
/// ([`Space`](crate::Space)).
///
/// Use it only if `scope` need not include global translations, and if only `space` uses the
/// changed tables.
///
/// # Panics
/// As `issue`.
pub fn issue_in_space<'a, T: Targets + ?Sized, S: Members + ?Sized, const BANKS: usize>(
    targets: &'a T,
    set: &S,
    scope: Scope<'_>,
    space: u64,
    ledger: &'a mut Ledger<BANKS>,
) -> Issued<'a, T, BANKS> {
    let mut elsewhere = 0;
    let mut issued = issue_unless(targets, set, scope, word::FLUSH_GUEST, ledger, |target| {
        let halted_elsewhere = target.has_halted_elsewhere(space);
        elsewhere += u32::from(halted_elsewhere);
        halted_elsewhere
    });
    issued.outcome.elsewhere = elsewhere;
    issued
}

/// Requests a flush of those targets for which `is_spared` is false. `everything` is how the word
/// says it, if the scope is that.
#[inline(always)]
pub(crate) fn issue_unless<'a, T: Targets + ?Sized, S: Members + ?Sized, const BANKS: usize>(
    targets: &'a T,
    set: &S,
    scope: Scope<'_>,
    everything: u64,
    ledger: &'a mut Ledger<BANKS>,
    mut is_spared: impl FnMut(&Target) -> bool,
) -> Issued<'a, T, BANKS> {
    let is_everything = matches!(scope, Scope::All);
    let mut issuing = Issuing { scope, ledger, outcome: FlushOutcome::default() };
    let mut asked = 0u32;
    targets.for_each(
        set,
        #[inline(always)]
        |index, target| {
            if is_spared(target) {
                return;
            }
            // There are fewer targets than addresses.
            asked = asked.wrapping_add(1);
            // Nearly all targets where there are more vCPUs than CPUs.
            if !(is_everything && target.request_all_if_idle(everything)) {
                issuing.request(target, index);
            }
        },
    );
    let Issuing { ledger, mut outcome, .. } = issuing;
    let busy = outcome.targets;
    outcome.targets = asked - outcome.absent;
    outcome.deferred = outcome.targets - busy;
    Issued { targets, ledger, outcome }
}

/// Targets that need individual treatment: absent ones, and those in guest mode.
struct Issuing<'s, 'l, const BANKS: usize> {
    scope: Scope<'s>,
    ledger: &'l mut Ledger<BANKS>,
    /// `targets` counts those in guest mode. While it is 0, the ledger still holds the contents of
    /// an earlier flush.
    outcome: FlushOutcome,
}

impl<const BANKS: usize> Issuing<'_, '_, BANKS> {
    #[inline(never)]
    fn request(&mut self, target: &Target, index: usize) {
        let Self { scope, ledger, outcome } = self;
        let requested = target.request(*scope);
        if requested.absent {
            outcome.absent += 1;
            return;
        }
        // A request for everything would find the FLUSH that its own first step has set.
        outcome.joined += u32::from(requested.joined && !matches!(scope, Scope::All));
        match requested.widened {
            Some(Widened::TooLong) => outcome.too_many_ranges += 1,
            Some(Widened::Overflow) => outcome.mailbox_overflows += 1,
            None => {}
        }
        if requested.busy {
            if outcome.targets == 0 {
                ledger.awaited = TargetSet::new();
            }
            outcome.targets += 1;
            ledger.note(index, requested.generation);
        }
    }
}

/// [`issue`], [`dispatch`](Issued::dispatch) and [`wait`](Dispatched::wait) in one.
///
/// # Errors
/// [`Stalled`], as `wait` says.
///
/// # Panics
/// As `issue`.
pub fn flush<T: Targets + ?Sized, S: Members + ?Sized, const BANKS: usize>(
    targets: &T,
    set: &S,
    scope: Scope<'_>,
    ledger: &mut Ledger<BANKS>,
    hardware: &impl Hardware,
) -> Result<Receipt, Stalled> {
    issue(targets, set, scope, ledger).dispatch(hardware).wait(hardware)
}

/// The request is published: no target enters the guest without flushing first.
#[must_use = "a target in guest mode goes on using old translations"]
#[derive(Debug)]
pub struct Issued<'a, T: ?Sized, const BANKS: usize> {
    targets: &'a T,
    ledger: &'a mut Ledger<BANKS>,
    outcome: FlushOutcome,
}

impl<'a, T: Targets + ?Sized, const BANKS: usize> Issued<'a, T, BANKS> {
    /// The outcome so far.
    #[inline]
    pub const fn outcome(&self) -> &FlushOutcome {
        &self.outcome
    }

    /// The receipt, if no target was in guest mode: then there is no target to kick or wait for.
    #[inline(always)]
    pub fn receipt(&self) -> Option<Receipt> {
        (self.outcome.deferred == self.outcome.targets).then_some(Receipt { outcome: self.outcome })
    }

    /// Kicks the targets that are still in guest mode and that no other initiator has kicked.
    #[inline]
    pub fn dispatch(mut self, hardware: &impl Hardware) -> Dispatched<'a, T, BANKS> {
        if self.outcome.deferred != self.outcome.targets {
            self.kick(hardware);
        }
        Dispatched { targets: self.targets, ledger: self.ledger, outcome: self.outcome }
    }

    fn kick(&mut self, hardware: &impl Hardware) {
        for (index, _) in self.ledger.entries() {
            let Some(target) = self.targets.target(index) else { continue };
            match target.claim_kick() {
                Claim::Kick(cpu) => {
                    hardware.kick(cpu);
                    self.outcome.kicks += 1;
                }
                Claim::InFlight => self.outcome.merged += 1,
                Claim::Unneeded => {}
            }
        }
    }
}

/// Every target in guest mode is about to leave it.
#[must_use = "a target may still be in guest mode"]
#[derive(Debug)]
pub struct Dispatched<'a, T: ?Sized, const BANKS: usize> {
    targets: &'a T,
    ledger: &'a mut Ledger<BANKS>,
    outcome: FlushOutcome,
}

impl<T: Targets + ?Sized, const BANKS: usize> Dispatched<'_, T, BANKS> {
    /// Waits until each target that was in guest mode has left it or has recorded the flush.
    ///
    /// # Errors
    /// [`Stalled`] when [`Hardware::relax`] gave up on a target. In that case no unmapped memory
    /// may be freed; the request stays published.
    #[inline]
    pub fn wait(mut self, hardware: &impl Hardware) -> Result<Receipt, Stalled> {
        if self.outcome.deferred != self.outcome.targets {
            self.wait_for_each(hardware)?;
        }
        Ok(Receipt { outcome: self.outcome })
    }

    fn wait_for_each(&mut self, hardware: &impl Hardware) -> Result<(), Stalled> {
        for (index, generation) in self.ledger.entries() {
            let Some(target) = self.targets.target(index) else { continue };
            let mut turns = 0u64;
            while !target.is_quiet(generation) {
                if hardware.relax(turns).is_break() {
                    return Err(Stalled { index, cpu: target.cpu(), outcome: self.outcome });
                }
                turns = turns.saturating_add(1);
                self.outcome.turns = self.outcome.turns.saturating_add(1);
            }
        }
        Ok(())
    }
}

/// Proof that the flush is over: memory unmapped before `issue` may be reused.
#[must_use = "nothing may be freed without it"]
#[derive(Debug, PartialEq, Eq)]
pub struct Receipt {
    outcome: FlushOutcome,
}

impl Receipt {
    /// The effects of the flush.
    pub const fn outcome(&self) -> FlushOutcome {
        self.outcome
    }
}

/// A target did not leave guest mode within the bound: the machine or its kick is broken.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Stalled {
    /// Index of the target.
    pub index: usize,
    /// The CPU on which it was last in guest mode.
    pub cpu: CpuId,
    /// The effects of the flush up to that point.
    pub outcome: FlushOutcome,
}

impl fmt::Display for Stalled {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "flush: target {} did not leave guest mode on CPU {}", self.index, self.cpu.0)
    }
}

impl core::error::Error for Stalled {}

#[cfg(all(test, not(loom)))]
mod tests;
