//! A vCPU's private state, and what handlers of exits do with it.
//!
//! | module | contents |
//! |---|---|
//! | [`block`] | what a control block offers |
//! | [`checks`] | the checks that a processor makes before it executes an intercepted instruction |
//! | [`code_path`] | a vCPU's last walks to its code |
//! | [`debug`] | breakpoint addresses |
//! | [`event`] | the format of events |
//! | [`fpu`] | floating-point and vector state |
//! | [`inject`] | injection of events into the guest |
//! | [`instruction`] | the instruction that caused an exit, and the translation of its addresses |
//! | [`msr`] | model-specific registers |
//! | [`nmi`] | NMIs, whose handlers end with IRET |
//! | [`registers`] | general registers |
//! | [`signals`] | a vCPU's external events: signals, vectors, timers |
//! | [`state`] | all of it together |

pub mod block;
pub mod checks;
pub mod code_path;
pub mod debug;
pub mod event;
pub mod fpu;
pub mod inject;
pub mod instruction;
pub mod msr;
pub mod nmi;
pub mod registers;
pub mod signals;
pub mod state;
