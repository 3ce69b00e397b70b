//! The guest's end of the flush hypercalls as a back end of [`quell_coherence::shootdown`].
//!
//! ```
//! use quell_coherence::TargetSet;
//! use quell_coherence::shootdown::*;
//! use quell_pvflush::{ByHypercall, VpIndex};
//! use quell_tlfs::encode::Interface;
//! use quell_tlfs::{HvResult, PAGE_WORDS, Status};
//!
//! # struct MyTlb;
//! # impl Tlb for MyTlb {
//! #     fn load(&mut self, _root: u64, _tag: Tag, _keep: bool) {}
//! #     fn load_none(&mut self) {}
//! #     fn flush_everything(&mut self) {}
//! #     fn flush_range(&mut self, _range: PageRange, _tables: bool) {}
//! #     fn relax(&mut self, _turns: u64) -> core::ops::ControlFlow<()> { core::ops::ControlFlow::Break(()) }
//! # }
//! # static SLOTS: [CpuSlot; 2] = [const { CpuSlot::new() }; 2];
//! # let spaces = Spaces::new();
//! # let space: AddressSpace<1> = spaces.create(0x1000);
//! # let mut cpu: LocalCpu<'_, &AddressSpace<1>, 1, 1> = Cpus::new(&SLOTS, &[]).claim(0).unwrap();
//! # let mut other: LocalCpu<'_, &AddressSpace<1>, 1, 1> = Cpus::new(&SLOTS, &[]).claim(1).unwrap();
//! # cpu.switch_to(&space, &mut MyTlb);
//! # other.switch_to(&space, &mut MyTlb);
//! let vp_indices = [VpIndex(7), VpIndex(3)]; // of CPU 0 and CPU 1, as HV_X64_MSR_VP_INDEX has them
//! let mut page = [0; PAGE_WORDS]; // this CPU's, aligned to its size
//! let interrupts = ByInterrupt(|_: &TargetSet<1>| { /* send them */ });
//! let mut remote = ByHypercall::new(&mut page, &vp_indices, Interface::default(), interrupts, |call, page| {
//!     // RCX = call.control, RDX = the page's physical address; or registers, if call.control.fast().
//! #   assert_eq!(call.words(page)[2], 1 << 3);
//!     HvResult::of(Status::SUCCESS, call.control.rep_count())
//! });
//!
//! let mut ranges = [PageRange::default(); 32];
//! let mut batch = space.batch(&mut ranges, ());
//! batch.add(PageRange::small(0x7000_0000, 1));
//! let done = cpu.flush(batch, Concurrent, &mut remote, &mut MyTlb)?;
//! assert_eq!(done.receipt.outcome().direct, 1);
//! # Ok::<(), Stalled>(())
//! ```
//!
//! When a call returns, its targets have flushed (TLFS, "HvCallFlushVirtualAddressSpace"): running
//! ones immediately, the others before they run again. So the caller need not wait for any target,
//! and no target that does not run is interrupted. The caller's own TLB is flushed natively by
//! [`LocalCpu::flush`](quell_coherence::shootdown::LocalCpu::flush).
//!
//! No target takes an interrupt: see
//! [`ShootdownReceipt::excludes_walkers`](quell_coherence::shootdown::ShootdownReceipt::excludes_walkers)
//! (P24).
#![no_std]
#![forbid(unsafe_code)]

#[cfg(test)]
extern crate std;

use quell_coherence::TargetSet;
use quell_coherence::shootdown::{Flush, PageRange, Pinned, Remote};
use quell_tlfs::encode::{
    CallProgress, EncodedCall, FlushCalls, FlushRequest, Interface, ListLimit, VaRange,
};
use quell_tlfs::{HvResult, MAX_BANKS, MAX_VPS, PAGE_WORDS, PageSize, Targets, VPS_PER_BANK, VpSet};

/// The index by which the hypervisor knows a CPU (HV_X64_MSR_VP_INDEX). It is unrelated to the
/// CPU's number.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct VpIndex(pub u32);

impl VpIndex {
    /// For a CPU that has not reported its index yet: it is interrupted. Calls cannot name indices
    /// from [`MAX_VPS`] on either.
    pub const UNKNOWN: Self = Self(u32::MAX);

    /// Bank and bit, if calls can name it.
    fn place(self) -> Option<(usize, u64)> {
        let Self(index) = self;
        (index < MAX_VPS).then(|| ((index / VPS_PER_BANK) as usize, 1 << (index % VPS_PER_BANK)))
    }
}

