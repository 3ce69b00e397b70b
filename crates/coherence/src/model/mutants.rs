//! The protocol with one operation broken, and the scenario that detects it.
//!
//! Each mutant is a copy of the real operation except for the one change that its comment names.
//! Missing here, because loom cannot show it: a read-modify-write of the word or the header that is
//! weaker than `AcqRel` where the other of the two still orders the same accesses.

use super::machine::ModelState;
use super::protocol::Protocol;
use super::scenarios::{
    consecutive, event_in_guest, halting, overflow, passing, returning, staying, translating,
};
use crate::mailbox::{Generation, Work};
use crate::sync::Ordering::{AcqRel, Acquire, Relaxed, Release};
use crate::sync::update;
use crate::target::{Claim, Requested};
use crate::{
    CpuId, FlushOutcome, FlushWork, GvaRange, Hardware, InGuest, Notify, Owner, Pending, Scope, Space,
    Target, Translation, mutants, word,
};

/// The real engine's steps for one target, each of which a mutant can replace.
pub(super) fn flush_by(
    machine: &ModelState,
    request: impl FnOnce(&Target) -> Requested,
    claim: impl FnOnce(&Target) -> Claim,
    is_quiet: impl Fn(&Target, Generation) -> bool,
) -> FlushOutcome {
    let target = &machine.targets[0];
    let requested = request(target);
    if requested.busy {
        if let Claim::Kick(cpu) = claim(target) {
            machine.kick(cpu);
        }
        let mut turns = 0;
        while !is_quiet(target, requested.generation) {
            let _goes_on = machine.relax(turns);
            turns += 1;
        }
    }
    FlushOutcome { targets: 1, ..FlushOutcome::default() }
}

/// The real request, with the post to the mailbox replaced.
fn request_by(target: &Target, post: impl FnOnce(&Target) -> Generation) -> Requested {
    let generation = post(target);
    let old = target.word.fetch_or(word::FLUSH, AcqRel);
    Requested { generation, busy: old & word::BUSY != 0, ..Requested::default() }
}

fn ranges(scope: Scope<'_>) -> &[GvaRange] {
    match scope {
        Scope::All => &[],
        Scope::Ranges(ranges) => ranges,
    }
}

mutants! {
    /// O3, O5: the entry loads the word, and then stores it.
    EnterByStore fails o3_entry_by_load_and_store: passing::<EnterByStore>, "used after", {
        fn try_enter<'o>(owner: &'o mut Owner<'_>, cpu: CpuId) -> Result<InGuest<'o>, Pending> {
            let word = owner.target.word.load(Acquire);
            if word & word::REQUESTS != 0 {
                return Err(Pending { flush: word & word::FLUSH != 0, event: word & word::EVENT != 0 });
            }
            owner.target.word.store(word::entered(word, cpu), Release);
            Ok(InGuest { target: owner.target })
        }
    }

    /// The entry does not check for requests: a target that was not waited for does not flush
    /// either.
    EnterRegardless fails entry_that_ignores_requests: passing::<EnterRegardless>, "used after", {
        fn try_enter<'o>(owner: &'o mut Owner<'_>, cpu: CpuId) -> Result<InGuest<'o>, Pending> {
            let enter = |word: u64| Some(word::entered(word, cpu));
            let _entered = update(&owner.target.word, enter);
            Ok(InGuest { target: owner.target })
        }
    }

    /// KICKED survives the entry: the kick of an earlier stay is taken for one of this stay.
    KeepKicked fails kicked_must_be_cleared_by_entry: staying::<KeepKicked>, "maximum number of branches", {
        fn try_enter<'o>(owner: &'o mut Owner<'_>, cpu: CpuId) -> Result<InGuest<'o>, Pending> {
            let enter = |word: u64| {
                let entered = word::entered(word, cpu) | word & word::KICKED;
                (word & word::REQUESTS == 0).then_some(entered)
            };
            match update(&owner.target.word, enter) {
                Ok(_) => Ok(InGuest { target: owner.target }),
                Err(_) => Err(Pending { flush: true, event: true }),
            }
        }
    }

    /// O2: the exit does not release what the guest did before it.
    LeaveRelaxed fails o2_exit_without_release: passing::<LeaveRelaxed>, "used after", {
        fn leave(guest: InGuest<'_>) {
            guest.target.word.fetch_and(!word::IN_GUEST, Relaxed);
            core::mem::forget(guest);
        }
    }

    /// O5: the exit stores the word: it erases a request, or a request erases it.
    LeaveByStore fails o5_exit_by_store: passing::<LeaveByStore>, "maximum number of branches", {
        fn leave(guest: InGuest<'_>) {
            let word = guest.target.word.load(Acquire);
            guest.target.word.store(word & !word::IN_GUEST, Release);
            core::mem::forget(guest);
        }
    }
}

