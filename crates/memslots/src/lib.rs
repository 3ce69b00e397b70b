//! Guest physical memory: slots, their generations, and copies in and out.
//!
//! [`Memslots`] maps guest physical addresses to the memory behind them. Readers never wait. An
//! update is a sequence of steps that ends with a flush receipt, so that no reader, no translation
//! and no cached lookup outlives the slots it was derived from. [`GuestMemory`] copies to and from
//! guest memory, as a whole or not at all, and never forms a reference to it. A [`DirtyLog`]
//! records the pages that were stored to, and [`DirtyFetch`] reads it; an [`MmioCache`] remembers
//! addresses without memory.
//!
//! # Ordering
//!
//! Each protocol has a table of its events and of the order between them, with the reason: readers
//! and updates of the slots at [`snapshots`], stores and fetches of a log at [`DirtyLog`].
#![cfg_attr(not(test), no_std)]

extern crate quell_paging as paging;

mod access;
mod audit;
mod dirty;
mod error;
mod fetch;
mod generation;
mod list;
mod located;
mod marked_walk;
mod memslots;
mod mmio;
#[cfg(all(test, loom))]
mod model;
mod raw;
mod slot;
pub mod snapshots;
pub mod space;
#[cfg(test)]
mod support;
mod sweep;
mod sync;
#[cfg(all(test, not(loom)))]
mod tests;
mod treatment;
mod update;

pub use access::{GuestMemory, Located, Resolution};
pub use audit::Discrepancy;
pub use dirty::DirtyLog;
pub use error::AccessError;
pub use fetch::DirtyFetch;
pub use generation::Generation;
#[doc(hidden)]
pub use generation::Numbers;
pub use located::Record;
pub use marked_walk::Unwalked;
pub use memslots::{Memslots, PHYSICAL_BITS_MAX};
pub use mmio::MmioCache;
// Re-exported, so that a user that only needs slots need not depend on the crate that defines them.
pub use paging::{Gpa, PhysAddr};
pub use raw::Pattern;
pub use slot::{SLOTS_MAX, Slot, SlotError, SlotFlags, SlotId, SpaceId};
pub use sweep::{Piece, Sweep};
pub use treatment::{SlotChange, Treatment};
pub use update::{Edit, Published, Quiesced, Retired, Update};

// Tests the examples in the README that is packaged with the crate.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;
