//! The protocol under loom, and proof that each of its orderings is needed.
//!
//! [`machine`] is the environment of the protocol: page tables, CPUs with TLBs, interrupt lines.
//! [`scenarios`] are small programs for it, generic over a [`protocol::Protocol`]: the real one, or
//! one with a single operation broken. [`mutants`] break them, one by one. [`moving`] has both for
//! vCPUs that change CPUs or are removed and added, [`elsewhere`] for vCPUs that have halted in
//! another address space, [`nested`] for changes of nested tables, and [`broadcast`] for flushes by
//! the hardware.
//!
//! Memory is made of relaxed atomics, so that only the protocol orders it. An interrupt orders
//! nothing either. Run with `RUSTFLAGS="--cfg loom" cargo test -p quell-coherence --release`.

mod broadcast;
mod elsewhere;
pub(crate) mod machine;
mod moving;
pub(crate) mod mutants;
mod nested;
mod protocol;
pub(crate) mod scenarios;
