//! Guest entry and exit.

pub(super) mod entry;
pub(super) mod float;
pub(super) mod points;
pub(super) mod registers;
pub(super) mod vgic;
