//! The inbox of a vCPU's interrupt controller, to which CPUs post that do not own it.
//!
//! ```text
//!    any CPU: post                         the owner, before an entry: Private::look
//!    A  the word here: SPIs, groups (RMW)  C  takes the notify word  (RMW, Acquire)
//!    B  the signals word   (RMW, Release)  D  the signals word       (load, then RMW, Acquire)
//!    P  the notify word    (RMW, Release)  E  the words here         (RMW)
//! ```
//!
//! A before B before P, C before D before E. The notify word is the one by which a vCPU is kicked
//! and made to check again. If C sees P, D sees B and E sees A: no announced item is missed. If C
//! is before P in that word's order, P finds the vCPU entered (and kicks it) or not entered (and
//! its next entry takes the word again). An item that D and E take before its P costs one check
//! that finds nothing. The models beside this module run it under loom.

use migration::{Archive, Described, Flaw};

use super::{Bits, Groups, Sgi, SgiGroup};
use crate::sched::notify::Published;
use crate::sync::{AtomicU8, AtomicU64, Ordering};

/// Bits 31:0: private interrupts, regardless of their group.
const ANY_SHIFT: u32 = 0;
/// Bits 47:32: SGIs that take effect only if they are in group 0.
const GROUP0_SHIFT: u32 = 32;
const SPIS: u64 = 1 << 62;
/// The distributor's groups were changed.
const GROUPS: u64 = 1 << 63;

/// One vCPU's inbox. Posting never blocks; an item that is posted twice before it is taken counts
/// once, like the pending state.
#[derive(Debug, Default)]
pub struct Inbox {
    signals: AtomicU64,
    spis: [AtomicU64; 4],
    groups: AtomicU8,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Posted {
    pub(super) private: u32,
    /// SGIs that become pending if they are in group 0.
    pub(super) group0: u32,
    pub(super) spis: Bits,
    /// The distributor's groups, if they were posted.
    pub(super) groups: Option<Groups>,
}

impl Inbox {
    /// Describes what is posted. Nobody posts or takes meanwhile.
    ///
    /// # Errors
    ///
    /// That it cannot be read.
    pub fn describe(&self, archive: &mut Archive<'_>) -> Result<(), Flaw> {
        let Self { signals, spis, groups } = self;
        // Whatever the bits are: they are masked when they are taken.
        (signals, spis.each_ref(), groups).describe(archive)
    }

    /// Posts an SGI; to be called for each of [`Sgi::targets`].
    pub fn post_sgi(&self, sgi: Sgi, group: SgiGroup) -> Published {
        let shift = if group == SgiGroup::Group0 { GROUP0_SHIFT } else { ANY_SHIFT };
        // Pairs with `take`.
        self.signals.fetch_or(1 << (shift + u32::from(sgi.intid())), Ordering::Release);
        Published::here()
    }

    /// Makes private interrupts pending, one bit for each.
    pub fn post_private(&self, intids: u32) -> Published {
        // Pairs with `take`.
        self.signals.fetch_or(u64::from(intids) << ANY_SHIFT, Ordering::Release);
        Published::here()
    }

    /// Makes the vCPU check an SPI; to be called for each of
    /// [`Effect::posts`](super::Effect::posts).
    pub fn post_spi(&self, intid: u8) -> Published {
        // Ordered before the signal by its Release; the taker's Acquire is its partner.
        self.spis[usize::from(intid / 64)].fetch_or(1 << (intid % 64), Ordering::Relaxed);
        self.signals.fetch_or(SPIS, Ordering::Release);
        Published::here()
    }

    /// Tells the vCPU which groups the distributor forwards. Called under the distributor's lock,
    /// so that the last value stored is the last one written.
    pub fn post_groups(&self, groups: Groups) -> Published {
        self.groups.store(groups.bits(), Ordering::Relaxed);
        // Pairs with `take`: the groups must be visible.
        self.signals.fetch_or(GROUPS, Ordering::Release);
        Published::here()
    }

    /// Whether there is nothing to take. Because the notify word was taken before, the load sees
    /// everything that was announced.
    #[inline]
    pub fn is_empty(&self) -> bool {
        self.signals.load(Ordering::Relaxed) == 0
    }

    pub(super) fn take(&self) -> Posted {
        // Pairs with `post_spi` and `post_groups`: announced items must be visible.
        let signals = self.signals.swap(0, Ordering::Acquire);
        let spis = if signals & SPIS == 0 {
            Bits::EMPTY
        } else {
            Bits::from_words(core::array::from_fn(|word| self.spis[word].swap(0, Ordering::Relaxed)))
        };
        // A newer store than the announced one may be seen: it is announced as well.
        let groups = (signals & GROUPS != 0).then(|| Groups::from_bits(self.groups.load(Ordering::Relaxed)));
        Posted {
            private: (signals >> ANY_SHIFT) as u32,
            group0: (signals >> GROUP0_SHIFT) as u32 & 0xffff,
            spis,
            groups,
        }
    }
}

#[cfg(all(test, loom))]
mod model;

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn an_empty_inbox_has_nothing() {
        let inbox = Inbox::default();
        assert!(inbox.is_empty());
        assert_eq!(inbox.take(), Posted::default());
    }

    #[test]
    fn each_thing_arrives_once_and_apart_from_the_others() {
        let inbox = Inbox::default();
        for intid in 0..16_u64 {
            let _ = inbox.post_sgi(Sgi::new(intid << 24), SgiGroup::Group1);
            let private = 1 << intid;
            assert_eq!(inbox.take(), Posted { private, ..Posted::default() });
            let _ = inbox.post_sgi(Sgi::new(intid << 24), SgiGroup::Group0);
            assert_eq!(inbox.take(), Posted { group0: private, ..Posted::default() });
        }
        for intid in 32..=255 {
            let _ = inbox.post_spi(intid);
            let _ = inbox.post_spi(intid);
            assert_eq!(inbox.take(), Posted { spis: Bits::one(intid), ..Posted::default() });
        }
        let _ = inbox.post_private(u32::MAX);
        assert_eq!(inbox.take(), Posted { private: u32::MAX, ..Posted::default() });
        for groups in [Groups::BOTH, Groups::NONE, Groups::from_bits(2)] {
            let _ = inbox.post_groups(groups);
            assert_eq!(inbox.take(), Posted { groups: Some(groups), ..Posted::default() });
        }
        assert!(inbox.is_empty());
    }
}
