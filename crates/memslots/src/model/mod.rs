//! The protocols under the model checker, and proof that each of their orderings is needed.
//!
//! Each file has small programs, generic over the operations that they use: the real ones, or with
//! a single one broken. [`copies`] covers the two copies of a list, [`slots`] the data that faults
//! and vCPUs derive from slots while these change, and [`log`] dirty logs.
//!
//! Run with `RUSTFLAGS="--cfg loom" cargo test -p quell-memslots --lib --release`.

mod copies;
mod log;
mod slots;

/// Runs `scenario` in every interleaving with at most `preemptions` involuntary switches.
fn explore(preemptions: usize, scenario: fn()) {
    let mut model = loom::model::Builder::new();
    model.preemption_bound = Some(preemptions);
    model.check(scenario);
}

/// Tests that explore scenarios, each with its bound on preemptions.
macro_rules! explored {
    ($($(#[$doc:meta])* $test:ident: $($preemptions:expr => $scenario:expr),+;)+) => {$(
        $(#[$doc])*
        #[test]
        fn $test() {
            $($crate::model::explore($preemptions, $scenario);)+
        }
    )+};
}
use explored;

/// Continues waiting, and lets others run.
fn relax() -> bool {
    loom::thread::yield_now();
    true
}

/// Defines mutants of the file's `Protocol`, and the tests that they fail: a scenario, and the
/// failure seen there.
macro_rules! mutants {
    ($(
        $(#[$doc:meta])+
        $name:ident fails $test:ident: $scenario:expr, $seen:literal, { $($body:tt)+ }
    )+) => {$(
        $(#[$doc])+
        struct $name;

        impl Protocol for $name {
            $($body)+
        }

        #[test]
        #[should_panic(expected = $seen)]
        fn $test() {
            $crate::model::explore(3, $scenario);
        }
    )+};
}
use mutants;
