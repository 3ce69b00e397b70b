//! The virtual machine: everything that is the same on all architectures. It compiles for the host,
//! and is tested there with an architecture that is made up.
//!
//! | module | what it holds |
//! |---|---|
//! | `arch` | what an architecture offers: the traits that all of this is generic over |
//! | `awaited` | the word in memory that a vCPU waits for |
//! | `change` | changes of guest memory that an access has caused |
//! | `context` | a vCPU on a CPU |
//! | `control` | requests of the host tool |
//! | `end` | how a run ends before its time |
//! | `files` | what the boot module holds |
//! | `interrupts` | what interrupts of a CPU lead to |
//! | `machine` | the virtual machine: everything shared by its vCPUs |
//! | `made` | for tests: a board that is made up |
//! | `memory` | tables of nested paging |
//! | `percpu` | the data of each CPU |
//! | `reset` | all vCPUs stop, and the guest starts again |
//! | `run` | the loop that each CPU runs for ever |
//! | `slot_memory` | the memory behind slots that come and go |
//! | `space` | changes of the guest's memory |
//! | `switch` | from one vCPU to the next |
//! | `trace` | what each CPU does, for the host tool |
//!
//! Nothing here names an instruction or a register: that is for [`arch`]'s traits.

pub mod arch;
pub mod awaited;
mod change;
mod context;
pub mod control;
pub mod counting;
pub mod end;
pub mod files;
pub mod interrupts;
pub mod machine;
#[cfg(test)]
pub(crate) mod made;
pub mod memory;
pub mod percpu;
mod reset;
pub mod run;
mod slot_memory;
pub mod space;
mod switch;
#[cfg(test)]
mod tests;
pub mod trace;

pub use context::{Access, Context, Led, Next};
pub use counting::increase;
pub use files::{CreateError, Files};
pub use machine::{Vcpu, Vm};
pub use percpu::PerCpu;

/// The target of log lines that a guest can cause as often as it likes: they have a quota
/// (`quota.rs`).
pub const GUEST: &str = "guest";
