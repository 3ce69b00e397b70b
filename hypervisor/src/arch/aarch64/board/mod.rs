//! The real devices of the board.

pub(crate) mod clock;
pub(crate) mod console;
pub(super) mod gic;
pub(super) mod interrupts;
pub(crate) mod pci;
