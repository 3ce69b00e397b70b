//! The average and the gaps of the guests' virtual times.
//!
//! A guest that is due less for its weight than others are falls behind them, for ever. It must
//! stay behind all of them, so that it is next wherever it waits. But if it, or one of them, sleeps
//! or ends, what is due changes, and nobody may have to wait for what others have had before. So
//! the gap between two guests that follow each other is bounded, and what is above it moves as a
//! whole: the order remains, and so does all that guests above owe each other.
//!
//! The bound is as much as the upper one can have by its own doing, and the lower one may be owed,
//! each by its own weight: a turn of a light guest puts it far ahead of a heavy one, which then has
//! all that it can use for as long as that is worth. For that time it still *wants* more, though
//! none of its vCPUs waits: otherwise it would forget what it is owed with each turn of the other.

use super::{Group, GroupIndex, Ledger};
use crate::sync::Ordering;

impl Ledger {
    /// Takes the average if it is time to, after the turns so far were charged.
    pub(in crate::sched) fn look(&self, now: u64) {
        let due = self.due.load(Ordering::Relaxed);
        let next = now.saturating_add(self.policy.slice / 4);
        if now < due || self.due.compare_exchange(due, next, Ordering::Relaxed, Ordering::Relaxed).is_err() {
            return;
        }
        self.seats.iter().for_each(|seat| self.settle(seat, now));
        self.groups.iter().for_each(|group| group.end_first(now));
        for (index, group) in (0..).zip(&self.groups) {
            if group.wanted() as usize > self.seats.iter().filter(|seat| seat.runs(index)).count() {
                group.note_wanting(now);
            }
        }
        let is_wanting = |group: &Group| self.is_wanting(group, now);
        if self.groups.iter().any(is_wanting) {
            self.align(now, is_wanting);
        } else {
            self.align(now, |group| group.runnable() != 0);
        }
    }

    /// The guest wants more than it has: one of its vCPUs was seen to wait a while ago at most, or
    /// it has not yet caught up with a guest for which one has waited. No cap holds it.
    fn is_wanting(&self, group: &Group, now: u64) -> bool {
        let is_content = now.saturating_sub(group.wanting_at()) > self.policy.slice.saturating_mul(4);
        group.is_open()
            && group.runnable() != 0
            && (!is_content || group.beyond_debt() < 0)
            && self.held_until(group, now).is_none()
    }

    /// Bounds the gaps between guests, and takes the average anew, of those that are `wanting`.
    fn align(&self, now: u64, is_wanting: impl Fn(&Group) -> bool) {
        let open = || (0..).zip(&self.groups).filter(|(_, group)| group.is_open());
        let place = |(index, group): (GroupIndex, &Group)| (self.account(group), index);
        let next = |from: (i64, GroupIndex)| {
            let runs = |group: &Group| group.runnable() != 0 && self.held_until(group, now).is_none();
            open().filter(|(_, group)| runs(group)).map(place).filter(|&place| place > from).min()
        };
        let Some(mut top) = next((i64::MIN, 0)) else { return };
        for _ in 0..self.groups.len() {
            let Some(above) = next(top) else { break };
            let (upper, lower) = (self.group(above.1), self.group(top.1));
            let most = upper.cost(self.bound()).saturating_add(lower.cost(self.burst()));
            let excess = above.0.saturating_sub(top.0).saturating_sub(most).max(0);
            if excess > 0 {
                // Nobody comes to be ahead of another one by that.
                for (_, group) in open() {
                    let by = self.account(group).saturating_sub(above.0 - excess).clamp(0, excess);
                    group.shift(-by);
                }
            }
            top = (above.0 - excess, above.1);
        }
        let (mut sum, mut weights) = (0_i128, 0_i128);
        let wanting = open().filter(|(_, group)| is_wanting(group));
        let Some(least) = wanting.map(place).min() else { return };
        for (_, group) in open() {
            let wants = is_wanting(group);
            if wants {
                let (lead, weight) = (self.account(group), i128::from(i64::MAX / group.divisor()));
                sum += i128::from(lead) * weight;
                weights += weight;
            } else {
                let bound = group.cost(self.bound());
                self.update_lead(group, |lead| {
                    lead.max(least.0.saturating_sub(bound)).min(top.0.saturating_add(bound))
                });
            }
            // A time that is compared by differences must not fall too far behind.
            if !wants || group.beyond_debt() > i64::MAX / 4 {
                group.has_caught_up();
            }
        }
        let mean = sum.checked_div(weights).unwrap_or(0) as i64;
        let average = self.average.load(Ordering::Relaxed);
        self.floor.store(average.wrapping_add_signed(least.0), Ordering::Relaxed);
        self.average.store(average.wrapping_add_signed(mean), Ordering::Relaxed);
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::super::{Policy, Share, VcpuIndex};
    use super::*;

    /// Virtual times wrap around, after a minute of a guest of little weight.
    #[test]
    fn a_guest_that_always_wants_more_is_not_owed_anything_after_a_long_time() {
        let ledger = Ledger::new(1, 1, 1, Policy::new(1000));
        let _is_needed =
            ledger.open(0, VcpuIndex(0)..VcpuIndex(2), &Share { weight: 1, ..Share::default() }, 1);
        let group = ledger.group(0);
        group.count_in(2);
        for round in 1..64 {
            group.virtual_time.fetch_add(1 << 60, Ordering::Relaxed);
            ledger.look(round * 1000);
            assert!(group.wanting_at() == round * 1000 && group.beyond_debt() >= 0, "{round}");
        }
    }
}
