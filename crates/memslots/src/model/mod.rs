//! The protocols under the model checker, and proof that each of their orderings is needed.
//!
//! Each file has small programs, generic over the operations that they use: the real ones, or with
//! a single one broken. [`copies`] covers the two copies of a list, [`slots`] the data that faults
//! and vCPUs derive from slots while these change, [`log`] dirty logs, and [`shadow`] the
//! translations of a guest's guest.
//!
//! Run with `RUSTFLAGS="--cfg loom" cargo test -p quell-memslots --lib --release`.

mod copies;
mod log;
mod shadow;
mod slots;

/// Continues waiting, and lets others run.
fn relax() -> bool {
    loom::thread::yield_now();
    true
}
