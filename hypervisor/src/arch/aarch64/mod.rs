//! The hypervisor on Arm64 at EL2, without VHE.
//!
//! | module | what it holds |
//! |---|---|
//! | `boot` | Image header, entry of the first CPU and of the others |
//! | `start` | the order in which everything is brought up |
//! | `translation` | the hypervisor's own page tables |
//! | `features` | what the processor can do; EL2's control registers |
//! | `sysreg` | system registers by name |
//! | `entry` | into the guest and out of it; EL2's vectors |
//! | `gic`, `interrupts` | the real interrupt controller, and what its interrupts mean |
//! | `copy` | copying memory |
//! | `clock`, `cpu` | the timer; the CPU itself |
//! | `console`, `pci` | PL011, and 16550s on the PCI bus |
//! | `offer` | what all of this is to the core and to the rest of the hypervisor for Arm64: their traits |
//! | `stage2` | format and tables of stage 2 |
//! | `cost` | what invalidating a page costs |
//! | `flush` | TLB instructions, and what the walker asks for |
//! | `registers`, `float`, `vgic`, `points` | the guest's registers: by name, vectors, the virtual CPU interface, breakpoints |
//!
//! What is done with all of it is in [`crate::arm64`], which runs on the host as well. The device
//! tree, PSCI, the GIC's registers and parts of the entry code are [`baremetal`]'s.

mod boot;
pub(super) mod clock;
pub(crate) mod console;
mod copy;
mod cost;
pub(crate) mod cpu;
mod entry;
mod features;
mod float;
mod flush;
mod gic;
mod interrupts;
mod offer;
mod pci;
mod points;
mod registers;
mod stage2;
mod start;
mod sysreg;
mod translation;
mod vgic;
