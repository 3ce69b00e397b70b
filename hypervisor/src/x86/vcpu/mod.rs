//! A vCPU's private state, and what handlers of exits do with it.
//!
//! | module | contents |
//! |---|---|
//! | [`checks`] | the checks that a processor makes before it executes an intercepted instruction |
//! | [`code_path`] | a vCPU's last walks to its code |
//! | [`debug`] | breakpoint addresses |
//! | [`fpu`] | floating-point and vector state |
//! | [`inject`] | injection of events into the guest |
//! | [`instruction`] | the instruction that caused an exit, and the translation of its addresses |
//! | [`msr`] | model-specific registers |
//! | [`nmi`] | NMIs, whose handlers end with IRET |
//! | [`registers`] | general registers |
//! | [`signals`] | a vCPU's external events: signals, vectors, timers |
//! | [`state`] | all of it together |

pub mod checks;
pub mod code_path;
pub mod debug;
pub mod fpu;
pub mod inject;
pub mod instruction;
pub mod msr;
pub mod nmi;
pub mod registers;
pub mod signals;
pub mod state;
