//! An abstract machine on which the real `stay`, `paging`, `memslots`, `coherence`, `iommu` and
//! `tlfs` run against adversarial hardware.
//!
//! Real processors, and QEMU even more so, flush more than they must, so code that forgets a flush
//! may work on them for years. The processors of this machine keep whatever the manual lets them
//! keep, and use it at the worst moment. A program defines the operations of guests and the host. A
//! seed determines how they interleave and how the processors behave. An oracle checks each access,
//! when it happens, against the guarantees. A failing program is shortened
//! ([`explore`](explore::explore)) and printed with its seed and the last events. This is for tests
//! only: nothing of it is linked into the hypervisor.
//!
//! # How it works
//!
//! * **Time** is a counter that advances with every event. Tables remember the values of their
//!   words at each time. A processor holds nothing explicitly: using a cached entry means walking
//!   *as of an earlier time*, at which the tag was in use on that processor, and checking whether
//!   an invalidation since must have removed the entry (`hw::cache`, `hw::walk`). So a
//!   processor can use any translation and any walk cache entry that was valid at some time since
//!   the last flush that covers it, in any combination, and a run costs some microseconds per
//!   operation.
//! * **Guests come and go.** Up to three share the CPUs and a few tags: ASIDs, VPIDs, or VMIDs.
//!   A host may destroy its guest at any time and create another one in its place, which gets new
//!   tags, and often the same memory and the same tables. A vCPU may be removed, and another one
//!   added in its place.
//! * **Guests are sent** (`driver::migrate`): logs, rounds of fetches and copies while they run, a
//!   last round when they stand still. Then a new guest begins with the copies for memory, and the
//!   former one's vCPUs; or it is cut at any step, and the guest goes on.
//! * **Actors** are coroutines (`sched`): one for each CPU, and one for the host of each virtual
//!   machine. They switch wherever the crates call out: at each access of a nested page table,
//!   between the steps of a change, at each target of a flush, while waiting; and between any two
//!   instructions of a guest.
//! * **Memory** is real memory (`hw::memory`). Freed tables and slots are poisoned. A walk, an
//!   access or a crate that reaches them fails the run, even if the frame is in use again. What a
//!   frame held in its last lives is remembered, so entries from then can still be used.
//! * **Two kinds of flush.** Intel64's processors tag what depends on the guest's tables with VPID
//!   and root of the nested tables, and what depends on these alone with the root. INVVPID drops by
//!   the one, INVEPT by the other, entry and exit nothing; without VPIDs they drop all of VPID 0.
//!   Lesser rights are kept until an EPT violation drops them. There is a record for each pair of
//!   tags (`hw::cpu::Key`), and the rest is as on AMD64.
//! * **VTTBR_EL2** takes effect when the processor synchronizes. Until then it may walk by the
//!   former value, and a TLBI may be for either VMID. A CPU that leaves a guest keeps its tables
//!   loaded, and may walk them, until it loads others. A host's CPU may have any machine's loaded.
//! * **Devices** do DMA at any time, by the nested tables of their virtual machine, behind one
//!   IOMMU (`hw::iommu`, `hw::dma`). It holds leaves and upper-level entries as a processor
//!   does, a device with ATS holds what the IOMMU answered, and both drop only what a command
//!   names. The IOMMU is an actor that reads a real `iommu::Queue`, and executes its commands as
//!   late, and in any order, as AMD-Vi allows, or on Arm64 an SMMU. So are the devices. Those
//!   behind an SMMU translate by a mirror of the slots, which is filled and follows at any time.
//! * **The driver** connects the crates as the hypervisor does: entry loop by `stay`, nested
//!   faults by `memslots::space::GuestSpace` in translation sections, slot updates and dirty logs
//!   as its jobs, hypercalls from `tlfs::encode` through `tlfs::decode` to `coherence`. It can be
//!   told to make [mistakes](bug::Bug), each of which must be detected.
//!
//! # Guarantees checked
//!
//! | guarantee | how |
//! |---|---|
//! | G1 | An access through an entry that was replaced before a flush was called for that has returned: of a guest's tables by address space and page, after hypercalls, INVLPG, and loads of CR3; of nested tables, after receipts. Also a translation of another space or machine. |
//! | G2 | Each store to a slot with a log that was visible before a fetch is in it or in an earlier one. With dirty bits, a store that leaves no trace at all fails at once. |
//! | G3 | Poison; words written to tables and logs after they were returned; double frees. |
//! | G4 | As G1: an entry that was flushed too narrowly is used. Level hints, leaf-only forms and single pieces of large pages remove exactly what they must. |
//! | G5 | A CPU that was kicked leaves guest mode within a few instructions; a wait ends. |
//! | G8 | An access that is taken for MMIO, by the vCPU's cache, by a mark or by a search, has no memory at some time during it. |
//! | A1, A3 | An access of a guest by an entry from before the guest was created, or by one of its own tables from before the vCPU was. |
//! | P16 | An access of a device, as of a guest; one by a translation for the guest that was here before, or after the device was taken away. |
//! | M1 | A page of a guest that stands still is not as it was sent. |
//! | M8 | After a cut a log is on, or there is a small page where a large one can be. |
//! | P1 | A root is freed that a processor has loaded; tables or memory that a destroyed guest does not return. |
//! | | On Arm64, a processor that holds one translation of an address while memory has another (break-before-make). |
//! | | At the end, and occasionally in between, the nested tables equal the result of a full zap and new faults. |
//!
//! # Limits
//!
//! Memory is sequentially consistent: `loom` checks the orders of atomics (`docs/coherence.md`).
//! Guests use no protection keys, and global pages only on some Intel64 machines, where a guest has
//! one address space then. Intel64 has no PML; walks of the guest's tables need the
//! right to store there, and set no dirty bits by that. There are no instruction fetches, and no
//! data or instruction caches. The IOMMU removes each translation that overlaps the block of a
//! command, whatever their sizes; virtual machines with devices have no dirty logs. An SMMU goes by
//! a stream's entry and descriptor as they were at one time. Processors hold no absent entries, and
//! walk again before they report a fault. Accessed bits of speculatively loaded entries count only
//! if they were set at that time. The right to store that a fault adds to a nested leaf replaces
//! nothing: Intel64's processors may go on without it. A processor looks back some hundred changes,
//! not forever. All guests have as many vCPUs, and any CPU runs any of them.
#![cfg(not(loom))]

pub mod bug;
mod driver;
pub mod explore;
mod generate;
mod hw;
mod layout;
mod machine;
mod oracle;
mod program;
mod rng;
mod run;
mod sched;
mod shrink;
mod stage2;

pub use hw::format::Arch;
