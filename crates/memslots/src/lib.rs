//! Guest physical memory: slots, their generations, and copies in and out.
//!
//! [`Memslots`] says which guest physical addresses have memory, and where. Readers never wait; an update
//! is a chain of steps that ends with a flush receipt, so that no reader, no translation and no cached
//! lookup outlives what it was derived from. [`GuestMemory`] copies to and from guest memory, as a whole
//! or not at all, and never forms a reference to it.
#![cfg_attr(not(test), no_std)]

mod access;
mod generation;
#[cfg(all(test, loom))]
mod loom_tests;
mod memslots;
mod raw;
mod slot;
mod snapshots;
mod sync;
#[cfg(all(test, not(loom)))]
mod tests;

pub use access::{AccessError, GuestMemory, Located, Record, Resolution};
pub use generation::Generation;
pub use memslots::{Memslots, PHYSICAL_BITS_MAX, Published, Quiesced, Update};
pub use paging::{Gpa, PhysAddr};
pub use raw::Pattern;
pub use slot::{SLOTS_MAX, Slot, SlotError, SlotFlags, SlotId};
