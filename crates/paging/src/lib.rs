//! Page tables of several formats in one walker, without locks, allocation or `std`.
//!
//! A [`PageTable`] does all the walking; a small [`Format`] defines how an entry is encoded: AMD64
//! for a host, a guest, and nested paging; Intel's EPT; Arm's VMSAv8-64 for stage 1 and stage 2.
//! Tables come from the user's [`TableMemory`], which is also the hook for barriers and
//! break-before-make.
//!
//! Faults on many CPUs [install](PageTable::install) translations in parallel. Meanwhile one
//! [`Editor`] changes and removes them: [zap](Editor::zap), [unmap](Editor::unmap), [write
//! protection](Editor::write_protect), [clean](Editor::clean), [split](Editor::split),
//! [collapse](Editor::collapse). A [`Change`] is made in steps of bounded length. Its [`Gather`]
//! collects the translations to invalidate, the tables that were cut off, and the frames that were
//! unmapped; only a [`FlushReceipt`] frees them.
//!
//! [`guest`] is the other direction: a software walk of page tables that a guest wrote, for
//! emulation.
//!
//! # Example
//!
//! Tables in a plain buffer. A hypervisor would reach them through its identity map.
//!
//! ```
//! use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
//! use quell_paging::{Amd64Nested, Installed, Invalidation, Level, Look, NeverWalked, PageTable, Permissions};
//! use quell_paging::{Entries, PhysAddr, Progress, TableMemory, Tables};
//!
//! /// Table `n` has the physical address `(n + 1) << 12`. Never reuses one.
//! struct Buffer {
//!     tables: Vec<Entries>,
//!     used: AtomicUsize,
//! }
//!
//! // SAFETY: `used` only grows, so each table is allocated once, zeroed as built.
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
//! let nested = PageTable::<Amd64Nested, _>::new(&buffer)?;
//!
//! // A nested fault at 0x20_1234, in RAM whose backing starts at 1 GiB:
//! let pa = PhysAddr(0x4020_1234);
//! assert_eq!(nested.install(0x20_1234, pa, Level::Page2M, Permissions::RWX)?, Installed::New(Level::Page2M));
//! assert_eq!(nested.query(0x3f_ffff).unwrap().pa, PhysAddr(0x403f_ffff));
//! // A fault where there is no memory, marked with the generation of the slots:
//! nested.mark(0x50_0000, 42)?;
//! assert_eq!(nested.look(0x50_0123), Look::Marked(42));
//!
//! // SAFETY: no processor was ever given this root, and nothing else walks the table.
//! let receipt = unsafe { NeverWalked::new() };
//!
//! // Dirty logging: small pages, then fetch and clear. Read the pages after the flush.
//! let split = nested.edit().expect("nobody else edits").split(0..1 << 30, Level::Page4K).finish();
//! assert_eq!(split.release(&receipt).unwrap().table_count, 0);
//! let mut dirty = Vec::new();
//! let gather = nested.edit().expect("nobody else edits").clean(0..1 << 30, |page| dirty.push(page)).finish();
//! assert_eq!((dirty.len(), dirty[0].clone()), (512, 0x20_0000..0x20_1000));
//! let Invalidation::Ranges([range]) = gather.invalidation() else { panic!() };
//! assert_eq!((range.start, range.len, range.tables), (0x20_0000, 2 << 20, false));
//! gather.release(&receipt).unwrap();
//!
//! // Remove the RAM in steps, between which the caller may do other work: detach, flush, reclaim.
//! let mut change = nested.edit().expect("nobody else edits").zap(0..1 << 30, Tables::Free);
//! while change.step(100) == Progress::More {}
//! let gather = change.into_gather();
//! let Invalidation::Ranges([range]) = gather.invalidation() else { panic!() };
//! assert_eq!((range.start, range.len, range.tables, gather.detached_count()), (0, 1 << 30, true, 1));
//! let mut freeing = gather.release_in_steps(&receipt).unwrap();
//! while freeing.step(512) {}
//! assert_eq!(freeing.table_count(), 3);
//! # Ok::<(), quell_paging::MapError>(())
//! ```
//!
//! # Concurrency
//!
//! Allowed at the same time are any number of *faults* ([`install`](PageTable::install),
//! [`mark`](PageTable::mark)), of walks by software ([`look`](PageTable::look),
//! [`query`](PageTable::query)) and by processors, and one *change*. Three rules keep them apart:
//!
//! 1. **Who writes what.** Faults only fill absent entries and add rights to leaves; the processor
//!    only makes leaves dirty. Both use an exchange, which fails if the entry has changed since it
//!    was read. Only the change does anything else. So a change uses plain stores for entries that
//!    only it may write (an entry that points to a table) and for entries whose current value is no
//!    longer wanted. It uses an exchange where a fault's table or leaf, or a dirty bit, would
//!    otherwise be lost. There is one exception, for changes that visit many leaves. A leaf of the
//!    last level that allows stores and is dirty is *settled*: no processor changes it, and a fault
//!    can only add the right to execute. Such a leaf is read and then overwritten by a plain store.
//!    If a fault has added a right in between, that right is lost again, which costs one more
//!    fault; and as everything that such a change has stored to is flushed, no processor keeps the
//!    right either.
//! 2. **A tree that was cut off is left unchanged until its flush.** One store detaches it,
//!    whatever its size. After that, only walks already in it reach it: processors by their walk
//!    caches, until the flush has completed, and faults in sections that began before, which may
//!    still fill its entries or use existing ones. The gather covers all the addresses of the tree,
//!    so the entries that they add are flushed with the rest; and the receipt states that both have
//!    left the tree. From then on the holder of the receipt has exclusive access: it walks the tree
//!    with plain accesses, including all entries added until then, and frees its tables. Before
//!    that, only the first entry of each linked table is exchanged for a frozen entry. A frozen
//!    entry is absent to the processor, and faults do not replace it: they get [`MapError::Raced`],
//!    and find the new state on the next attempt.
//!
//!    Only if the frames of the leaves must be known before the flush
//!    ([`with_frames`](Change::with_frames)), the tree is walked immediately, and frozen entry by
//!    entry.
//!
//!    If the format does not allow one table to replace another without an invalidation in
//!    between, the entry that pointed to the tree is frozen as well until that has happened: with
//!    a [break](TableMemory::break_before_make), or until the flush ([`Tables::Detach`],
//!    [`Editor::thaw`]).
//! 3. **A walk by software is a walk cache.** A table is freed for a receipt, and a receipt states
//!    that the walks which began before its flush have ended as well.
//!
//! Each row is model-checked (`src/model`), and for each exchange there is a mutant without it that
//! fails.
//!
//! | fault or processor | change | what must hold |
//! |---|---|---|
//! | a: read an entry of the table; b: exchange absent for a leaf; c: end the section | d: detach the table; e: flush; f: receipt; g: reclaim | e covers what b adds. c before f, so b before g: b's entry is cleared, and b never writes into a table that is free |
//! | a: read; b: exchange absent for a table (Release); c: end the section | d: detach; f: receipt; g: read the entry | c before f, so g reads b's table and frees it, too |
//! | a: read the first entry; b: exchange absent for a table (Release) | d: detach, by exchange of that entry for the link (Acquire) | d gets b's table and links it as well, or b fails |
//! | a: read an entry of the table; b: exchange absent for a leaf | c: cut the table off, with frames; d: freeze the entry; e: flush | b before d: d removes the leaf, and e covers it. d before b: b fails |
//! | a: read; b: exchange absent for a table (Release) | c: cut off, with frames; d: exchange the entry for frozen (Acquire) | d reads b's table and goes on in it, or b fails |
//! | a: read a leaf; b: exchange it for one with more rights | c: write-protect by exchange | the later finds the earlier, or fails and looks again |
//! | a: read a settled leaf; b: exchange it for one with more rights | c: read it; d: store it protected or clean; e: flush | b before d: the right goes again, and e covers a processor that has used it. d before b: b fails |
//! | a: exchange a mark for a leaf | b: swap the mark for absent | b gets the leaf and flushes it, or a fails |
//! | a: set the dirty bit by exchange | b: exchange the leaf for a clean one, a read-only one, or a table of pieces | b carries over a's bit, or reports it; or a fails, and walks again |
//! | a: store by a leaf held as dirty | b: clean, telling the page; c: flush; d: read the page | a before c, hence before d. Later stores set the bit anew |
//! | a: read an entry of the table; b: exchange | c: replace the table by a dirty leaf; e: flush; g: reclaim | as in the first two rows; a store's dirty bit in the table is in the leaf |
//! | a: zero a table; b: exchange an entry for it (Release) | c: load the entry (Acquire); d: read the table | if c reads from b, then a is before d |
//! | a: sample the stamp (Acquire); b: flush; c: walk | d: remove; e: store the new stamp (Release) | if a reads from e, then d is before c |
//!
//! The processor's walk is outside the language's memory model. AMD64 walks observe stores in
//! program order; elsewhere [`TableMemory::publish`] is called after a table was filled and before
//! it is linked, and before a point where a flush may follow.
#![cfg_attr(not(any(test, loom)), no_std)]

mod addr;
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
#[cfg(all(test, loom))]
mod model;
mod receipt;
mod reclaim;
mod span;
mod sweep;
mod sync;
mod table;
#[cfg(all(test, not(loom)))]
mod tests;
mod visit;

pub use addr::{ENTRY_COUNT, Gpa, Level, PhysAddr};
pub use change::{Change, DirtySink, FramedChange, NoSink, Progress};
pub use edit::{Editor, Tables};
pub use format::amd64::{Amd64Guest, Amd64Host, Amd64Nested};
pub use format::arm64::{Arm64Stage1, Arm64Stage2};
pub use format::ept::Ept;
pub use format::{Format, Permissions};
pub use frames::{FRAME_RUNS_MAX, FrameRun, FrameRuns, Frames, NoFrames};
pub use gather::{FlushRange, GATHER_RANGES_MAX, Gather, Invalidation};
pub use install::Installed;
pub use memory::{Entries, TableMemory};
pub use receipt::{FlushReceipt, NeverWalked, Stamp};
pub use reclaim::{Flushed, Freeing, Released};
pub use table::{Look, MapError, Mapping, PageTable};

// Tests the examples in the README that is packaged with the crate.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;
