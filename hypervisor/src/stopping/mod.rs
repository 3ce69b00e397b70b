//! All vCPUs of a guest stop: for a reset, for a pause, or because the guest has ended.
//!
//! Reasons to stop are bits of one word, which each vCPU looks at before it goes on. Two numbers in
//! another word count how far the vCPUs are: how many have arrived at their stop, and how many of
//! these have left their CPUs.
//!
//! ```text
//! who asks                                      each vCPU
//! P  reasons |= RESET, PAUSE or END (AcqRel)    S  takes its event (sched::notify), then looks at
//! Q  if there was no reason: tells all vCPUs       the reasons (Acquire)
//!
//! each vCPU                                     the last vCPU to arrive, if there is a reset
//! A  arrived += 1 (AcqRel): it is not the last  C  arrived += 1 (AcqRel): it is the last, and stays
//! B  state saved, owner dropped; if it is the   D  left = all but one (Acquire): all have done B
//!    last to leave: END looked at, and the      E  states and memory reset
//!    end recorded; left += 1 (CAS, AcqRel)
//!                                               F  both numbers = 0, then RESET cleared, if it is
//!                                                  the only reason (CAS, AcqRel)
//!                                               G  all others woken
//!
//! P before Q, and an event is never lost: each vCPU comes to S after P, and stops
//! B before D     the reset finds every other vCPU without an owner
//! P before B     a vCPU that ends the guest asks before it leaves: the last one to leave finds END,
//!                whenever it stopped itself, and for whatever reason
//! B before destruction: whoever finds that all have left finds the end recorded
//! E before F     a vCPU that finds no reset finds states and memory in their initial state
//! P before F     F fails, or leaves RESET out only: the vCPU of C does B, too, and all have stopped
//! P before E     if the vCPU of C sees PAUSE between two steps it does B, and all have stopped;
//!                when the guest goes on this vCPU alone is woken, and comes to D again
//! F before P     Q tells vCPUs that G has yet to wake: they look at the reasons when they are woken
//! ```
//!
//! The vCPU of C carries out the reset in its own turns (`vm/reset.rs`): the time is its guest's,
//! and others wait no longer for it than for a vCPU that runs. Without a reset the last vCPU does B
//! like the others. Who asks finds that all have left (D) in a later step; nobody waits.

#[cfg(all(test, loom))]
mod model;

use crate::sched::notify::Published;
use crate::sync::{AtomicU32, Ordering};

/// A reset is in progress.
pub const RESET: u32 = 1 << 0;
/// A request from the host is pending or being served.
pub const REQUESTS: u32 = 1 << 1;
/// A vCPU's access has begun a change of guest memory.
pub const CHANGE: u32 = 1 << 2;
/// The guest is to pause.
pub const PAUSE: u32 = 1 << 3;
/// The guest has ended.
pub const END: u32 = 1 << 4;
/// The reasons for which all vCPUs stop.
pub const STOP: u32 = RESET | PAUSE | END;

/// One vCPU has arrived, or left, in [`Stopping::stopped`].
const ARRIVED: u32 = 1 << 16;
const LEFT: u32 = 1;

/// All have arrived, and all but the vCPU of C have left.
const fn all_but_one(count: u32) -> u32 {
    count * ARRIVED + (count - 1) * LEFT
}

/// What the vCPUs of a guest must look at before they go on, and how many have stopped.
#[derive(Debug, Default)]
pub struct Stopping {
    attention: AtomicU32,
    stopped: AtomicU32,
    /// How the guest has ended. Valid while [`END`] is set.
    ended: AtomicU32,
}

/// What a vCPU does that has arrived at its stop.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Role {
    /// It leaves its CPU.
    Leaves,
    /// It is the last one, and carries out the reset.
    Resets,
}

impl Stopping {
    /// S: what there is to look at.
    #[inline]
    pub fn attention(&self) -> u32 {
        self.attention.load(Ordering::Acquire) // Pairs with every change.
    }

    /// Sets bits that are no reasons to stop. Earlier stores are visible to whoever sees them.
    pub fn set(&self, bits: u32) {
        self.attention.fetch_or(bits, Ordering::Release); // Pairs with `attention`.
    }