/// Flush hypercalls for all CPUs whose VP index is known, interrupts for the others, and interrupts
/// for all if a call fails.
#[derive(Debug)]
pub struct ByHypercall<'a, R, X> {
    page: &'a mut [u64; PAGE_WORDS],
    vp_indices: &'a [VpIndex],
    interface: Interface,
    limit: ListLimit,
    names_space: bool,
    interrupts: R,
    execute: X,
}

impl<'a, R, X> ByHypercall<'a, R, X>
where
    X: FnMut(&EncodedCall, &[u64; PAGE_WORDS]) -> HvResult,
{
    /// The back end of one CPU. `page` belongs to that CPU and has no other user meanwhile; it is
    /// all the memory that the back end needs. `vp_indices` are indexed by CPU number. `execute`
    /// makes a call with the page as its input.
    pub const fn new(
        page: &'a mut [u64; PAGE_WORDS],
        vp_indices: &'a [VpIndex],
        interface: Interface,
        interrupts: R,
        execute: X,
    ) -> Self {
        // As much as one call holds, in either form.
        let limit = ListLimit { pages: u64::MAX, elements: (PAGE_WORDS - 4 - MAX_BANKS) as u64 };
        Self { page, vp_indices, interface, limit, names_space: false, interrupts, execute }
    }

    /// The length from which on a list becomes everything.
    #[must_use]
    pub fn with_limit(self, limit: ListLimit) -> Self {
        Self { limit, ..self }
    }

    /// Makes calls name the space by its root; otherwise they request all spaces. Only for kernels
    /// without PCIDs: the specification does not define the effect of a call on entries under a
    /// PCID that the target's CR3 does not have.
    #[must_use]
    pub fn naming_the_space(self) -> Self {
        Self { names_space: true, ..self }
    }

    /// Makes all calls for `vps`; false if one failed. The part done until then is flushed again.
    fn call(&mut self, vps: &[u64], flush: &Flush<'_>) -> bool {
        let Ok(set) = VpSet::dense(vps) else { return false };
        let request = FlushRequest {
            targets: Targets::Set(set),
            address_space: self.names_space.then_some(flush.root()),
            non_global_only: true,
        };
        let Some(ranges) = flush.ranges() else {
            return self.make(FlushCalls::space(request, self.interface));
        };
        let ranges = ranges.iter().map(va_range);
        self.make(FlushCalls::list(request, self.interface, ranges, self.limit))
    }

    fn make<I: Iterator<Item = VaRange> + Clone>(&mut self, mut calls: FlushCalls<'_, I>) -> bool {
        while let Some(mut call) = calls.next_into(self.page) {
            // Each unfinished call has done at least one more element, of at most 4095.
            loop {
                match call.progress((self.execute)(&call, self.page)) {
                    CallProgress::Done => break,
                    CallProgress::Unfinished(rest) => call = rest,
                    CallProgress::Failed { .. } => return false,
                }
            }
        }
        true
    }
}

/// The addresses of a run of pages. It ends at the end of the address space at the latest.
fn va_range(range: &PageRange) -> VaRange {
    let size = match range.shift {
        30.. => PageSize::Huge,
        21.. => PageSize::Large,
        _ => PageSize::Small,
    };
    VaRange::new(range.first, range.last()).of(size)
}

impl<const BANKS: usize, R, X> Remote<BANKS> for ByHypercall<'_, R, X>
where
    R: Remote<BANKS>,
    X: FnMut(&EncodedCall, &[u64; PAGE_WORDS]) -> HvResult,
{
    fn interrupt(&mut self, targets: &TargetSet<BANKS>) {
        self.interrupts.interrupt(targets);
    }

    fn begin(&mut self, targets: &mut TargetSet<BANKS>, flush: &Flush<'_>, _: &Pinned) {
        // The set is the caller's own copy: it does not change while the call is built.
        let (mut vps, mut banks, mut named) = ([0u64; MAX_BANKS], 0, TargetSet::new());
        for cpu in targets.iter() {
            let place = self.vp_indices.get(cpu).and_then(|index| index.place());
            if let Some((bank, bit)) = place
                && named.insert(cpu)
            {
                vps[bank] |= bit;
                banks = banks.max(bank + 1);
            }
        }
        // An empty set makes no call: hypervisors differ in whether it is an error or means all.
        if !named.is_empty() && self.call(&vps[..banks], flush) {
            *targets = targets.without(&named);
        }
    }
}

// Tests the examples in the README that is packaged with the crate.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;

#[cfg(test)]
mod tests;
