//! What is decided about Arm64 guests, as far as it needs no Arm64 processor: values of EL2's controls, what trapped
//! registers do, what instructions mean. `arch` reads and writes the registers.
//!
//! | module | what it holds |
//! |---|---|
//! | [`identity`] | the ID registers as a guest sees them |
//! | [`step`] | going on behind an instruction; instructions whose condition fails |

pub mod identity;
pub mod step;