    /// Clears bits.
    pub fn clear(&self, bits: u32) {
        self.attention.fetch_and(!bits, Ordering::Release); // Pairs with `attention`.
    }

    /// P: all vCPUs are to stop for these reasons. If they must be told, returns what Q requires.
    #[must_use = "nobody else tells the vCPUs"]
    pub fn begin(&self, why: u32) -> Option<Published> {
        // Pairs with `attention`; of two concurrent callers one is first.
        let is_first = self.attention.fetch_or(why, Ordering::AcqRel) & STOP == 0;
        is_first.then(Published::here)
    }

    /// P for [`END`]: whoever finds it finds the code.
    #[must_use = "nobody else tells the vCPUs"]
    pub fn end(&self, code: u32) -> Option<Published> {
        self.ended.store(code, Ordering::Relaxed);
        self.begin(END)
    }

    /// A, C: one of `count` vCPUs arrives.
    #[must_use = "it has a part in the stop"]
    pub fn arrive(&self, count: u32) -> Role {
        // Pairs with itself: the last one follows all others.
        let arrived = self.stopped.fetch_add(ARRIVED, Ordering::AcqRel) / ARRIVED + 1;
        debug_assert!(arrived <= count, "a vCPU arrives at its stop twice");
        let is_last = arrived == count;
        match self.attention() & (RESET | END) {
            RESET if is_last => Role::Resets,
            _ => Role::Leaves,
        }
    }

    /// B: a vCPU has left its CPU. If all others of `count` have, calls `last` with the code of the
    /// guest's end, if it has ended, before anybody finds that all have left; then the guest must
    /// not be used any more.
    pub fn leave(&self, count: u32, last: impl FnOnce(Option<u32>)) {
        // Pairs with `left`, and with itself: what the others asked for before they left is seen.
        let mut now = self.stopped.load(Ordering::Acquire);
        while now % ARRIVED + 1 != count {
            match self.stopped.compare_exchange(now, now + LEFT, Ordering::AcqRel, Ordering::Acquire) {
                Ok(_) => return,
                Err(changed) => now = changed,
            }
        }
        last((self.attention() & END != 0).then(|| self.ended.load(Ordering::Relaxed)));
        self.stopped.fetch_add(LEFT, Ordering::AcqRel); // Pairs with `left`.
    }

    /// D: how many have left their CPUs.
    pub fn left(&self) -> u32 {
        self.stopped.load(Ordering::Acquire) % ARRIVED // Pairs with `leave`.
    }

    /// F: the reset is over. Returns whether the guest goes on, which it does unless there is
    /// another reason to stop: then the calling vCPU leaves as well.
    #[must_use = "the others are to be woken, or this one leaves"]
    pub fn end_reset(&self, count: u32) -> bool {
        loop {
            let now = self.attention();
            let goes_on = now & STOP == RESET;
            // Nobody looks at the numbers while all but this vCPU have left.
            let stopped = if goes_on { 0 } else { all_but_one(count) };
            self.stopped.store(stopped, Ordering::Relaxed);
            // Pairs with `attention`. It fails if something else has come up meanwhile.
            let changed =
                self.attention.compare_exchange(now, now & !RESET, Ordering::AcqRel, Ordering::Relaxed);
            if changed.is_ok() {
                return goes_on;
            }
        }
    }

    /// `count` vCPUs that have never run are as if they had stopped for a pause.
    pub fn pause_from_the_beginning(&self, count: u32) {
        self.set(PAUSE);
        self.stopped.store(count * (ARRIVED + LEFT), Ordering::Release); // Pairs with `left`.
    }

    /// All vCPUs have left, or none has run yet: they may go on. They are to be woken.
    pub fn go_on(&self) {
        self.stopped.store(0, Ordering::Relaxed);
        self.clear(STOP);
    }

    /// All of `count` vCPUs have left in the middle of a reset: the one of C may go on with it. It
    /// is to be woken.
    pub fn go_on_with_reset(&self, count: u32) {
        self.stopped.store(all_but_one(count), Ordering::Relaxed);
        self.clear(PAUSE);
    }
}
