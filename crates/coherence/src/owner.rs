//! A virtual CPU as seen by the physical CPU that runs it.

use crate::mailbox::{Generation, Scope, Work};
use crate::sync::{Ordering, is_unwinding, update};
use crate::target::{Space, Target};
use crate::{CpuId, word};

/// The right to run a vCPU, held by one physical CPU at a time.
///
/// An [`Owner`] is a token: its holder runs the vCPU. Guest mode, a translation section and a flush
/// being recorded are guards that borrow it mutably, so that no two of them can overlap. The entry
/// loop is
///
/// ```
/// use quell_coherence::{CpuId, Owner, Scope};
///
/// fn run(owner: &mut Owner<'_>, cpu: CpuId, mut arm: impl FnMut(Scope<'_>), vmrun: impl FnOnce()) {
///     // Interrupts are held from here to VMRUN.
///     let guest = loop {
///         if let Some(work) = owner.take_flush() {
///             arm(work.scope()); // for the next VMRUN, see `quell_coherence::asid`
///             work.complete();
///         }
///         if owner.take_events() { /* inject an interrupt, or give way */ }
///         match owner.try_enter(cpu) {
///             Ok(guest) => break guest,
///             Err(_pending) => continue,
///         }
///     };
///     vmrun();
///     guest.leave();
/// }
/// ```
#[derive(Debug)]
pub struct Owner<'a> {
    pub(crate) target: &'a Target,
}

/// Why the owner may not continue: at least one of the two is set.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Pending {
    /// A flush: [`Owner::take_flush`].
    pub flush: bool,
    /// An event: [`Owner::take_events`].
    pub event: bool,
}

impl Pending {
    const fn of(word: u64) -> Self {
        Self { flush: word & word::FLUSH != 0, event: word & word::EVENT != 0 }
    }
}

impl<'a> Owner<'a> {
    /// The target as others see it.
    pub const fn target(&self) -> &'a Target {
        self.target
    }

    /// P: enters guest mode on `cpu`, unless a request is pending. VMRUN must follow.
    ///
    /// The same read-modify-write records the CPU and clears KICKED, so that a kick reaches the CPU
    /// where the vCPU is now, and an interrupt sent for an earlier stay satisfies no later request.
    /// Entering a halted target ends its halt.
    ///
    /// # Errors
    /// The requests that are [`Pending`]; the target then stays out of guest mode. The retry loop
    /// terminates: each failure of the exchange is a change by another CPU, and other CPUs only set
    /// requests.
    ///
    /// # Panics
    /// If the target is in guest mode or in a section already.
    pub fn try_enter(&mut self, cpu: CpuId) -> Result<InGuest<'_>, Pending> {
        let enter = |word: u64| (word & word::REQUESTS == 0).then_some(word::entered(word, cpu));
        match update(&self.target.word, enter) {
            Ok(word) => {
                assert!(word & word::BUSY == 0, "the vCPU is in the guest, or in a section, already");
                Ok(InGuest { target: self.target })
            }
            Err(word) => Err(Pending::of(word)),
        }
    }

    /// Takes the pending event, and returns whether one was posted since the last call. Also ends
    /// the halt, if any.
    ///
    /// Check for published work (interrupts, the end of the time slice) after this call.
    #[must_use = "the event is not reported again"]
    pub fn take_events(&mut self) -> bool {
        if self.target.word.load(Ordering::Relaxed) & word::EVENT == 0 {
            return false; // an event posted after this load makes try_enter and try_halt fail
        }
        // Only the owner clears it.
        // Pairs with `Target::post_event`.
        self.target.word.fetch_and(!(word::EVENT | word::HALTED), Ordering::AcqRel);
        true
    }

    /// L and M: takes the pending flush. A later request is pending again.
    ///
    /// Record it in the vCPU so that the next VMRUN carries it out, drop every translation that
    /// software has cached, and then call [`FlushWork::complete`].
    pub fn take_flush(&mut self) -> Option<FlushWork<'_>> {
        if self.target.word.load(Ordering::Relaxed) & word::FLUSH == 0 {
            return None; // a flush issued after this load makes try_enter fail
        }
        // Pairs with `Target::request` and `request_all_if_idle`.
        let old = self.target.word.fetch_and(!word::FLUSH_NESTED, Ordering::AcqRel);
        let (generation, mut work) = self.target.mailbox.take();
        if old & word::ALL != 0 {
            work = Work::All;
        }
        let is_nested = old & word::NESTED != 0;
        Some(FlushWork { target: self.target, generation, work, is_nested, is_complete: false })
    }

    /// Halts, unless an event is pending. A pending flush does not matter: it waits for the entry.
    ///
    /// As soon as this returns true, another CPU may be told to wake the vCPU: save its state
    /// first, and let no other CPU run it before this CPU has released it. `space` lets flushes of
    /// other address spaces skip the vCPU.
    #[must_use = "false means that there is something to do"]
    pub fn try_halt(&mut self, space: Space) -> bool {
        // Pairs with `Target::has_halted_elsewhere`.
        self.target.space.store(space.0, Ordering::Release);
        let halt = |word: u64| (word & word::EVENT == 0).then_some(word | word::HALTED);
        update(&self.target.word, halt).is_ok()
    }

    /// Begins a section in which software uses translations on the guest's behalf: an emulated
    /// access, or a hypercall's copy. An initiator treats it like guest mode, except that no kick
    /// can end it (H30).
    ///
    /// Keep it short, never wait for another CPU inside it, and walk the guest's tables anew in
    /// each section.
    ///
    /// # Errors
    /// A flush is pending: take it first, or the walk may use translations that it is to drop.
    pub fn begin_translation(&mut self) -> Result<Translation<'_>, Pending> {
        self.begin(word::translating)
    }

    /// Like [`begin_translation`](Self::begin_translation) without counting the section, which
    /// saves a few instructions. For a caller that never flushes by
    /// [broadcast](fn@crate::broadcast). A request prevents new sections, so its initiator need not
    /// tell one section from the next; a broadcast would wait for later sections as well.
    ///
    /// # Errors
    /// As for [`begin_translation`](Self::begin_translation).
    pub fn begin_uncounted_translation(&mut self) -> Result<Translation<'_>, Pending> {
        self.begin(|word| word | word::TRANSLATING)
    }

    #[inline(always)]
    fn begin(&mut self, begun: impl Fn(u64) -> u64) -> Result<Translation<'_>, Pending> {
        let begin = |word: u64| (word & word::FLUSH == 0).then(|| begun(word));
        match update(&self.target.word, begin) {
            Ok(_) => Ok(Translation { target: self.target }),
            Err(word) => Err(Pending::of(word)),
        }
    }
}

