//! What differs per architecture. Each one is a module of the same shape; the one for the target is used.
//!
//! | module | what `vm` asks it for |
//! |---|---|
//! | `clock` | the time, its unit, the one-shot timer |
//! | `console` | the log's port, the real console behind the guest's, the control channel |
//! | `cpu` | waiting for and taking interrupts, kicks, stacks, the end of the run |
//! | `guest` | what the vCPUs share beyond memory and scheduler: devices, nested format, how a kernel is loaded |
//! | `flush` | how a change of guest memory reaches all processors |
//! | `vcpu` | private state, inbox, what a CPU needs to run one; `enter` and `handle_exit` of a `vm::Context` |

#[cfg(target_arch = "aarch64")]
mod aarch64;
#[cfg(target_arch = "x86_64")]
mod x86_64;

#[cfg(target_arch = "aarch64")]
pub(crate) use aarch64::{clock, console, cpu, flush, guest, vcpu};
#[cfg(target_arch = "x86_64")]
pub(crate) use x86_64::{clock, console, cpu, flush, guest, vcpu};
