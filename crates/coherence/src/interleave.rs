//! What the models of this crate and of those beside it have in common. Not a part of the
//! interface: it is there under `cfg(loom)` alone.

use loom::sync::Arc;
use loom::thread::JoinHandle;

/// Runs `scenario` in every interleaving with at most `preemptions` involuntary switches.
pub fn explore(preemptions: Option<usize>, scenario: impl Fn() + Sync + Send + 'static) {
    let mut model = loom::model::Builder::new();
    model.preemption_bound = preemptions;
    model.check(scenario);
}

/// Runs `act` on another thread, beside the caller.
pub fn on_a_thread<S: 'static, R: 'static>(
    shared: &Arc<S>,
    act: impl FnOnce(&S) -> R + 'static,
) -> JoinHandle<R> {
    let shared = shared.clone();
    loom::thread::spawn(move || act(&shared))
}

/// Tests that explore scenarios, each with its bound on preemptions.
#[macro_export]
macro_rules! explored {
    ($($(#[$doc:meta])* $test:ident: $($preemptions:expr => $scenario:expr),+;)+) => {$(
        $(#[$doc])*
        #[test]
        fn $test() {
            $($crate::interleave::explore($preemptions, $scenario);)+
        }
    )+};
}

/// Defines mutants of the file's `Protocol`, and the tests that they fail: a scenario, and the
/// failure seen there, within as many preemptions as the real protocol is tested with, or 3.
#[macro_export]
macro_rules! mutants {
    ($(
        $(#[$doc:meta])+
        $name:ident fails $test:ident $(within $preemptions:literal)?:
        $scenario:expr, $seen:literal, { $($body:tt)+ }
    )+) => {$(
        $(#[$doc])+
        struct $name;

        impl Protocol for $name {
            $($body)+
        }

        #[test]
        #[should_panic(expected = $seen)]
        fn $test() {
            let preemptions = [$($preemptions,)? 3][0];
            $crate::interleave::explore(Some(preemptions), $scenario);
        }
    )+};
}
