//! The power state under loom: each line of its table of events, and mistakes that would break it.

use coherence::{Notify, Owner, Space, Target};
use loom::sync::Arc;
use loom::thread;

use super::*;
use crate::model::{OwnerAction, announced, explored, hint_alone, take_events};

const FIRST: Start = Start { entry: 0x1000, context: 7 };
const SECOND: Start = Start { entry: 0x2000, context: 8 };

type Take = fn(&Power) -> Option<Start>;

/// A start that one caller requests.
fn start_is_found(
    take_word: fn(&mut Owner<'_>) -> bool,
    post: fn(&Power, &mut dyn FnMut(Published)),
    take: Take,
) {
    announced(Power::off(), OwnerAction::Halt, take_word, post, move |power| {
        let start = take(power);
        assert!(start.is_none() || start == Some(FIRST), "{start:?}: it starts elsewhere");
        start.is_some()
    });
}

fn post_first(power: &Power, announce: &mut dyn FnMut(Published)) {
    announce(power.turn_on(FIRST).expect("it is off"));
}

explored! {
    /// A to F: a vCPU that is off and blocks is woken, and starts at its entry point.
    fn a_start_is_found_or_its_owner_is_woken(None):
        || start_is_found(take_events, post_first, Power::take_start);
    fn told_before_the_start_is_there(None) fails "announced and not found": || {
        let post = |power: &Power, announce: &mut dyn FnMut(Published)| {
            announce(Published::here());
            let _ = power.turn_on(FIRST).expect("it is off");
        };
        start_is_found(take_events, post, Power::take_start);
    };
    /// C before B.
    fn pending_before_the_entry_is_there(None) fails "it starts elsewhere": || {
        let post = |power: &Power, announce: &mut dyn FnMut(Published)| {
            power.state.swap(PENDING, Ordering::AcqRel);
            power.entry.store(FIRST.entry, Ordering::Relaxed);
            power.context.store(FIRST.context, Ordering::Relaxed);
            announce(Published::here());
        };
        start_is_found(take_events, post, Power::take_start);
    };
    /// C does not release B.
    fn pending_that_is_not_released(None) fails "it starts elsewhere": || {
        let post = |power: &Power, announce: &mut dyn FnMut(Published)| {
            power.entry.store(FIRST.entry, Ordering::Relaxed);
            power.context.store(FIRST.context, Ordering::Relaxed);
            power.state.swap(PENDING, Ordering::Relaxed);
            announce(Published::here());
        };
        start_is_found(take_events, post, Power::take_start);
    };
    /// E does not acquire it.
    fn pending_that_is_not_acquired(None) fails "it starts elsewhere": || {
        start_is_found(take_events, post_first, |power| {
            power.state.compare_exchange(PENDING, ON, Ordering::Relaxed, Ordering::Relaxed).ok()?;
            let (entry, context) = (&power.entry, &power.context);
            Some(Start { entry: entry.load(Ordering::Relaxed), context: context.load(Ordering::Relaxed) })
        });
    };
    /// D is a check without an order, after a check of the state, also without an order.
    fn notify_word_read_without_order(None) fails "announced and not found": || {
        start_is_found(hint_alone, post_first, |power| {
            (power.state.load(Ordering::Relaxed) == PENDING).then(|| power.take_start()).flatten()
        });
    };
}

/// Two callers of CPU_ON, and the vCPU. One of them succeeds, and the vCPU starts with its
/// arguments.
fn two_callers(turn_on: fn(&Power, Start) -> bool) {
    let power = Arc::new(Power::off());
    let callers = [FIRST, SECOND].map(|start| {
        let power = power.clone();
        thread::spawn(move || turn_on(&power, start))
    });
    let beside = power.take_start();
    let [first, second] = callers.map(|caller| caller.join().unwrap());
    assert!(first != second, "not one of the callers succeeds");
    let start = beside.or_else(|| power.take_start());
    assert_eq!(start, Some(if first { FIRST } else { SECOND }), "it starts elsewhere");
    assert!(power.is_on() && power.take_start().is_none());
}

explored! {
    fn of_two_callers_one_starts_it(None): || two_callers(|power, start| power.turn_on(start).is_ok());
    /// Without A: any caller that finds the vCPU off writes its arguments.
    fn start_without_a_claim(None) fails "not one of the callers": || {
        two_callers(|power, start| {
            let is_off = power.state.load(Ordering::Acquire) == OFF;
            if is_off {
                power.entry.store(start.entry, Ordering::Relaxed);
                power.context.store(start.context, Ordering::Relaxed);
                power.state.swap(PENDING, Ordering::AcqRel);
            }
            is_off
        });
    };
}

/// A vCPU that is turning off, with its earlier stores, and its notify word.
struct Leaving {
    power: Power,
    target: Target,
    did: AtomicU64,
}

/// CPU_OFF against CPU_ON: the next start is written after the last has been read; a caller that
/// finds the vCPU off sees its earlier stores; and the vCPU is woken if it blocked.
fn off_and_on(turn_off: fn(&Power), is_off: fn(&Power) -> bool) {
    let vcpu = Arc::new(Leaving { power: Power::off(), target: Target::new(), did: AtomicU64::new(0) });
    let _ = vcpu.power.turn_on(FIRST).expect("it is off");
    let owner = {
        let vcpu = vcpu.clone();
        thread::spawn(move || {
            let mut owner = vcpu.target.owner().expect("free");
            assert_eq!(vcpu.power.take_start(), Some(FIRST), "it starts elsewhere");
            vcpu.did.store(1, Ordering::Relaxed);
            turn_off(&vcpu.power);
            if owner.take_events()
                && let Some(start) = vcpu.power.take_start()
            {
                return (Some(start), false);
            }
            let has_halted = owner.try_halt(Space::UNKNOWN);
            (None, has_halted)
        })
    };
    let found_off = is_off(&vcpu.power);
    if found_off {
        assert_eq!(vcpu.did.load(Ordering::Relaxed), 1, "what it did before is not to be seen");
    }
    let answer = vcpu.power.turn_on(SECOND);
    assert!(answer.is_ok() || !found_off, "it was off");
    let note = answer.is_ok().then(|| vcpu.target.post_event());
    let (start, has_halted) = owner.join().unwrap();
    match answer {
        Ok(_) if has_halted => {
            assert_eq!(note, Some(Notify::Wake), "it is not woken");
            assert_eq!(vcpu.power.take_start(), Some(SECOND));
        }
        Ok(_) => assert_eq!(start.or_else(|| vcpu.power.take_start()), Some(SECOND), "it starts elsewhere"),
        Err(_) => assert!(start.is_none() && has_halted && vcpu.power.affinity() == AffinityState::Off),
    }
}

fn is_off(power: &Power) -> bool {
    power.affinity() == AffinityState::Off
}

explored! {
    fn off_and_on_again(None): || off_and_on(Power::turn_off, is_off);
    fn off_that_is_not_released(None) fails "what it did before":
        || off_and_on(|power| power.state.store(OFF, Ordering::Relaxed), is_off);
    fn off_that_is_not_acquired(None) fails "what it did before":
        || off_and_on(Power::turn_off, |power| power.state.load(Ordering::Relaxed) == OFF);
}
