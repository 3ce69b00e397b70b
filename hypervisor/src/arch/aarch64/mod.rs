//! The hypervisor on Arm64 at EL2, without VHE.
//!
//! | module | contents |
//! |---|---|
//! | `boot` | the start-up: Image header and entry, the sequence (`start`), processor features (`features`), the CPU itself (`cpu`) |
//! | `board` | real devices: interrupt controller (`gic`) and the handling of its interrupts, timer (`clock`), PL011 (`console`), 16550s on the PCI bus (`pci`) |
//! | `guest` | guest entry and exit (`entry`), and the guest's registers: by name, vectors (`float`), virtual CPU interface (`vgic`), breakpoints (`points`) |
//! | `memory` | the hypervisor's own tables (`translation`), stage 2 and its TLB instructions (`stage2`, `flush`), the cost of invalidating a page (`cost`), copying (`copy`) |
//! | `sysreg` | system registers by name |
//! | `ops` | implements the traits of the core and of the rest of the hypervisor for Arm64 |
//!
//! The code that uses all of this is in [`crate::arm64`], which runs on the host as well. The
//! device tree, PSCI, the GIC's registers and parts of the entry code are [`baremetal`]'s.

pub(super) mod board;
pub(super) mod boot;
mod guest;
mod memory;
mod ops;
mod sysreg;

crate::image::kinds!(crate::image::Processor);