impl Drop for Owner<'_> {
    fn drop(&mut self) {
        if !is_unwinding() {
            // Pairs with `Target::owner`.
            self.target.word.fetch_and(!word::OWNED, Ordering::AcqRel);
        }
    }
}

/// The vCPU is in guest mode. Ends with [`leave`](Self::leave), or when dropped.
#[must_use = "guest mode ends at once"]
#[derive(Debug)]
pub struct InGuest<'o> {
    pub(crate) target: &'o Target,
}

impl InGuest<'_> {
    /// K: the guest has stopped and its accesses are done. Call it first thing after #VMEXIT.
    pub fn leave(self) {}
}

impl Drop for InGuest<'_> {
    fn drop(&mut self) {
        if !is_unwinding() {
            // Pairs with `Target::is_quiet`, and with later requests.
            self.target.word.fetch_and(!word::IN_GUEST, Ordering::AcqRel);
        }
    }
}

/// A translation section. Ends with [`end`](Self::end), or when dropped.
#[must_use = "the section ends at once"]
#[derive(Debug)]
pub struct Translation<'o> {
    pub(crate) target: &'o Target,
}

impl Translation<'_> {
    /// Ends the section after the last access through its translations.
    pub fn end(self) {}
}

impl Drop for Translation<'_> {
    fn drop(&mut self) {
        if !is_unwinding() {
            // Pairs with `Target::is_quiet` and `Target::has_ended`.
            self.target.word.fetch_and(!word::TRANSLATING, Ordering::AcqRel);
        }
    }
}

/// A flush that its target has yet to carry out. If dropped without [`complete`](Self::complete),
/// it is pending again as [`Scope::All`], with the nested translations.
#[must_use = "record it in the vCPU, then complete it"]
#[derive(Debug)]
pub struct FlushWork<'o> {
    pub(crate) target: &'o Target,
    pub(crate) generation: Generation,
    pub(crate) work: Work,
    pub(crate) is_nested: bool,
    pub(crate) is_complete: bool,
}

impl FlushWork<'_> {
    /// The translations to flush, of those that depend on the guest's tables. An empty list of
    /// ranges means none.
    pub fn scope(&self) -> Scope<'_> {
        match &self.work {
            Work::All => Scope::All,
            Work::Ranges(ranges) => Scope::Ranges(ranges),
        }
    }

    /// Whether those that depend on the nested tables alone are to be flushed, too. Then
    /// [`scope`](Self::scope) is everything. AMD64's flush of an ASID drops both; other processors
    /// have an instruction for each (INVVPID and INVEPT, HFENCE.VVMA and HFENCE.GVMA).
    pub const fn is_nested(&self) -> bool {
        self.is_nested
    }

    /// The newest request that this flush covers.
    pub const fn generation(&self) -> Generation {
        self.generation
    }

    /// The number of requests that this one flush serves.
    pub fn requests(&self) -> u64 {
        // Only the owner writes `completed`, and no two flushes are in progress at once.
        self.generation.0.saturating_sub(self.target.completed.load(Ordering::Relaxed))
    }

    /// O: the work is recorded in the vCPU (N), so that it precedes any guest access.
    ///
    /// Initiators of this and older generations may return from here on: the target is out of guest
    /// mode, and its next stay begins with the flush.
    pub fn complete(mut self) {
        self.is_complete = true;
        // Pairs with `Target::is_quiet`.
        self.target.completed.fetch_max(self.generation.0, Ordering::Release);
    }
}

