//! Page tables of several formats by one walker, without allocation and without `std`.
//!
//! A [`PageTable`] does all the walking; a small [`Format`] says how an entry is encoded. Tables come
//! from the user's [`TableMemory`]. Faults on many CPUs [install](PageTable::install) translations in
//! parallel. What removes translations returns a [`Gather`], which names what to invalidate and holds
//! back the tables that were cut off; only a [`FlushReceipt`] frees them.
//!
//! [`guest`] is the other direction: a software walk of page tables that a guest wrote, for emulation.
//!
//! # Example
//!
//! Tables in a plain buffer. A hypervisor would reach them through its identity map.
//!
//! ```
//! use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
//! use paging::{Amd64Nested, Installed, Invalidation, Level, NeverWalked, PageTable, Permissions};
//! use paging::{Entries, PhysAddr, TableMemory, Tables};
//!
//! /// Table `n` has the physical address `(n + 1) << 12`. Never reuses one.
//! struct Buffer {
//!     tables: Vec<Entries>,
//!     used: AtomicUsize,
//! }
//!
//! // SAFETY: `used` only grows, so each table is handed out once, zeroed as it was built.
//! unsafe impl TableMemory for &Buffer {
//!     fn allocate(&self) -> Option<PhysAddr> {
//!         let index = self.used.fetch_add(1, Ordering::Relaxed);
//!         (index < self.tables.len()).then(|| PhysAddr((index as u64 + 1) << 12))
//!     }
//!     unsafe fn free(&self, _table: PhysAddr) {}
//!     unsafe fn entries(&self, table: PhysAddr) -> &Entries {
//!         &self.tables[(table.0 >> 12) as usize - 1]
//!     }
//! }
//!
//! let tables = (0..8).map(|_| [const { AtomicU64::new(0) }; 512]).collect();
//! let buffer = Buffer { tables, used: AtomicUsize::new(0) };
//! let mut nested = PageTable::<Amd64Nested, _>::new(&buffer)?;
//!
//! // A nested fault at 0x20_1234, in RAM whose backing starts at 1 GiB:
//! let pa = PhysAddr(0x4020_1234);
//! assert_eq!(nested.install(0x20_1234, pa, Level::Page2M, Permissions::RWX)?, Installed::New(Level::Page2M));
//! assert_eq!(nested.query(0x3f_ffff).unwrap().pa, PhysAddr(0x403f_ffff));
//!
//! // The RAM goes away: unmap first, then flush, then free.
//! let gather = nested.zap(0..1 << 30, Tables::Free);
//! let Invalidation::Ranges([range]) = gather.invalidation() else { panic!() };
//! assert_eq!((range.start, range.len, gather.table_count()), (0x20_0000, 2 << 20, 1));
//! // SAFETY: no processor was ever given this root.
//! let receipt = unsafe { NeverWalked::new() };
//! assert_eq!(gather.release(&receipt).unwrap().table_count, 1);
//! # Ok::<(), paging::MapError>(())
//! ```
#![cfg_attr(not(test), no_std)]

mod addr;
mod amd64;
mod change;
mod cursor;
mod edit;
mod format;
mod frames;
mod gather;
pub mod guest;
mod install;
mod map;
mod memory;
mod receipt;
mod span;
mod sync;
mod table;
#[cfg(all(test, not(loom)))]
mod tests;
mod visit;

pub use addr::{ENTRY_COUNT, Gpa, Level, PhysAddr};
pub use amd64::{Amd64Guest, Amd64Host, Amd64Nested};
pub use change::{Change, DirtySink, FramedChange, NoSink, Progress};
pub use edit::{Editor, Tables};
pub use format::{Format, Permissions};
pub use frames::{FRAME_RUNS_MAX, FrameRun};
pub use gather::{FlushRange, Freeing, GATHER_RANGES_MAX, Gather, Invalidation, Released};
pub use install::Installed;
pub use memory::{Entries, TableMemory};
pub use receipt::{FlushReceipt, NeverWalked, Stamp};
pub use table::{Look, MapError, Mapping, PageTable};
