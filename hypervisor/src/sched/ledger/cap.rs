//! A guest's cap on the time that it gets, whatever nobody else wants.
//!
//! The cap is exact in the long run (generic cell rate algorithm): each tick that the guest uses
//! moves the time up to which it has *spent* its allowance by `100 / cap` ticks. Once that time is
//! more than a burst ahead of the clock, the guest is held until half of the burst is left. What
//! it used in excess, because a turn is not ended at the very tick, is in that time and is paid
//! back.

use crate::sync::{AtomicU32, AtomicU64, Ordering};

/// One, as a rate.
const ONE: u64 = 1 << 16;

#[derive(Debug, Default)]
pub(super) struct Cap {
    /// How many ticks of the allowance a tick costs, times [`ONE`]; 0: there is no cap.
    rate: AtomicU64,
    /// The time up to which the allowance is spent.
    spent_until: AtomicU64,
    /// The guest was found to be held, and not yet to be free again.
    is_held: AtomicU32,
}

impl Cap {
    /// Begins with the whole burst.
    pub(super) fn set(&self, cap: Option<u32>) {
        // Rounded to the nearest, as are all divisions here.
        let rate = cap.map_or(0, |cap| (ONE * 100 + u64::from(cap) / 2) / u64::from(cap.max(1)));
        self.rate.store(rate, Ordering::Relaxed);
        self.spent_until.store(0, Ordering::Relaxed);
        self.is_held.store(0, Ordering::Relaxed);
    }

    /// What `ticks` cost.
    fn cost(&self, ticks: u64) -> u64 {
        let rate = self.rate.load(Ordering::Relaxed);
        let cost = (u128::from(ticks) * u128::from(rate) + u128::from(ONE / 2)) / u128::from(ONE);
        u64::try_from(cost).unwrap_or(u64::MAX)
    }

    /// How much of the allowance is spent in advance.
    fn ahead(&self, now: u64) -> u64 {
        self.spent_until.load(Ordering::Relaxed).saturating_sub(now)
    }

    /// What may be spent in advance, with so many ticks that are lent.
    fn limit(&self, burst: u64, lent: u64) -> u64 {
        burst.saturating_add(self.cost(lent))
    }

    /// Whether a guest that runs on `running` CPUs uses its cap up by that, so that it may leave
    /// another CPU to others. If one more is too many in the long run only, it runs there, too,
    /// while more than half of the burst is left.
    pub(super) fn is_used_by(&self, running: u32, now: u64, burst: u64, lent: u64) -> bool {
        let rate = self.rate.load(Ordering::Relaxed);
        let ahead = self.ahead(now);
        let pace = rate.saturating_mul(running.into());
        let is_lent = lent != 0 && ahead <= self.limit(burst, lent);
        !is_lent && (pace >= ONE || (pace + rate > ONE && ahead > burst / 2))
    }

    pub(super) fn exists(&self) -> bool {
        self.rate.load(Ordering::Relaxed) != 0
    }

    /// The guest has used `had` ticks until `now`.
    pub(super) fn charge(&self, had: u64, now: u64) {
        if !self.exists() || had == 0 {
            return;
        }
        let cost = self.cost(had);
        // It was entitled to nothing before it began to run.
        let began = now.saturating_sub(had);
        let _always = self.spent_until.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |spent| {
            Some(spent.max(began).saturating_add(cost))
        });
    }

    /// Until when the guest is held, and whether it was found free just now, after it was held.
    pub(super) fn held_until(&self, now: u64, burst: u64, lent: u64) -> (Option<u64>, bool) {
        if !self.exists() {
            return (None, false);
        }
        let spent = self.spent_until.load(Ordering::Relaxed);
        let was_held = self.is_held.load(Ordering::Relaxed) != 0;
        // Once held, it waits for a budget that is worth a turn, unless it is lent one.
        let most = if was_held && lent == 0 { burst / 2 } else { self.limit(burst, lent) };
        let is_held = spent.saturating_sub(now) > most;
        if is_held != was_held {
            self.is_held.store(is_held.into(), Ordering::Relaxed);
        }
        (is_held.then(|| spent - burst / 2), was_held && !is_held)
    }

    /// When a hold ends or has ended; `None` if there is no cap.
    pub(super) fn free_at(&self, burst: u64) -> Option<u64> {
        self.exists().then(|| self.spent_until.load(Ordering::Relaxed).saturating_sub(burst / 2))
    }

    /// When the budget of a guest that runs on `running` CPUs is used up, if all that it had
    /// before `charged` is in its account; `u64::MAX` for never.
    ///
    /// Turns that began when fewer vCPUs ran may have no end. They use less than the cap allows,
    /// and the turn that began last ends.
    pub(super) fn used_up_at(&self, charged: u64, running: u32, burst: u64, lent: u64) -> u64 {
        let pace = self.rate.load(Ordering::Relaxed).saturating_mul(running.max(1).into());
        if pace <= ONE {
            return u64::MAX;
        }
        let left = self.limit(burst, lent).saturating_sub(self.ahead(charged));
        charged.saturating_add(left.saturating_mul(ONE) / (pace - ONE))
    }
}

#[cfg(all(test, not(loom)))]
impl Cap {
    /// Whether the guest is held, without a look.
    pub(super) fn holds(&self, now: u64, burst: u64) -> bool {
        let was_held = self.is_held.load(Ordering::Relaxed) != 0;
        self.exists() && self.ahead(now) > if was_held { burst / 2 } else { burst }
    }
}

#[cfg(all(test, loom))]
impl Cap {
    pub(super) fn is_held(&self) -> bool {
        self.is_held.load(Ordering::Relaxed) != 0
    }

    pub(super) fn spent_until(&self) -> u64 {
        self.spent_until.load(Ordering::Relaxed)
    }
}
