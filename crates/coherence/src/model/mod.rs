//! The protocol under loom, and proof that each of its orderings is needed.
//!
//! [`machine`] is what the protocol runs on: page tables, CPUs with TLBs, interrupt lines.
//! [`scenarios`] are small programs for it, generic over a [`protocol::Protocol`]: the real one, or
//! one with a single operation spoilt. [`mutants`] spoil them, one by one. [`moving`] has both for
//! vCPUs that change CPUs, are removed and added, and [`elsewhere`] for those that have halted in
//! another address space; [`broadcast`] for flushes that the hardware does.
//!
//! Memory is made of relaxed atomics, so that nothing but the protocol orders it. An interrupt
//! orders nothing either. Run with `RUSTFLAGS="--cfg loom" cargo test -p quell-coherence
//! --release`.

mod broadcast;
mod elsewhere;
pub(crate) mod machine;
mod moving;
pub(crate) mod mutants;
mod protocol;
pub(crate) mod scenarios;
