//! A GICv3 for a guest at EL1: one security state, affinity routing, no LPIs (Arm GIC architecture
//! specification, IHI 0069H). The CPU interface is the hardware's virtual one. The code here
//! decides the contents of its list registers, and implements the memory-mapped rest.
//!
//! | part | contents | owner |
//! |---|---|---|
//! | [`Private`] | one vCPU's SGIs and PPIs, the SPIs that it holds, its redistributor | the CPU that runs the vCPU |
//! | [`Inbox`] | other CPUs' posts to a vCPU | shared, lock-free |
//! | [`Distributor`] | the SPIs that no vCPU holds, and the configuration of all SPIs | the VM, under a lock |
//!
//! An SPI that must be signalled is *posted* to one vCPU. That vCPU *claims* it at its next check
//! ([`Private::settle`]) and *holds* it until it is neither pending nor active, or until it is
//! posted again because of a change. Then it is returned, and claimed again if it is still due for
//! this vCPU. While it is held, its pending and active state is in [`Private`], and the distributor
//! notes changes to be applied to it.
//!
//! The steps of a vCPU between two exits, all of them on the CPU that has the vCPU:
//!
//! 1. after an exit: [`Private::sync`] takes the list registers back;
//! 2. before an entry: take the notify word, [`Private::look`] at the inbox, [`Private::settle`] if
//!    it returns true;
//! 3. [`Private::fill`] writes list registers and returns the maintenance interrupts to enable.
//!
//! In 1 and 3 nothing is read or written if no interrupts are in flight. Between `fill` and `sync`
//! no other method may be called; a cancelled entry is followed by `sync` too.

mod bits;
mod distributor;
mod identity;
mod inbox;
mod list;
mod private;
mod redistributor;
mod registers;
mod sgi;
#[cfg(test)]
mod tests;
mod view;

pub use bits::Bits;
pub use distributor::{Distributor, Effect, Post};
pub use identity::{Affinity, mpidr};
pub use inbox::Inbox;
pub use list::{LIST_MAX, ListRegister, ListRegisters, Maintenance, list_count, preemption_bits};
pub use private::{Deactivate, Private, RegisterEffect};
pub use redistributor::{RedistributorRegister, locate, read_foreign, write_foreign};
pub use sgi::{Sgi, SgiGroup};
pub use view::{View, running_priority};

use migration::described;

/// Private interrupts: SGIs 0 to 15, PPIs 16 to 31.
pub const PRIVATE_COUNT: u8 = 32;
/// Software generated interrupts.
pub const SGI_COUNT: u8 = 16;
/// Number of INTIDs of a VM by default.
pub const INTIDS_DEFAULT: u16 = 128;
/// Maximum number of INTIDs, including private ones.
pub const INTIDS_MAX: u16 = 256;

/// The interrupt groups that the distributor forwards: GICD_CTLR bits 1:0.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Groups(u8);

impl Groups {
    /// Neither.
    pub const NONE: Self = Self(0);
    /// Both.
    pub const BOTH: Self = Self(3);

    /// From bit 0 (group 0) and bit 1 (group 1); others are ignored.
    pub const fn from_bits(bits: u8) -> Self {
        Self(bits & 3)
    }

    /// Bit 0: group 0. Bit 1: group 1.
    pub const fn bits(self) -> u8 {
        self.0
    }

    /// The interrupts whose group is in `self`, given the set of those in group 1.
    const fn members(self, group1: Bits) -> Bits {
        match self.0 {
            0 => Bits::EMPTY,
            1 => group1.not(),
            2 => group1,
            _ => Bits::ALL,
        }
    }
}

described!(Groups: 0 & Self::BOTH.0);

/// The five implemented priority bits, as in a virtual CPU interface with five.
const PRIORITY_MASK: u8 = 0xf8;
