//! The tests of hostile guests, foreign kernels and careless operators: section "Under attack" of
//! `docs/pitfalls.md`, by its ids.

pub(super) mod arm;
pub(super) mod fuzz;
pub(super) mod isolation;
pub(super) mod operator;
pub(super) mod pc;
pub(super) mod qemu;
