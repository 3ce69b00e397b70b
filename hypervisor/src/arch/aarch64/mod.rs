//! The hypervisor on Arm64 at EL2, without VHE.
//!
//! | module | what it holds |
//! |---|---|
//! | `boot` | Image header, entry of the first CPU and of the others |
//! | `start` | the order in which everything is brought up |
//! | `firmware` | what the device tree says: memory, CPUs, devices |
//! | `translation` | the hypervisor's own page tables |
//! | `features` | what the processor can do; EL2's control registers |
//! | `sysreg` | system registers by name |
//! | `entry` | into the guest and out of it; EL2's vectors |
//! | `gic`, `interrupts` | the real interrupt controller, and what its interrupts mean |
//! | `copy` | copying memory |
//! | `clock`, `cpu`, `power` | the timer; the CPU itself; PSCI |
//! | `console`, `pci` | PL011, and 16550s on the PCI bus |
//! | `guest` | what the vCPUs share |
//! | `offer` | what all of this is to the core: its traits |
//! | `stage2` | format and tables of stage 2 |
//! | `cost` | what invalidating a page costs |
//! | `flush` | TLB instructions, and how changes of guest memory reach all processors |
//! | `vcpu`, `state` | what a CPU needs to run a vCPU; a vCPU's private state |
//! | `system`, `float`, `vgic`, `debug` | its registers: EL1's, vectors, the virtual CPU interface, breakpoints |
//! | `exits`, `abort`, `registers`, `devices`, `inject` | what exits mean |
//! | `auditor` | what looks at each entry, in the image for tests |
//! | `waits` | the word in memory that a guest waits for |

mod abort;
mod auditor;
mod boot;
mod clock;
pub(crate) mod console;
mod copy;
mod cost;
pub(crate) mod cpu;
mod debug;
mod devices;
mod entry;
mod exits;
mod features;
mod firmware;
mod float;
mod flush;
mod gic;
mod guest;
mod inject;
mod interrupts;
mod offer;
mod pci;
mod power;
mod registers;
mod stage2;
mod start;
mod state;
mod sysreg;
mod system;
mod translation;
mod vcpu;
mod vgic;
mod waits;

pub(crate) use offer::Local;
