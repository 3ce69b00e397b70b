//! The hypervisor on Arm64 at EL2, without VHE.
//!
//! | module | what it holds |
//! |---|---|
//! | `boot` | the way up: Image header and entry, the order of it (`start`), what the processor can do (`features`), the CPU itself (`cpu`) |
//! | `board` | real devices: interrupt controller (`gic`) and what its interrupts mean, timer (`clock`), PL011 (`console`), 16550s on the PCI bus (`pci`) |
//! | `guest` | into the guest and out of it (`entry`), and its registers: by name, vectors (`float`), virtual CPU interface (`vgic`), breakpoints (`points`) |
//! | `memory` | the hypervisor's own tables (`translation`), stage 2 and its TLB instructions (`stage2`, `flush`), what invalidating a page costs (`cost`), copying (`copy`) |
//! | `sysreg` | system registers by name |
//! | `offer` | what all of this is to the core and to the rest of the hypervisor for Arm64: their traits |
//!
//! What is done with all of it is in [`crate::arm64`], which runs on the host as well. The device
//! tree, PSCI, the GIC's registers and parts of the entry code are [`baremetal`]'s.

pub(super) mod board;
pub(super) mod boot;
mod guest;
mod memory;
mod offer;
mod sysreg;
