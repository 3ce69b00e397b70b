//! A GICv3 for a guest at EL1: one security state, affinity routing, no LPIs (Arm GIC architecture
//! specification, IHI 0069H). The CPU interface is the hardware's virtual one; what is here decides
//! what is in its list registers, and is the memory-mapped rest.
//!
//! | part | what | who owns it |
//! |---|---|---|
//! | [`Private`] | one vCPU's SGIs and PPIs, the SPIs that it holds, its redistributor | the CPU that runs the vCPU |
//! | [`Inbox`] | what others post to a vCPU | shared, lock-free |
//! | [`Distributor`] | the SPIs that no vCPU holds, and how all of them are set up | the VM, under a lock |
//!
//! An SPI that has to be signalled is *posted* to one vCPU. That vCPU *claims* it at its next look
//! ([`Private::settle`]) and *holds* it until it is neither pending nor active, or until somebody
//! posts it again because of a change: then it is given back, and claimed again if it still is this
//! vCPU's. While it is held, its pending and active state are in [`Private`], and the distributor
//! notes what to do to them.
//!
//! The life of a vCPU between two exits, all of it on the CPU that has the vCPU:
//!
//! 1. after an exit: [`Private::sync`] takes the list registers back;
//! 2. before an entry: take the notify word, [`Private::look`] at the inbox, [`Private::settle`] if
//!    it says so;
//! 3. [`Private::fill`] writes list registers and says which maintenance interrupts to enable.
//!
//! In 1 and 3 nothing is read or written if nothing is in flight. Between `fill` and `sync` nothing
//! else may be called; an entry that is called off is followed by `sync` all the same.

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
pub use identity::{affinity, mpidr, vcpu_of};
pub use inbox::Inbox;
pub use list::{LIST_MAX, ListRegister, ListRegisters, Maintenance};
pub use private::{Deactivate, Private, RegisterEffect};
pub use redistributor::{Place, locate, read_foreign, write_foreign};
pub use sgi::{Sgi, SgiGroup};
pub use view::{View, running_priority};

/// Private interrupts: SGIs 0 to 15, PPIs 16 to 31.
pub const PRIVATE_COUNT: u8 = 32;
/// Software generated interrupts.
pub const SGI_COUNT: u8 = 16;
/// INTIDs of a VM unless it is asked for others.
pub const INTIDS_DEFAULT: u16 = 128;
/// Most INTIDs, private ones included.
pub const INTIDS_MAX: u16 = 256;

/// Which interrupt groups the distributor forwards: GICD_CTLR bits 1:0.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Groups(u8);

impl Groups {
    /// Neither.
    pub const NONE: Self = Self(0);
    /// Both.
    pub const BOTH: Self = Self(3);

    /// From bit 0 (group 0) and bit 1 (group 1); others are ignored.
    #[must_use]
    pub const fn from_bits(bits: u8) -> Self {
        Self(bits & 3)
    }

    /// Bit 0: group 0. Bit 1: group 1.
    #[must_use]
    pub const fn bits(self) -> u8 {
        self.0
    }

    /// Of the interrupts of which `group1` are in group 1, those whose group is in `self`.
    const fn members(self, group1: Bits) -> Bits {
        match self.0 {
            0 => Bits::EMPTY,
            1 => group1.not(),
            2 => group1,
            _ => Bits::ALL,
        }
    }
}

/// The five priority bits that there are, as in a virtual CPU interface with five.
const PRIORITY_MASK: u8 = 0xf8;
