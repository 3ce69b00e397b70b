//! The common parts of the models: one poster, one owner of a vCPU, and the notify word between
//! them.
//!
//! The word is the real [`Target`], built with loom's atomics. Memory consists of relaxed atomics,
//! so that only the protocol orders it. A kick and a wake-up order nothing either: they are return
//! values of `post_event`. Run with `RUSTFLAGS="--cfg loom" cargo test -p quell-hypervisor
//! --release --lib model::`.

use coherence::{CpuId, Notify, Owner, Space, Target};
use loom::sync::Arc;
use loom::thread;

use crate::sched::notify::{self, Published};

/// The CPU that the owner is on.
pub(crate) const CPU: CpuId = CpuId(5);

/// Runs `scenario` in every interleaving with at most `preemptions` involuntary switches.
pub(crate) fn explore(preemptions: Option<usize>, scenario: impl Fn() + Sync + Send + 'static) {
    let executions = std::sync::Arc::new(std::sync::atomic::AtomicU64::new(0));
    let count = executions.clone();
    let mut model = loom::model::Builder::new();
    model.preemption_bound = preemptions;
    model.check(move || {
        count.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
        scenario();
    });
    println!("{} executions", executions.load(std::sync::atomic::Ordering::Relaxed));
}

/// Tests that explore with so many preemptions, those of defects with what they fail with.
macro_rules! explored {
    ($($(#[$doc:meta])* fn $test:ident($preemptions:expr) $(fails $seen:literal)?: $scenario:expr);+ $(;)?) => {$(
        $(#[$doc])*
        #[test]
        $(#[should_panic(expected = $seen)])?
        fn $test() {
            $crate::model::explore($preemptions, $scenario);
        }
    )+};
}
pub(crate) use explored;

/// The owner's action when it has found nothing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum OwnerAction {
    /// It enters the guest, and stays there until it is kicked.
    Enter,
    /// It blocks until it is woken.
    Halt,
}

/// The owner's first check of the notify word, as in the hypervisor.
pub(crate) fn take_events(owner: &mut Owner<'_>) -> bool {
    notify::take_events(owner).is_some()
}

/// A wrong one: a check without an order, where the event should be taken.
pub(crate) fn hint_alone(owner: &mut Owner<'_>) -> bool {
    owner.target().has_event()
}

/// `post` posts an item to a vCPU, and announces it by calling its argument, while the owner checks
/// and goes on: the owner finds it, or is told. `look` returns whether it has found the item by
/// now.
pub(crate) fn announced<S, L>(
    shared: S,
    way: OwnerAction,
    take: fn(&mut Owner<'_>) -> bool,
    post: fn(&S, &mut dyn FnMut(Published)),
    mut look: L,
) where
    S: Send + Sync + 'static,
    L: FnMut(&S) -> bool + Send + 'static,
{
    let vcpu = Arc::new((Target::new(), shared));
    let running = {
        let vcpu = vcpu.clone();
        thread::spawn(move || {
            let (target, shared) = &*vcpu;
            let mut owner = target.owner().expect("free");
            let was_told = take(&mut owner);
            // It checks in any case, as after its arrival on a CPU.
            let mut found = look(shared);
            assert!(found || !was_told, "announced and not found");
            let is_refused = !found
                && match way {
                    // The guest does not leave guest mode: the guard is forgotten.
                    OwnerAction::Enter => owner.try_enter(CPU).map(core::mem::forget).is_err(),
                    OwnerAction::Halt => !owner.try_halt(Space::UNKNOWN),
                };
            if is_refused {
                assert!(owner.take_events(), "an event is all that may be pending");
                found = look(shared);
                assert!(found, "announced and not found");
            }
            (found, look)
        })
    };
    let mut note = None;
    post(&vcpu.1, &mut |_| note = Some(vcpu.0.post_event()));
    let (found, mut look) = running.join().unwrap();
    let told = if way == OwnerAction::Enter { Notify::Kick(CPU) } else { Notify::Wake };
    assert!(found || note == Some(told), "the owner is not told");
    assert!(found || look(&vcpu.1), "announced and not found, even later");
}
