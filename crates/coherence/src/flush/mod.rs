//! The initiator's side: issue, dispatch, wait, each a type that only the step before makes.
//!
//! [`issue`] publishes the request; targets that are not in guest mode are then done with, for
//! they flush before they next enter. [`Issued::dispatch`] kicks the rest; what the caller has to
//! flush on its own CPU it does after that, while the others leave. [`Dispatched::wait`] returns
//! when none of them can use an old translation any more.
//!
//! The initiator's own vCPU is a target like any other: it is out of guest mode while the
//! initiator runs, hence neither kicked nor waited for. For the same reason any number of
//! initiators may flush each other at once, with interrupts off: none waits for another (O13,
//! O14). Only its own translation section must have ended.

use core::fmt;
use core::ops::ControlFlow;

use crate::CpuId;
use crate::mailbox::{Generation, Scope, Widened};
use crate::set::{Bits, Members, TargetSet};
use crate::target::{Claim, Target};

/// What the engine needs from the machine.
pub trait Hardware {
    /// Makes `cpu` leave guest mode soon: an interrupt that the guest cannot hold off.
    ///
    /// It stays pending if the CPU is not in guest mode yet; if it has left, it does no harm.
    fn kick(&self, cpu: CpuId);

    /// One turn of waiting; `turns` were spent on this target before.
    ///
    /// `Break` gives up: choose a bound that a working machine never reaches.
    fn relax(&self, turns: u64) -> ControlFlow<()>;
}

/// Targets by index.
pub trait Targets {
    /// The target of this index; the same one for as long as a flush lasts. `None` is skipped:
    /// guests name virtual processors that do not exist. Those that are removed keep their place.
    fn target(&self, index: usize) -> Option<&Target>;

    /// Calls `act` once with each target of `set` that exists, in any order. Worth overriding where
    /// targets lie side by side: a flush of many vCPUs that do not run does little else.
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

/// Where an initiator notes the targets that it waits for; reused from flush to flush, one per
/// physical CPU. 520 bytes for each 64 targets.
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

    /// Nobody is waited for.
    pub(crate) fn clear(&mut self) {
        self.awaited = TargetSet::new();
    }

    /// Targets to wait for.
    pub(crate) const fn awaited(&self) -> TargetSet<BANKS> {
        self.awaited
    }

    /// What to wait for of a target that was noted.
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

/// What a flush did, for counters.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct FlushOutcome {
    /// Targets that were asked and whose vCPU is there.
    pub targets: u32,
    /// Targets whose vCPU is absent: not among the above, nor below.
    pub absent: u32,
    /// Targets that have halted in another address space, and so were not asked: not among the
    /// above, nor below.
    pub elsewhere: u32,
    /// Of the targets of a list, those that had not taken an earlier request yet: one flush serves
    /// both.
    pub joined: u32,
    /// Of the targets, asked for everything because the list is longer than any mailbox.
    pub too_many_ranges: u32,
    /// Of the targets, asked for everything because their mailbox held too many ranges of others.
    pub mailbox_overflows: u32,
    /// Of the targets, neither kicked nor waited for: they flush when they next enter.
    pub deferred: u32,
    /// Of the others, kicked by this initiator.
    pub kicks: u32,
    /// Of the others, served by a kick that somebody else had claimed.
    pub merged: u32,
    /// Turns of waiting, all targets together.
    pub turns: u64,
}

/// Publishes a request for `scope` to every target of `set` that exists.
///
/// Change the page tables before this; free what was unmapped only for a [`Receipt`].
///
/// # Panics
/// If a target exists that has no place in the ledger.
#[inline(always)] // The result is large to move, and nothing of it is looked at where nobody is in guest mode.
pub fn issue<'a, T: Targets + ?Sized, S: Members + ?Sized, const BANKS: usize>(
    targets: &'a T,
    set: &S,
    scope: Scope<'_>,
    ledger: &'a mut Ledger<BANKS>,
) -> Issued<'a, T, BANKS> {
    issue_unless(targets, set, scope, ledger, |_| false)
}

