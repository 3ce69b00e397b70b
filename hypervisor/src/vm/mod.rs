//! The virtual machines: everything that is the same on all architectures. It compiles for the
//! host, and is tested there with a mock architecture.
//!
//! Nothing here names an instruction or a register: [`arch`]'s traits do that.

pub mod arch;
pub mod awaited;
pub mod board;
mod change;
pub mod clock;
mod console;
mod context;
pub mod control;
pub mod counting;
pub mod defects;
pub mod dma;
pub mod end;
pub mod files;
mod freed;
mod generation;
mod gone;
mod guests;
pub mod host;
pub mod interrupts;
pub mod load;
mod log_target;
pub mod machine;
pub mod memory;
#[cfg(any(test, feature = "mock"))]
#[cfg_attr(not(test), expect(dead_code, reason = "tests of this crate use the rest"))]
pub mod mock;
pub mod percpu;
pub mod refused;
mod reset;
pub mod run;
pub mod shown;
mod slot_memory;
pub mod space;
mod state;
mod stop;
mod switch;
#[cfg(test)]
pub(crate) mod tests;
pub mod trace;
mod vcpu;

pub use context::{Access, Context, FaultOutcome, Next};
pub use counting::increase;
pub use files::{CreateError, Files};
pub(crate) use guests::HEAP_PER_VCPU;
pub use host::Host;
pub use log_target::{Charged, GUEST, caused_by};
pub(crate) use machine::shadow_tables;
pub use machine::{Vcpu, Vm, VpIndex};
pub use percpu::PerCpu;