impl Drop for FlushWork<'_> {
    fn drop(&mut self) {
        if !self.is_complete && !is_unwinding() {
            let _idle = self.target.request_all_if_idle(word::FLUSH_NESTED);
            let _pending_again = self.target.request(Scope::All);
        }
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use crate::{GvaRange, Notify};

    const CPU: CpuId = CpuId(0xffff_fffe);

    #[test]
    fn second_owner_is_refused_until_the_first_is_gone() {
        let target = Target::new();
        let first = target.owner();
        assert!(first.is_some() && target.owner().is_none());
        assert!(target.owner().is_none(), "the refusal took the right away");
        drop(first);
        assert!(target.owner().is_some());
    }

    #[test]
    #[should_panic(expected = "handed over")]
    fn a_vcpu_that_has_not_left_the_guest_is_not_handed_over() {
        let target = Target::new();
        let mut owner = target.owner().unwrap();
        core::mem::forget(owner.try_enter(CPU).unwrap());
        drop(owner);
        let _next = target.owner();
    }

    #[test]
    #[should_panic(expected = "already")]
    fn a_vcpu_is_not_entered_from_a_section() {
        let target = Target::new();
        let mut owner = target.owner().unwrap();
        core::mem::forget(owner.begin_translation().unwrap());
        let _ = owner.try_enter(CPU);
    }

    #[test]
    fn entry_is_refused_for_each_pending_request() {
        let target = Target::new();
        let mut owner = target.owner().unwrap();
        assert!(!target.has_event());
        assert_eq!(target.post_event(), Notify::None);
        assert!(target.has_event());
        assert_eq!(owner.try_enter(CPU).unwrap_err(), Pending { flush: false, event: true });
        target.request(Scope::All);
        assert_eq!(owner.try_enter(CPU).unwrap_err(), Pending { flush: true, event: true });
        assert!(owner.take_events() && !owner.take_events());
        assert_eq!(owner.try_enter(CPU).unwrap_err(), Pending { flush: true, event: false });
        owner.take_flush().unwrap().complete();
        assert!(owner.take_flush().is_none());
        let guest = owner.try_enter(CPU).unwrap();
        assert!(target.is_in_guest());
        drop(guest);
        assert!(!target.is_in_guest(), "the guard was dropped");
        assert_eq!(std::format!("{target:?}"), "Target { word: 0xfffffffe00000010, completed: 1 }");
    }

    #[test]
    fn g6_flush_that_is_dropped_pends_again_as_everything() {
        let target = Target::new();
        let mut owner = target.owner().unwrap();
        let requested = target.request(Scope::Ranges(&[GvaRange { first: 0x1000, pages: 1 }]));
        drop(owner.take_flush());
        assert!(owner.try_enter(CPU).is_err());
        let work = owner.take_flush().unwrap();
        assert!(matches!(work.scope(), Scope::All) && work.generation() > requested.generation);
        work.complete();
        assert!(owner.try_enter(CPU).is_ok());
    }

    #[test]
    fn kick_goes_once_to_the_cpu_of_this_stay() {
        let target = Target::new();
        let mut owner = target.owner().unwrap();
        for cpu in [CpuId(0), CPU, CpuId(u32::MAX), CpuId(1)] {
            assert_eq!(target.post_event(), Notify::None, "out of guest mode");
            assert!(owner.take_events());
            let guest = owner.try_enter(cpu).unwrap();
            assert_eq!(target.post_event(), Notify::Kick(cpu));
            assert_eq!(target.post_event(), Notify::None, "kicked already");
            guest.leave();
            assert!(owner.take_events());
        }
    }

    #[test]
    fn o15_flush_neither_wakes_a_halted_target_nor_keeps_it_awake() {
        let target = Target::new();
        let mut owner = target.owner().unwrap();
        target.request(Scope::All);
        assert!(owner.try_halt(Space::UNKNOWN), "a flush waits for the entry");
        assert!(owner.try_halt(Space::UNKNOWN), "halted still");
        assert!(!target.request(Scope::All).busy);
        assert_eq!(target.post_event(), Notify::Wake);
        assert_eq!(target.post_event(), Notify::None, "woken already");
        assert!(!owner.try_halt(Space::UNKNOWN));
        assert!(owner.take_events());
        assert_eq!(target.post_event(), Notify::None, "awake");
        assert!(owner.take_events() && owner.try_halt(Space::UNKNOWN));
        assert_eq!(target.post_event(), Notify::Wake, "once per halt");
    }
}
