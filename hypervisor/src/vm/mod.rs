//! The virtual machines: everything that is the same on all architectures. It compiles for the
//! host, and is tested there with a mock architecture.
//!
//! | module | contents |
//! |---|---|
//! | `arch` | the traits that an architecture implements, and that all of this is generic over |
//! | `awaited` | the word in memory that a vCPU waits for |
//! | `board` | the traits of the machine below |
//! | `change` | changes of guest memory that an access has caused |
//! | `console` | what a guest sends to its serial ports |
//! | `context` | a vCPU on a CPU |
//! | `control` | requests of the host tool |
//! | `dma` | what a guest's devices keep of its translations |
//! | `end` | fatal errors that end a run early |
//! | `files` | the contents of the boot module |
//! | `gone` | proofs that nobody reaches a guest any more |
//! | `guests` | guests are created, and end |
//! | `host` | what the guests share |
//! | `interrupts` | handling of a CPU's own interrupts |
//! | `load` | puts a guest's files into its memory |
//! | `machine` | a virtual machine: everything its vCPUs share |
//! | `made` | for tests: a mock board |
//! | `memory` | allocation of nested page tables |
//! | `percpu` | the data of each CPU |
//! | `refused` | why a guest does not get a device |
//! | `reset` | the guest starts again |
//! | `run` | the loop that each CPU runs forever |
//! | `shared` | memory that guests share, and its doorbell |
//! | `shown` | memory of the hypervisor's own that a guest may read |
//! | `slot_memory` | the memory behind slots that are added and removed |
//! | `space` | changes of the guest's memory |
//! | `state` | the trait of a vCPU's private state |
//! | `stop` | all vCPUs of a guest stop |
//! | `switch` | from one vCPU to the next |
//! | `trace` | what each CPU does, for the host tool |
//!
//! Nothing here names an instruction or a register: [`arch`]'s traits do that.

pub mod arch;
pub mod awaited;
pub mod board;
mod change;
mod console;
mod context;
pub mod control;
pub mod counting;
pub mod dma;
pub mod end;
pub mod files;
mod freed;
mod gone;
mod guests;
pub mod host;
pub mod interrupts;
pub mod load;
mod log_target;
pub mod machine;
pub mod memory;
#[cfg(test)]
pub(crate) mod mock;
pub mod percpu;
pub mod refused;
mod reset;
pub mod run;
pub mod shared;
pub mod shown;
mod slot_memory;
pub mod space;
mod state;
mod stop;
mod switch;
#[cfg(test)]
mod tests;
pub mod trace;

pub use context::{Access, Context, FaultOutcome, Next};
pub use counting::increase;
pub use files::{CreateError, Files};
pub use host::Host;
pub use log_target::{Charged, GUEST, caused_by};
pub use machine::{Vcpu, Vm, VpIndex};
pub use percpu::PerCpu;