/// The real taking of a flush, with the emptying of the mailbox replaced.
fn take_by<'o>(
    owner: &'o mut Owner<'_>,
    take: impl FnOnce(&Target) -> (Generation, Work),
) -> Option<FlushWork<'o>> {
    if owner.target.word.load(Relaxed) & word::FLUSH == 0 {
        return None;
    }
    let (generation, work) = take(owner.target);
    Some(FlushWork { target: owner.target, generation, work, is_nested: false, is_complete: false })
}

mutants! {
    /// O8: the generation is sampled after the list was drained.
    SampleLate fails o8_generation_sampled_after_the_drain: consecutive::<SampleLate>, "used after", {
        fn take_flush<'o>(owner: &'o mut Owner<'_>) -> Option<FlushWork<'o>> {
            take_by(owner, |target| {
                target.word.fetch_and(!word::FLUSH, AcqRel);
                let ranges = target.mailbox.locked(|| target.mailbox.drain());
                let header = target.mailbox.sample();
                (Generation(header >> 2), Work::Ranges(ranges))
            })
        }
    }

    /// O10: FLUSH is cleared after the mailbox was emptied, which also clears that of a later
    /// request.
    ClearLate fails o10_flush_cleared_after_the_drain: consecutive::<ClearLate>, "used after", {
        fn take_flush<'o>(owner: &'o mut Owner<'_>) -> Option<FlushWork<'o>> {
            take_by(owner, |target| {
                let taken = target.mailbox.take();
                target.word.fetch_and(!word::FLUSH, AcqRel);
                taken
            })
        }
    }

    /// O8: the newest generation is published instead of the one that was taken.
    CompleteNewest fails o8_newest_generation_published: consecutive::<CompleteNewest>, "used after", {
        fn complete(mut work: FlushWork<'_>) {
            work.generation = Generation(work.target.mailbox.header.fetch_or(0, AcqRel) >> 2);
            work.complete();
        }
    }

    /// Nothing is published: an initiator that saw the target in guest mode waits for the next stay
    /// as well.
    CompleteNever fails completion_not_published: staying::<CompleteNever>, "maximum number of branches", {
        fn complete(mut work: FlushWork<'_>) {
            work.is_complete = true;
        }
    }

    /// A request is dropped with the work that was taken for it.
    TakeNothing fails flush_taken_and_not_recorded: passing::<TakeNothing>, "used after", {
        fn take_flush<'o>(owner: &'o mut Owner<'_>) -> Option<FlushWork<'o>> {
            if let Some(mut work) = owner.take_flush() {
                work.is_complete = true;
            }
            None
        }
    }

    /// O4: guest mode is read before the request is published.
    LookFirst fails o4_guest_mode_read_before_the_request: passing::<LookFirst>, "used after", {
        fn flush(machine: &ModelState, _count: usize, scope: Scope<'_>) -> FlushOutcome {
            let request = |target: &Target| {
                let busy = target.word.load(Acquire) & word::BUSY != 0;
                Requested { busy, ..target.request(scope) }
            };
            flush_by(machine, request, Target::claim_kick, Target::is_quiet)
        }
    }

    /// O1: the initiator kicks and returns.
    WaitNever fails o1_return_without_waiting: passing::<WaitNever>, "used after", {
        fn flush(machine: &ModelState, _count: usize, scope: Scope<'_>) -> FlushOutcome {
            flush_by(machine, |target| target.request(scope), Target::claim_kick, |_, _| true)
        }
    }

    /// The initiator waits without having kicked.
    KickNever fails wait_without_a_kick: staying::<KickNever>, "maximum number of branches", {
        fn flush(machine: &ModelState, _count: usize, scope: Scope<'_>) -> FlushOutcome {
            let claim = |_: &Target| Claim::Unneeded;
            flush_by(machine, |target| target.request(scope), claim, Target::is_quiet)
        }
    }

    /// KICKED is set on a target that has left and entered again, and no kick is sent.
    ClaimUnsent fails claim_without_a_kick: returning::<ClaimUnsent>, "maximum number of branches", {
        fn flush(machine: &ModelState, _count: usize, scope: Scope<'_>) -> FlushOutcome {
            let claim = |target: &Target| {
                let old = target.word.fetch_or(word::KICKED, AcqRel);
                let due = old & (word::IN_GUEST | word::FLUSH) == word::IN_GUEST | word::FLUSH;
                let is_first = old & word::KICKED == 0;
                if due && is_first { Claim::Kick(word::cpu(old)) } else { Claim::Unneeded }
            };
            flush_by(machine, |target| target.request(scope), claim, Target::is_quiet)
        }
    }

    /// O2: the initiator does not acquire what the exit released.
    WaitRelaxed fails o2_wait_without_acquire: passing::<WaitRelaxed>, "used after", {
        fn flush(machine: &ModelState, _count: usize, scope: Scope<'_>) -> FlushOutcome {
            let is_quiet = |target: &Target, generation: Generation| {
                target.word.load(Relaxed) & word::BUSY == 0 || target.completed.load(Acquire) >= generation.0
            };
            flush_by(machine, |target| target.request(scope), Target::claim_kick, is_quiet)
        }
    }

    /// O2: the initiator does not acquire what the completion released.
    CompletedRelaxed fails o2_completion_without_acquire: passing::<CompletedRelaxed>, "used after", {
        fn flush(machine: &ModelState, _count: usize, scope: Scope<'_>) -> FlushOutcome {
            let is_quiet = |target: &Target, generation: Generation| {
                target.word.load(Acquire) & word::BUSY == 0 || target.completed.load(Relaxed) >= generation.0
            };
            flush_by(machine, |target| target.request(scope), Target::claim_kick, is_quiet)
        }
    }

    /// O8: the generation is counted before the range is in the list.
    CountFirst fails o8_generation_counted_before_the_append: consecutive::<CountFirst>, "used after", {
        fn flush(machine: &ModelState, _count: usize, scope: Scope<'_>) -> FlushOutcome {
            let post = |target: &Target| {
                let generation = target.mailbox.announce(2);
                assert!(target.mailbox.locked(|| target.mailbox.append(ranges(scope))), "two fit");
                generation
            };
            flush_by(machine, |target| request_by(target, post), Target::claim_kick, Target::is_quiet)
        }
    }

    /// O9: ranges that do not fit are lost.
    DropOverflow fails o9_overflow_loses_ranges: overflow::<DropOverflow>, "used after", {
        fn flush(machine: &ModelState, _count: usize, scope: Scope<'_>) -> FlushOutcome {
            let post = |target: &Target| {
                target.mailbox.locked(|| {
                    let _fits = target.mailbox.append(ranges(scope));
                    target.mailbox.announce(2)
                })
            };
            flush_by(machine, |target| request_by(target, post), Target::claim_kick, Target::is_quiet)
        }
    }

    /// The sample does not acquire the page-table change of a request whose FLUSH comes later.
    SampleRelaxed fails sample_without_acquire: consecutive::<SampleRelaxed>, "used after", {
        fn take_flush<'o>(owner: &'o mut Owner<'_>) -> Option<FlushWork<'o>> {
            take_by(owner, |target| {
                target.word.fetch_and(!word::FLUSH, AcqRel);
                let header = target.mailbox.header.fetch_and(!3, Relaxed);
                (Generation(header >> 2), Work::All)
            })
        }
    }

    /// O4: the initiator checks whether a target is idle before it publishes the request for
    /// everything.
    IdleSeenBefore fails o4_idle_seen_before_the_request: passing::<IdleSeenBefore>, "used after", {
        fn flush(machine: &ModelState, _count: usize, scope: Scope<'_>) -> FlushOutcome {
            let request = |target: &Target| {
                let busy = target.word.load(Acquire) & word::BUSY != 0;
                target.word.fetch_or(word::FLUSH | word::ALL, AcqRel);
                if busy { target.request(scope) } else { Requested::default() }
            };
            flush_by(machine, request, Target::claim_kick, Target::is_quiet)
        }
    }

    /// ALL in the word is ignored: only the mailbox's contents are flushed.
    AllForgotten fails all_in_the_word_forgotten: passing::<AllForgotten>, "used after", {
        fn take_flush<'o>(owner: &'o mut Owner<'_>) -> Option<FlushWork<'o>> {
            take_by(owner, |target| {
                target.word.fetch_and(!(word::FLUSH | word::ALL), AcqRel);
                target.mailbox.take()
            })
        }
    }

    /// H30: a translation section is not counted as use of a translation.
    SectionUnseen fails h30_section_not_waited_for: translating::<SectionUnseen>, "used after", {
        fn begin_translation<'o>(owner: &'o mut Owner<'_>) -> Result<Translation<'o>, Pending> {
            Ok(Translation { target: owner.target })
        }
    }

    /// H30: a section begins although a flush is pending, and the initiator does not wait for a
    /// second one.
    WaitForGuestOnly fails h30_wait_for_guest_mode_only: translating::<WaitForGuestOnly>, "used after", {
        fn flush(machine: &ModelState, _count: usize, scope: Scope<'_>) -> FlushOutcome {
            let is_quiet = |target: &Target, generation: Generation| {
                target.word.load(Acquire) & word::IN_GUEST == 0
                    || target.completed.load(Acquire) >= generation.0
            };
            flush_by(machine, |target| target.request(scope), Target::claim_kick, is_quiet)
        }
    }

    /// O4: the halt loads the word, and then stores it: the target sleeps through an event in
    /// between.
    HaltByStore fails o4_halt_by_load_and_store: halting::<HaltByStore>, "wrong number of times", {
        fn try_halt(owner: &mut Owner<'_>, _space: Space) -> bool {
            let word = owner.target.word.load(Acquire);
            if word & word::EVENT != 0 {
                return false;
            }
            owner.target.word.store(word | word::HALTED, Release);
            true
        }
    }

    /// The halt does not check for events: an earlier event wakes no vCPU.
    HaltRegardless fails halt_that_ignores_events: halting::<HaltRegardless>, "wrong number of times", {
        fn try_halt(owner: &mut Owner<'_>, _space: Space) -> bool {
            owner.target.word.fetch_or(word::HALTED, AcqRel);
            true
        }
    }

    /// Every poster that sees HALTED wakes: the vCPU is queued twice.
    WakeTwice fails wake_by_every_poster: halting::<WakeTwice>, "wrong number of times", {
        fn post_event(target: &Target) -> Notify {
            let old = target.word.fetch_or(word::EVENT | word::KICKED, AcqRel);
            if old & word::HALTED != 0 { Notify::Wake } else { Notify::None }
        }
    }

    /// The poster checks for guest mode before it posts: the target enters in between, unkicked.
    PostLate fails event_posted_after_the_look: event_in_guest::<PostLate>, "maximum number of branches", {
        fn post_event(target: &Target) -> Notify {
            let old = target.word.load(Acquire);
            target.word.fetch_or(word::EVENT, AcqRel);
            if old & word::IN_GUEST != 0 { Notify::Kick(word::cpu(old)) } else { Notify::None }
        }
    }
}
