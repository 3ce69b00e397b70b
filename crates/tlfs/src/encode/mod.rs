//! The guest's end: turns ranges and targets into hypercalls.
//!
//! ```
//! use quell_tlfs::encode::{FlushCalls, FlushRequest, Interface, ListLimit, CallProgress, VaRange};
//! use quell_tlfs::{HvResult, PAGE_WORDS, Status, Targets, VpSet};
//!
//! # fn hypercall(_: quell_tlfs::Control, _: &[u64]) -> HvResult { HvResult::of(Status::SUCCESS, 2) }
//! let interface = Interface { vp_sets: true, ..Interface::default() };
//! let cpus = [0b1010, 0, 1 << 5]; // a bitmap of VP indices: 1, 3 and 133
//! let request = FlushRequest {
//!     targets: Targets::Set(VpSet::dense(&cpus)?),
//!     address_space: Some(0x1234_5000),
//!     non_global_only: true,
//! };
//! let ranges = [VaRange::new(0x7000_0000, 0x7000_ffff), VaRange::new(0x7fff_0000, 0x7fff_0fff)];
//! let mut page = [0; PAGE_WORDS]; // one for each CPU, at an address that the hypervisor is told
//! let mut calls = FlushCalls::list(request, interface, ranges.into_iter(), ListLimit::default());
//! while let Some(mut call) = calls.next_into(&mut page) {
//!     loop {
//!         match call.progress(hypercall(call.control, call.words(&page))) {
//!             CallProgress::Done => break,
//!             CallProgress::Unfinished(rest) => call = rest,
//!             CallProgress::Failed { .. } => return Ok(()), // flush by interrupts instead
//!         }
//!     }
//! }
//! # Ok::<(), quell_tlfs::BankCountError>(())
//! ```
//!
//! Nothing here allocates. The caller owns every page, and by construction nothing is written
//! outside its bounds.

mod cluster_ipi;
mod flush;
mod ranges;
mod targets;

pub use cluster_ipi::{IpiError, cluster_ipi};
pub use flush::{FlushCalls, FlushRequest, ListLimit};
pub use ranges::VaRange;

use crate::cpuid::{feature, hint};
use crate::{Control, HvResult, PAGE_WORDS, Status, XMM_FAST_WORDS};

/// The parts of the interface that the hypervisor offers to the calling guest.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Interface {
    /// The calls that take VP sets. Without them, a flush with a target beyond index 63 becomes a
    /// flush of all processors: more than requested, never less.
    pub vp_sets: bool,
    /// Input in XMM registers. Leave it off if the caller may not use them.
    pub xmm_input: bool,
    /// List elements that name large pages.
    pub extended_ranges: bool,
}

impl Interface {
    /// The interface that CPUID announces: EDX of [`LEAF_FEATURES`](crate::cpuid::LEAF_FEATURES),
    /// EAX of [`LEAF_HINTS`](crate::cpuid::LEAF_HINTS).
    pub const fn from_cpuid(features_edx: u32, hints_eax: u32) -> Self {
        Self {
            vp_sets: hints_eax & hint::EX_PROCESSOR_MASKS != 0,
            xmm_input: features_edx & feature::XMM_INPUT != 0,
            extended_ranges: features_edx & feature::EXTENDED_GVA_RANGES != 0,
        }
    }
}

/// A call that is ready to be made: its control word, and how much of the page is its input.
///
/// A [fast](Control::fast) call takes its input from registers: words 0 and 1 in RDX and R8, the
/// following words in XMM0 to XMM5, low word first ([`EncodedCall::registers`]). Any other call
/// takes the guest physical address of the page.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct EncodedCall {
    /// The control word.
    pub control: Control,
    count: usize,
}

impl EncodedCall {
    /// The call with input of `count` words.
    const fn new(control: Control, count: usize) -> Self {
        Self { control, count }
    }

    /// The words of input.
    pub fn words<'p>(&self, page: &'p [u64; PAGE_WORDS]) -> &'p [u64] {
        page.get(..self.count).unwrap_or_default()
    }

    /// The register values of a fast call: RDX, R8, XMM0 to XMM5. Unused registers are 0.
    pub fn registers(&self, page: &[u64; PAGE_WORDS]) -> [u64; XMM_FAST_WORDS] {
        let mut registers = [0; XMM_FAST_WORDS];
        registers.iter_mut().zip(self.words(page)).for_each(|(register, word)| *register = *word);
        registers
    }

    /// The next step after the hypervisor has returned `result` for this call. TLFS, "Hypercall
    /// Outputs".
    pub const fn progress(&self, result: HvResult) -> CallProgress {
        let (start, count) = (self.control.rep_start(), self.control.rep_count());
        let done = result.reps_complete();
        match result.status() {
            Status::SUCCESS if count == 0 || done >= count => CallProgress::Done,
            Status::SUCCESS if done > start => {
                CallProgress::Unfinished(Self { control: self.control.resumed_at(done), ..*self })
            }
            status => CallProgress::Failed { status, done: if done < count { done } else { count } },
        }
    }
}

/// The meaning of a call's result for its caller.
///
/// Exhaustive: a caller that overlooks an outcome takes an unfinished flush for done.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[must_use]
pub enum CallProgress {
    /// All of it has been done.
    Done,
    /// Part of the list has been done. The next call to make, with the same page or registers, does
    /// the rest.
    Unfinished(EncodedCall),
    /// The call failed. `SUCCESS` here is a list call without progress: a hypervisor that reports
    /// no elements as complete would have its caller spin forever.
    Failed {
        /// How it ended.
        status: Status,
        /// Elements that have been done, counted from element 0.
        done: u16,
    },
}

/// Fills the words of a page from the front and refuses those that do not fit.
struct Writer<'p> {
    page: &'p mut [u64],
    count: usize,
}

impl<'p> Writer<'p> {
    fn new(page: &'p mut [u64; PAGE_WORDS]) -> Self {
        Self { page, count: 0 }
    }

    /// Words that can still be written.
    fn room(&self) -> usize {
        self.page.len() - self.count
    }

    /// Appends `word`; drops it if the page is full.
    fn push(&mut self, word: u64) {
        if let Some(slot) = self.page.get_mut(self.count) {
            *slot = word;
            self.count += 1;
        }
    }
}

#[cfg(test)]
mod tests;
