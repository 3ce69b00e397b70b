//! TLB shootdown for a kernel's own address spaces.
//!
//! Each CPU is a [`LocalCpu`] that loads [`AddressSpace`]s. A [`Batch`] collects the ranges that a
//! change of one space needs flushed and the memory that it frees. [`LocalCpu::flush`] flushes them
//! on every CPU that may use the space and returns the memory that may be freed. The caller
//! supplies its TLB ([`Tlb`]), a way to reach the other CPUs ([`Remote`]), and an interrupt handler
//! that calls [`LocalCpu::serve`].
//!
//! ```
//! use quell_coherence::TargetSet;
//! use quell_coherence::shootdown::*;
//!
//! # use std::{cell::RefCell, ops::ControlFlow};
//! static SLOTS: [CpuSlot; 2] = [const { CpuSlot::new() }; 2];
//! static CELLS: [RangeCell; 2 * 32] = [const { RangeCell::new() }; 2 * 32];
//! static SPACES: Spaces = Spaces::new();
//!
//! # struct MyTlb;
//! # impl Tlb for MyTlb {
//! #     fn load(&mut self, _root: u64, _tag: Tag, _keep: bool) {}
//! #     fn load_none(&mut self) {}
//! #     fn flush_everything(&mut self) {}
//! #     fn flush_range(&mut self, _range: PageRange, _tables: bool) {}
//! #     fn relax(&mut self, _turns: u64) -> ControlFlow<()> { ControlFlow::Continue(()) }
//! # }
//! # let (mut tlb, mut other_tlb) = (MyTlb, MyTlb);
//! let space: AddressSpace<1> = SPACES.create(0x1000);
//! let cpus = Cpus::new(&SLOTS, &CELLS);
//! let mut cpu: LocalCpu<'_, &AddressSpace<1>, 1, 1> = cpus.claim(0).expect("each CPU once");
//! # let mut other: LocalCpu<'_, &AddressSpace<1>, 1, 1> = cpus.claim(1).expect("each CPU once");
//! cpu.switch_to(&space, &mut tlb);
//! # other.switch_to(&space, &mut other_tlb);
//!
//! let mut ranges = [PageRange::default(); 32];
//! let mut batch = space.batch(&mut ranges, ());
//! // Clear the page table's entry, and then
//! batch.add(PageRange::small(0x7000_0000, 1));
//! let mut interrupts = ByInterrupt(|targets: &TargetSet<1>| {
//!     // Send each of them the interrupt, whose handler calls `serve` there.
//! #   assert!(targets.contains(1) && other.serve(&mut other_tlb));
//! });
//! let done = cpu.flush(batch, Concurrent, &mut interrupts, &mut tlb)?;
//! assert_eq!(done.receipt.outcome().targets, 1);
//! # Ok::<(), Stalled>(())
//! ```
//!
//! # Ordering
//!
//! ```text
//! initiator                                   another CPU
//! A' open a batch: open + 1                   a  switch: join the space's set
//! A  change the page tables                   b  header: clear LAZY
//! B  generation + 1                           c  sample the generation
//! C  read the set                             d  load the root; keep entries of that generation
//! D  leave out lazy CPUs (no tables)          h  look at the generation once more: flush if it is newer
//! E  flush those that the back end takes      f  leave the former space's set
//!    on; post the request in others' slots
//! F  interrupt those                          J  interrupt: take the request
//! G  flush the own TLB                        K  flush: generation sampled before, recorded after
//! H  wait: completed >= count of E            L  completed = count at J (async: before K)
//! I  free the batch's items; open - 1
//! ```
//!
//! | order | why |
//! |---|---|
//! | B before C, a before h; C and a are read-modify-writes of one word | a CPU that joins after C sees B; one that joined before is in the set |
//! | c before d | the loaded translations are of that generation, or newer |
//! | B before D, b before h; D and b likewise | a CPU that stops being lazy after D sees B |
//! | C after f, D after going lazy, H after L, by release and acquire | accesses through the old translations are visible (G2) |
//! | A before B, c or h before walking | a CPU that has seen the generation walks the changed tables |
//! | generation sampled before the flush that makes it true | a change during the flush is not missed |
//! | a before d, d before f | the CPU is in the set of whatever it may walk |
//! | d before h | a direct flush between a and d reached the space loaded then, under its tag only |
//! | L after K | the request frees tables, or the target may use user addresses; `Async`: neither is so |
//! | A' before A | a CPU that meets an entry which this batch has changed learns that it has not been flushed |
//! | I after G and H | G3 |
//!
//! A mutant in the model shows why each is needed, see `docs/coherence.md`. The interrupt orders
//! nothing: it makes the CPU look at J soon. The table at [`CpuSlot`] has the orders among E, J and
//! L.
//!
//! Outside the language: the processor walks page tables on its own, between d and the flush that
//! ends it. INVLPG and the load of CR3 are serializing: no later access uses translations that they
//! have dropped (AMD64 APM 2, 5.5). Read-modify-writes are locked instructions: the store buffer is
//! drained before them, and they are over before F sends its interrupt.

mod batch;
mod cpu;
mod flush;
pub mod invlpgb;
mod mode;
mod range;
mod remote;
mod slot;
mod space;

pub use batch::{Batch, Cargo, Kind, Pages, Tables};
pub use cpu::{Cpus, LocalCpu};
pub use flush::{Done, ShootdownOutcome, ShootdownReceipt, Stalled};
pub use mode::{Async, Concurrent, Inline, Mode, NoUserAccess, Serial};
pub use range::{PageRange, RangeCell};
pub use remote::{Broadcast, ByBroadcast, ByInterrupt, Flush, Pinned, Remote, Tag, Tlb};
pub use slot::{CpuSlot, INLINE_RANGES};
pub use space::{AddressSpace, Spaces};

#[cfg(all(test, not(loom)))]
mod tests;

#[cfg(all(test, loom))]
mod model;
