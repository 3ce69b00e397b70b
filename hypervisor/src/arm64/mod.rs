//! What is decided about Arm64 guests, as far as it needs no Arm64 processor: values of EL2's controls, what trapped
//! registers do, what instructions mean. `arch` reads and writes the registers.
//!
//! | module | what it holds |
//! |---|---|
//! | [`controls`] | registers that are written before the first guest, and with what |
//! | [`exchanged`] | registers that a vCPU takes along |
//! | [`registers`] | what trapped registers do |
//! | [`identity`] | the ID registers as a guest sees them |
//! | [`debug`] | breakpoints, watchpoints, single step |
//! | [`load_store`] | accesses of two registers, or with write-back |
//! | [`step`] | going on behind an instruction; instructions whose condition fails |
//! | [`audit`] | what a vCPU could meet that enters, in the image for tests |
//! | [`abort`], [`serror`] | what a stage-2 fault says of the access; asynchronous aborts |

pub mod abort;
pub mod audit;
#[macro_use]
pub mod controls;
pub mod debug;
#[macro_use]
pub mod exchanged;
pub mod identity;
pub mod load_store;
pub mod registers;
pub mod serror;
pub mod step;
pub mod wait_loop;
