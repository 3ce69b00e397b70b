//! The inbox under loom: each line of its table of events, and the mistakes that would break it.
//!
//! One mistake is missing here, because loom cannot show it: an announcement of an SPI in the
//! signals word without `Release`. Loom's read-modify-writes always read the newest value, so E
//! finds the SPI anyway.

use loom::sync::Arc;
use loom::thread;

use super::*;
use crate::model::{OwnerAction, announced, explore, explored, hint_alone, take_events};
use crate::sync::Mutex;

const SPI: u8 = 40;

type Post = fn(&Inbox, &mut dyn FnMut(Published));

/// Posts an item while another poster may be active.
fn is_found(
    way: OwnerAction,
    take_word: fn(&mut coherence::Owner<'_>) -> bool,
    post: Post,
    take: fn(&Inbox) -> Posted,
    expected: Posted,
) {
    announced(Inbox::default(), way, take_word, post, move |inbox| {
        if inbox.is_empty() {
            return false;
        }
        let posted = take(inbox);
        assert!(
            posted == expected || posted == Posted::default(),
            "{posted:?}: signalled without what was announced"
        );
        posted == expected
    });
}

fn spi() -> Posted {
    Posted { spis: Bits::one(SPI), ..Posted::default() }
}

fn groups() -> Posted {
    Posted { groups: Some(Groups::BOTH), ..Posted::default() }
}

fn post_spi(inbox: &Inbox, announce: &mut dyn FnMut(Published)) {
    announce(inbox.post_spi(SPI));
}

fn post_groups(inbox: &Inbox, announce: &mut dyn FnMut(Published)) {
    announce(inbox.post_groups(Groups::BOTH));
}

/// A, B and P; C, D and E.
#[test]
fn g6_an_spi_is_found_or_its_owner_is_told() {
    for way in [OwnerAction::Enter, OwnerAction::Halt] {
        explore(None, move || is_found(way, take_events, post_spi, Inbox::take, spi()));
    }
}

#[test]
fn g6_groups_are_found_or_their_owner_is_told() {
    for way in [OwnerAction::Enter, OwnerAction::Halt] {
        explore(None, move || is_found(way, take_events, post_groups, Inbox::take, groups()));
    }
}

#[test]
fn g6_private_interrupts_are_found_or_their_owner_is_told() {
    for way in [OwnerAction::Enter, OwnerAction::Halt] {
        explore(None, move || {
            let post: Post = |inbox, announce| {
                announce(inbox.post_private(1 << 27));
            };
            is_found(way, take_events, post, Inbox::take, Posted { private: 1 << 27, ..Posted::default() });
        });
        explore(None, move || {
            let post: Post = |inbox, announce| {
                announce(inbox.post_sgi(Sgi::new(3 << 24), SgiGroup::Group0));
            };
            is_found(way, take_events, post, Inbox::take, Posted { group0: 1 << 3, ..Posted::default() });
        });
    }
}

explored! {
    /// P precedes A and B.
    fn g6_posted_after_the_announcement(None) fails "announced and not found": || {
        let post: Post = |inbox, announce| {
            announce(Published::here());
            let _ = inbox.post_spi(SPI);
        };
        is_found(OwnerAction::Halt, take_events, post, Inbox::take, spi());
    };
    /// B precedes A.
    fn g6_signalled_before_the_spi_is_there(None) fails "announced and not found": || {
        let post: Post = |inbox, announce| {
            inbox.signals.fetch_or(SPIS, Ordering::Release);
            inbox.spis[0].fetch_or(1 << SPI, Ordering::Relaxed);
            announce(Published::here());
        };
        is_found(OwnerAction::Enter, take_events, post, Inbox::take, spi());
    };
    /// C without an order.
    fn g6_notify_word_read_without_order(None) fails "announced and not found":
        || is_found(OwnerAction::Enter, hint_alone, post_spi, Inbox::take, spi());
}

/// An SPI is posted after another signal, so that the owner takes its signals in any case.
fn spi_is_found_behind_another(take: fn(&Inbox) -> Bits) {
    let inbox = Inbox::default();
    let _ = inbox.post_private(1);
    announced(inbox, OwnerAction::Enter, take_events, post_spi, move |inbox| {
        !inbox.is_empty() && take(inbox) == Bits::one(SPI)
    });
}

explored! {
    fn g6_an_spi_is_found_behind_another_signal(None):
        || spi_is_found_behind_another(|inbox| inbox.take().spis);
    /// E precedes D: an SPI posted between the two is dropped with its signal.
    fn g6_spis_taken_before_their_signal(None) fails "announced and not found": || {
        spi_is_found_behind_another(|inbox| {
            let spis =
                Bits::from_words(core::array::from_fn(|word| inbox.spis[word].swap(0, Ordering::Relaxed)));
            let is_signalled = inbox.signals.swap(0, Ordering::Acquire) & SPIS != 0;
            if is_signalled { spis } else { Bits::EMPTY }
        });
    };
    /// B does not release the groups.
    fn groups_that_are_not_released(None) fails "signalled without": || {
        let post: Post = |inbox, announce| {
            inbox.groups.store(Groups::BOTH.bits(), Ordering::Relaxed);
            inbox.signals.fetch_or(GROUPS, Ordering::Relaxed);
            announce(Published::here());
        };
        is_found(OwnerAction::Enter, take_events, post, Inbox::take, groups());
    };
    /// D does not acquire them.
    fn groups_that_are_not_acquired(None) fails "signalled without": || {
        let take = |inbox: &Inbox| {
            let signals = inbox.signals.swap(0, Ordering::Relaxed);
            let groups = Groups::from_bits(inbox.groups.load(Ordering::Relaxed));
            Posted { groups: (signals & GROUPS != 0).then_some(groups), ..Posted::default() }
        };
        is_found(OwnerAction::Enter, take_events, post_groups, take, groups());
    };
}

/// Two vCPUs write GICD_CTLR, serialised by its lock, and a third takes their posts.
fn last_groups(post: fn(&Mutex<Groups>, &Inbox, Groups)) {
    let shared = Arc::new((Mutex::new(Groups::NONE), Inbox::default()));
    let posters = [1, 2].map(|bits| {
        let shared = shared.clone();
        thread::spawn(move || post(&shared.0, &shared.1, Groups::from_bits(bits)))
    });
    let (distributor, inbox) = &*shared;
    let mut view = Groups::NONE;
    let mut take = || view = inbox.take().groups.unwrap_or(view);
    take();
    posters.into_iter().for_each(|poster| poster.join().unwrap());
    take();
    assert_eq!(view, *distributor.lock(), "the vCPU goes by groups that are not the last");
}

explored! {
    fn the_groups_that_are_found_last_are_those_written_last(Some(3)): || {
        last_groups(|distributor, inbox, groups| {
            let mut distributor = distributor.lock();
            *distributor = groups;
            let _ = inbox.post_groups(groups);
        });
    };
    fn groups_posted_out_of_the_lock(Some(3)) fails "not the last": || {
        last_groups(|distributor, inbox, groups| {
            *distributor.lock() = groups;
            let _ = inbox.post_groups(groups);
        });
    };
}
