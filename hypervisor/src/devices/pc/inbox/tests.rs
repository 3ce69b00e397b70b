//! What is posted arrives.

use super::*;
use crate::devices::pc::lapic::{Effect, msr};

fn is_empty(inbox: &Inbox) -> bool {
    !inbox.has_signals() && inbox.pending() == VectorSet::EMPTY
}

#[test]
fn an_empty_inbox_changes_nothing() {
    let (inbox, mut lapic) = (Inbox::default(), lapic());
    assert!(is_empty(&inbox));
    assert_eq!(inbox.take(&mut lapic), Signals::default());
    assert_eq!(lapic.highest_irr(), None);
}

#[test]
fn every_vector_arrives_once_with_its_trigger() {
    let (inbox, mut lapic) = (Inbox::default(), lapic());
    for vector in 16..=255 {
        let trigger = if vector % 3 == 0 { Trigger::Level } else { Trigger::Edge };
        let _ = inbox.post_fixed(vector, trigger);
    }
    assert!(!is_empty(&inbox));
    assert_eq!(inbox.pending().iter().count(), 240);
    assert_eq!(inbox.take(&mut lapic), Signals::default());
    for vector in (16..=255).rev() {
        assert_eq!(lapic.pending(), Some(vector));
        lapic.begin_service(vector);
        let level = vector % 3 == 0;
        assert_eq!(lapic.eoi(), Effect::Eoi { vector, level });
    }
    assert_eq!(inbox.take(&mut lapic), Signals::default());
    assert_eq!(lapic.highest_irr(), None);
}

fn serve(inbox: &Inbox, lapic: &mut Lapic) -> Effect {
    let _ = inbox.take(lapic);
    lapic.begin_service(lapic.pending().expect("posted"));
    lapic.eoi()
}

#[test]
fn u54_a_vectors_trigger_is_that_of_its_last_interrupt() {
    let (inbox, mut lapic) = (Inbox::default(), lapic());
    for vector in 16..=255 {
        for trigger in [Trigger::Level, Trigger::Edge, Trigger::Edge, Trigger::Level, Trigger::Edge] {
            let _ = inbox.post_fixed(vector, trigger);
            let level = trigger == Trigger::Level;
            assert_eq!(serve(&inbox, &mut lapic), Effect::Eoi { vector, level });
        }
        // The I/O APIC waits for one of two.
        let _ = inbox.post_fixed(vector, Trigger::Level);
        let _ = inbox.post_fixed(vector, Trigger::Edge);
        assert_eq!(serve(&inbox, &mut lapic), Effect::Eoi { vector, level: true });
    }
}

/// Nothing that was posted before INIT reaches an interrupt after it.
#[test]
fn u54_init_discards_triggers() {
    let (inbox, mut lapic) = (Inbox::default(), lapic());
    let _ = inbox.post_fixed(0x40, Trigger::Level);
    let _ = inbox.post_init();
    let _ = inbox.take(&mut lapic);
    let _ = lapic.write_msr(msr::SVR, 0x1ff, 0).unwrap();
    let _ = inbox.post_fixed(0x40, Trigger::Edge);
    assert_eq!(serve(&inbox, &mut lapic), Effect::Eoi { vector: 0x40, level: false });
}

#[test]
fn o15_init_cancels_what_came_before_and_start_up_follows_it() {
    let (inbox, mut lapic) = (Inbox::default(), lapic());
    let _ = inbox.post(MessageKind::Startup(1), Trigger::Edge);
    let _ = inbox.post(MessageKind::Nmi, Trigger::Edge);
    let _ = inbox.post(MessageKind::Fixed(0x40), Trigger::Edge);
    let _ = inbox.post(MessageKind::Init, Trigger::Edge);
    let _ = inbox.post(MessageKind::Startup(2), Trigger::Edge);
    let _ = inbox.post(MessageKind::Startup(3), Trigger::Edge);
    let expected = Signals { init: true, startup: Some(2), nmis: 0 };
    assert_eq!(inbox.take(&mut lapic), expected, "the first start-up after INIT");
    assert!(!lapic.is_enabled());
    assert_eq!(lapic.highest_irr(), None);
    assert!(is_empty(&inbox));
}

#[test]
fn an_nmi_after_init_stays() {
    let (inbox, mut lapic) = (Inbox::default(), lapic());
    let _ = inbox.post_init();
    let _ = inbox.post_nmi();
    let _ = inbox.post_nmi();
    assert_eq!(inbox.take(&mut lapic), Signals { init: true, startup: None, nmis: 2 });
    let _ = inbox.post_startup(0);
    assert_eq!(inbox.take(&mut lapic), Signals { init: false, startup: Some(0), nmis: 0 });
}

#[test]
fn a_lowest_priority_vector_is_a_vector() {
    let (inbox, mut lapic) = (Inbox::default(), lapic());
    let _ = inbox.post(MessageKind::Lowest(0x99), Trigger::Edge);
    let _ = inbox.take(&mut lapic);
    assert_eq!(lapic.pending(), Some(0x99));
}
