//! The inbox under loom: each line of its table of events, and the mistakes that would break it.
//!
//! One mistake is missing here, because loom cannot show it: a read-modify-write of a word that is
//! weaker than `Release` or `Acquire` where only another read-modify-write depends on it, as in the
//! cancelling of vectors by INIT. Loom's read-modify-writes always read the newest value.

use coherence::{Notify, Owner, Target};
use loom::sync::Arc;
use loom::thread;

use super::*;
use crate::devices::pc::lapic::Effect;
use crate::model::{CPU, OwnerAction, announced, explore, explored, hint_alone, take_events};

const VECTOR: u8 = 0x40;

/// Serves a vector that has arrived; returns whether it was level-triggered.
fn serve(lapic: &mut Lapic) -> Option<bool> {
    let vector = lapic.pending()?;
    lapic.begin_service(vector);
    match lapic.eoi() {
        Effect::Eoi { vector: served, level } if served == vector => Some(level),
        effect => panic!("{effect:?}"),
    }
}

type Post = fn(&Inbox, &mut dyn FnMut(Published));

/// A level-triggered vector.
fn vector_is_found(way: OwnerAction, take_word: fn(&mut coherence::Owner<'_>) -> bool, post: Post) {
    let mut lapic = lapic();
    announced(Inbox::default(), way, take_word, post, move |inbox| {
        let _none = inbox.take(&mut lapic);
        let level = serve(&mut lapic);
        assert_ne!(level, Some(false), "a trigger that nobody posted");
        level.is_some()
    });
}

/// A signal: INIT, start-up or NMI.
fn signal_is_found(way: OwnerAction, take_word: fn(&mut coherence::Owner<'_>) -> bool, post: Post) {
    let mut lapic = lapic();
    announced(Inbox::default(), way, take_word, post, move |inbox| {
        inbox.take(&mut lapic) != Signals::default()
    });
}

fn post_vector(inbox: &Inbox, announce: &mut dyn FnMut(Published)) {
    announce(inbox.post_fixed(VECTOR, Trigger::Level));
}

fn post_nmi(inbox: &Inbox, announce: &mut dyn FnMut(Published)) {
    announce(inbox.post_nmi());
}

explored! {
    /// A and B, C and D: an announced item is found, or the owner is kicked or woken.
    fn g6_a_vector_is_found_or_its_owner_is_kicked(None):
        || vector_is_found(OwnerAction::Enter, take_events, post_vector);
    fn g6_a_vector_is_found_or_its_owner_is_woken(None):
        || vector_is_found(OwnerAction::Halt, take_events, post_vector);
}

#[test]
fn g6_a_signal_is_found_or_its_owner_is_told() {
    for way in [OwnerAction::Enter, OwnerAction::Halt] {
        explore(None, move || signal_is_found(way, take_events, post_nmi));
        explore(None, move || {
            signal_is_found(way, take_events, |inbox, announce| announce(inbox.post_startup(9)));
        });
        explore(None, move || {
            signal_is_found(way, take_events, |inbox, announce| announce(inbox.post_init()));
        });
    }
}

/// An edge-triggered vector that the owner alone takes.
fn owners_vector_is_found(way: OwnerAction, post: Post) {
    let mut lapic = lapic();
    announced(Inbox::default(), way, take_events, post, move |inbox| {
        let _none = inbox.take(&mut lapic);
        serve(&mut lapic).is_some()
    });
}

explored! {
    fn i11_a_vector_of_the_owners_is_found_or_it_is_kicked(None): || {
        owners_vector_is_found(OwnerAction::Enter, |inbox, announce| {
            announce(inbox.post_to_owner(VECTOR));
        });
    };
    /// The signal is there before the vector.
    fn i11_a_vector_of_the_owners_behind_its_signal(None) fails "announced and not found": || {
        owners_vector_is_found(OwnerAction::Enter, |inbox, announce| {
            inbox.posted.signals.fetch_or(EDGE, Ordering::Release);
            announce(Published::here());
            inbox.edge[1].fetch_or(1, Ordering::Release);
        });
    };
}

explored! {
    /// B precedes A.
    fn g6_posted_after_the_announcement(None) fails "announced and not found": || {
        vector_is_found(OwnerAction::Enter, take_events, |inbox, announce| {
            announce(Published::here());
            let _ = inbox.post_fixed(VECTOR, Trigger::Level);
        });
    };
    fn g6_signal_posted_after_the_announcement(None) fails "announced and not found": || {
        signal_is_found(OwnerAction::Halt, take_events, |inbox, announce| {
            announce(Published::here());
            let _ = inbox.post_nmi();
        });
    };
    /// C without an order: the load of D may read a value from before A.
    fn g6_notify_word_read_without_order(None) fails "announced and not found":
        || vector_is_found(OwnerAction::Enter, hint_alone, post_vector);
    fn g6_notify_word_read_without_order_before_signals(None) fails "announced and not found":
        || signal_is_found(OwnerAction::Enter, hint_alone, post_nmi);
}

/// The steps of a poster and of an owner whose processor takes vectors by itself.
#[derive(Clone, Copy)]
struct Posting {
    post: fn(&Inbox, u8, &Target) -> Option<Notify>,
    /// The owner's c and D.
    take: fn(&Inbox, &mut Lapic),
}

const POSTING: Posting = Posting {
    post: Inbox::post_to_processor,
    take: |inbox, lapic| assert!(inbox.take_vectors(lapic, true).is_none(), "nobody signals"),
};

/// Two posters of a vector each. The owner checks and enters the guest, whose processor takes what
/// is posted if the interrupt E has come. It stays there, where E comes at the end if it is on its
/// way; or the stay ends (`leaves`), or the entry is refused: then the owner checks again, and E is
/// of no effect.
fn processor_takes_both(leaves: bool, Posting { post, take }: Posting) {
    let vcpu = Arc::new((Target::new(), Inbox::default(), AtomicU32::new(0)));
    let posters = [VECTOR, VECTOR + 1].map(|vector| {
        let vcpu = vcpu.clone();
        thread::spawn(move || {
            let (target, inbox, interrupt) = &*vcpu;
            if let Some(Notify::Kick(cpu)) = post(inbox, vector, target) {
                assert_eq!(cpu, CPU);
                interrupt.fetch_or(1, Ordering::Relaxed);
            }
        })
    });
    let (target, inbox, interrupt) = &*vcpu;
    let (mut owner, mut lapic) = (target.owner().expect("free"), lapic());
    let check = |owner: &mut Owner<'_>, lapic: &mut Lapic| {
        if owner.take_events() {
            take(inbox, lapic);
        }
    };
    check(&mut owner, &mut lapic);
    // F, in guest mode: c and D by the processor.
    let by_processor = |lapic: &mut Lapic| {
        if interrupt.swap(0, Ordering::Relaxed) != 0 {
            inbox.posted.clear_told();
            inbox.drain_vectors(lapic);
        }
    };
    let stays = match owner.try_enter(CPU) {
        Ok(in_guest) => {
            by_processor(&mut lapic);
            if leaves {
                in_guest.leave()
            } else {
                core::mem::forget(in_guest)
            }
            !leaves
        }
        Err(_) => false,
    };
    posters.into_iter().for_each(|poster| poster.join().unwrap());
    if stays {
        by_processor(&mut lapic);
    } else {
        check(&mut owner, &mut lapic);
    }
    let found = [VECTOR + 1, VECTOR].map(|_| {
        let vector = lapic.pending()?;
        lapic.begin_service(vector);
        let _end = lapic.eoi();
        Some(vector)
    });
    assert_eq!(found, [Some(VECTOR + 1), Some(VECTOR)], "posted and not taken");
}

explored! {
    fn i11_what_is_posted_is_taken_in_guest_mode_or_before(Some(3)): || processor_takes_both(false, POSTING);
    fn i11_what_comes_after_the_stay_is_taken_before_the_next(Some(3)): || processor_takes_both(true, POSTING);
    /// a before A: the processor takes the vectors in between, and nobody tells it again.
    fn i11_told_before_it_is_posted(Some(3)) fails "posted and not taken": || {
        processor_takes_both(false, Posting {
            post: |inbox, vector, target| {
                let is_first = inbox.posted.told.fetch_or(TOLD, Ordering::AcqRel) & TOLD == 0;
                let _ = inbox.post_fixed(vector, Trigger::Edge);
                is_first.then(|| target.post_to_processor())
            },
            ..POSTING
        });
    };
    /// D before c.
    fn i11_telling_expected_after_the_vectors_are_taken(Some(3)) fails "posted and not taken": || {
        processor_takes_both(false, Posting {
            take: |inbox, lapic| {
                inbox.drain_vectors(lapic);
                inbox.expect_telling();
            },
            ..POSTING
        });
    };
    /// The owner takes the vectors, and c is left out.
    fn i11_no_telling_is_expected(Some(3)) fails "posted and not taken":
        || processor_takes_both(false, Posting { take: Inbox::drain_vectors, ..POSTING });
}

/// A level-triggered and an edge-triggered interrupt of one vector, beside the owner, which serves
/// what it finds; then another edge-triggered one alone.
fn triggers(post: fn(&Inbox, Trigger) -> Published) {
    let inbox = Arc::new(Inbox::default());
    let posters = [Trigger::Level, Trigger::Edge].map(|trigger| {
        let inbox = inbox.clone();
        thread::spawn(move || _ = post(&inbox, trigger))
    });
    let mut lapic = lapic();
    let look = |lapic: &mut Lapic| {
        let _none = inbox.take(lapic);
        serve(lapic)
    };
    let beside = look(&mut lapic);
    posters.into_iter().for_each(|poster| poster.join().unwrap());
    let after = look(&mut lapic);
    let levels = [beside, after].iter().flatten().filter(|&&level| level).count();
    assert_eq!(levels, 1, "the I/O APIC gets another number of EOIs than it waits for");
    let _ = post(&inbox, Trigger::Edge);
    assert_eq!(look(&mut lapic), Some(false), "the trigger of a former interrupt");
}

explored! {
    fn u54_an_eoi_is_sent_for_each_level_triggered_interrupt(None):
        || triggers(|inbox, trigger| inbox.post_fixed(VECTOR, trigger));
    /// The later one of two decides, as in TMR: nobody knows which of them was drained.
    fn u54_edge_that_replaces_level(None) fails "the I/O APIC gets another number": || {
        triggers(|inbox, trigger| {
            if trigger == Trigger::Edge {
                inbox.level[1].fetch_and(!1, Ordering::AcqRel);
            }
            inbox.post_fixed(VECTOR, trigger)
        });
    };
}

/// The effect of INIT, with one poster beside the owner. `take` is the owner's, called twice beside
/// the poster and once after it.
fn init_cancels(post_init: fn(&Inbox) -> Published, take: fn(&Inbox, &mut Lapic) -> Signals) {
    let inbox = Arc::new(Inbox::default());
    let owner = {
        let inbox = inbox.clone();
        thread::spawn(move || {
            let mut lapic = lapic();
            let seen = [(); 2].map(|()| (take(&inbox, &mut lapic), lapic.highest_irr()));
            (lapic, seen)
        })
    };
    let _before = (inbox.post_fixed(VECTOR, Trigger::Edge), inbox.post_nmi(), inbox.post_startup(1));
    let _init = post_init(&inbox);
    let _after = (inbox.post_startup(2), inbox.post_startup(3));
    let (mut lapic, seen) = owner.join().unwrap();
    let last = (take(&inbox, &mut lapic), lapic.highest_irr());
    let [first, second] = seen;
    let (mut was_reset, mut started) = (false, 0);
    for (signals, irr) in [first, second, last] {
        was_reset |= signals.init;
        if was_reset {
            assert_eq!((signals.nmis, irr), (0, None), "it came before INIT");
            assert_ne!(signals.startup, Some(1), "it came before INIT");
            // The third one counts if the second was taken before it arrived.
            let expected = if started == 0 { [None, Some(2)] } else { [None, Some(3)] };
            assert!(expected.contains(&signals.startup), "the first of several counts");
            started += u32::from(signals.startup.is_some());
        }
    }
    assert!(was_reset && started > 0, "INIT or start-up is lost");
}

/// Takes INIT, and holds it for a moment; `init` is what it does then.
fn held(inbox: &Inbox, lapic: &mut Lapic, init: fn(&Inbox, &mut Lapic)) -> Signals {
    let Some(drained) = inbox.take_vectors(lapic, true) else { return Signals::default() };
    let signals = inbox.take_signals(lapic, drained, true);
    if signals.init {
        init(inbox, lapic);
    }
    signals
}

explored! {
    fn o15_init_cancels_what_came_before_it(Some(3)): || init_cancels(Inbox::post_init, Inbox::take);
    fn n20_init_that_was_held_cancels_what_came_before_it(Some(3)): || {
        init_cancels(Inbox::post_init, |inbox, lapic| held(inbox, lapic, Inbox::init));
    };
    fn n20_init_that_was_held_and_discards_nothing(Some(3)) fails "it came before INIT":
        || init_cancels(Inbox::post_init, |inbox, lapic| held(inbox, lapic, |_, _| ()));
    /// INIT is added to the present signals, instead of replacing them.
    fn o15_init_that_cancels_no_signals(Some(3)) fails "it came before INIT":
        || init_cancels(|inbox| {
            inbox.posted.signals.fetch_or(INIT, Ordering::Release);
            Published::here()
        }, Inbox::take);
    fn o15_init_that_cancels_no_vectors(Some(3)) fails "it came before INIT": || {
        init_cancels(Inbox::post_init, |inbox, lapic| {
            let signals = inbox.posted.signals.swap(0, Ordering::Acquire);
            inbox.drain_vectors(lapic);
            Signals {
                init: signals & INIT != 0,
                startup: (signals & STARTUP != 0).then_some((signals >> PAGE_SHIFT) as u8),
                nmis: 0,
            }
        });
    };
}

/// Two posters beside the owner, which takes once while they run and once after them.
fn two_posters(post: [fn(&Inbox); 2]) -> [Signals; 2] {
    let inbox = Arc::new(Inbox::default());
    let posters = post.map(|post| {
        let inbox = inbox.clone();
        thread::spawn(move || post(&inbox))
    });
    let mut lapic = lapic();
    let beside = inbox.take(&mut lapic);
    posters.into_iter().for_each(|poster| poster.join().unwrap());
    [beside, inbox.take(&mut lapic)]
}

fn two_nmis(post: fn(&Inbox)) {
    let taken = two_posters([post; 2]);
    let nmis: u8 = taken.iter().map(|signals| signals.nmis).sum();
    assert_eq!(nmis, 2, "an NMI is lost or doubled");
}

explored! {
    fn two_nmis_are_two(None): || two_nmis(|inbox| _ = inbox.post_nmi());
    fn second_nmi_that_joins_the_first(None) fails "an NMI is lost":
        || two_nmis(|inbox| _ = inbox.posted.signals.fetch_or(NMI, Ordering::Release));
    fn second_nmi_by_a_look_before(None) fails "an NMI is lost": || {
        two_nmis(|inbox| {
            let is_second = inbox.posted.signals.load(Ordering::Acquire) & NMI != 0;
            inbox.posted.signals.fetch_or(if is_second { SECOND_NMI } else { NMI }, Ordering::Release);
        });
    };
}

fn two_startups(post: [fn(&Inbox); 2]) {
    let taken = two_posters(post).map(|signals| signals.startup);
    assert!(taken.iter().flatten().all(|page| [1, 2].contains(page)), "a page that nobody posted");
    assert!(taken.iter().any(Option::is_some), "start-up is lost");
    assert!(taken[0].is_none() || taken[0] != taken[1], "one start-up is two");
}

explored! {
    fn one_of_two_startups_counts(None):
        || two_startups([|inbox| _ = inbox.post_startup(1), |inbox| _ = inbox.post_startup(2)]);
}

#[test]
#[should_panic(expected = "a page that nobody posted")]
fn startups_that_are_mixed() {
    const fn startup(page: u32) -> u32 {
        STARTUP | page << PAGE_SHIFT
    }
    explore(None, || {
        two_startups([
            |inbox| _ = inbox.posted.signals.fetch_or(startup(1), Ordering::Release),
            |inbox| _ = inbox.posted.signals.fetch_or(startup(2), Ordering::Release),
        ]);
    });
}
