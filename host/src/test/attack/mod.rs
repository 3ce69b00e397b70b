//! The tests of hostile guests, foreign kernels and careless operators: section "Under attack" of
//! `docs/pitfalls.md`, by its ids.

mod arm;
mod fuzz;
pub(super) mod isolation;
mod operator;
mod pc;
mod qemu;

use super::cases::Case;

/// The rows.
pub(super) fn rows() -> impl Iterator<Item = &'static Case> {
    [pc::ROWS, arm::ROWS, operator::ROWS, qemu::ROWS, fuzz::ROWS, isolation::ROWS].into_iter().flatten()
}
