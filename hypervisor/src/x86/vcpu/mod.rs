//! A vCPU's private state, and what handlers of exits do with it.

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
pub(crate) mod saved_state;
pub mod signals;
pub mod state;