/// As [`issue`], where the guest has changed the tables of one address space and no global
/// translation: targets that have halted in another one ([`Space`](crate::Space)) are not asked.
///
/// Say so only if `scope` need not include global translations, and if nothing but `space` uses the
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
    let mut issued = issue_unless(targets, set, scope, ledger, |target| {
        let halted_elsewhere = target.has_halted_elsewhere(space);
        elsewhere += u32::from(halted_elsewhere);
        halted_elsewhere
    });
    issued.outcome.elsewhere = elsewhere;
    issued
}

/// Asks those for which `is_spared` is false.
#[inline(always)]
fn issue_unless<'a, T: Targets + ?Sized, S: Members + ?Sized, const BANKS: usize>(
    targets: &'a T,
    set: &S,
    scope: Scope<'_>,
    ledger: &'a mut Ledger<BANKS>,
    mut is_spared: impl FnMut(&Target) -> bool,
) -> Issued<'a, T, BANKS> {
    let everything = matches!(scope, Scope::All);
    let mut issuing = Issuing { scope, ledger, outcome: FlushOutcome::default() };
    let mut asked = 0u32;
    targets.for_each(
        set,
        #[inline(always)]
        |index, target| {
            if is_spared(target) {
                return;
            }
            // Fewer than there are addresses.
            asked = asked.wrapping_add(1);
            // Nearly all of them where there are more vCPUs than CPUs.
            if !(everything && target.request_all_if_idle()) {
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

/// Targets that have to be asked one by one: absent ones, and those in guest mode.
struct Issuing<'s, 'l, const BANKS: usize> {
    scope: Scope<'s>,
    ledger: &'l mut Ledger<BANKS>,
    /// `targets` counts those in guest mode. As long as there are none, the ledger holds what an
    /// earlier flush has left.
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
        // A request for everything finds what its own first step has left.
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

/// The request is published: no target enters the guest without having flushed.
#[must_use = "a target in guest mode goes on using old translations"]
#[derive(Debug)]
pub struct Issued<'a, T: ?Sized, const BANKS: usize> {
    targets: &'a T,
    ledger: &'a mut Ledger<BANKS>,
    outcome: FlushOutcome,
}

impl<'a, T: Targets + ?Sized, const BANKS: usize> Issued<'a, T, BANKS> {
    /// What is known so far.
    #[inline]
    pub const fn outcome(&self) -> &FlushOutcome {
        &self.outcome
    }

    /// The receipt, if no target was in guest mode: there is nobody to kick or to wait for.
    #[inline(always)]
    pub fn receipt(&self) -> Option<Receipt> {
        (self.outcome.deferred == self.outcome.targets).then_some(Receipt { outcome: self.outcome })
    }

    /// Kicks the targets that are still in guest mode and that nobody else has kicked.
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

/// Every target in guest mode is on its way out.
#[must_use = "a target may still be in guest mode"]
#[derive(Debug)]
pub struct Dispatched<'a, T: ?Sized, const BANKS: usize> {
    targets: &'a T,
    ledger: &'a mut Ledger<BANKS>,
    outcome: FlushOutcome,
}

impl<T: Targets + ?Sized, const BANKS: usize> Dispatched<'_, T, BANKS> {
    /// Waits until each target that was in guest mode has left it, or has the flush on record.
    ///
    /// # Errors
    /// [`Stalled`] when [`Hardware::relax`] gave up on a target. Nothing that was unmapped may be
    /// freed then; the request stays published.
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

/// Proof that the flush is over: what was unmapped before `issue` may be reused.
#[must_use = "nothing may be freed without it"]
#[derive(Debug, PartialEq, Eq)]
pub struct Receipt {
    outcome: FlushOutcome,
}

impl Receipt {
    /// What the flush did.
    pub const fn outcome(&self) -> FlushOutcome {
        self.outcome
    }
}

/// A target did not leave guest mode within the bound: the machine, or its kick, is broken.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Stalled {
    /// Index of the target.
    pub index: usize,
    /// Where it was last in guest mode.
    pub cpu: CpuId,
    /// What the flush did until then.
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
