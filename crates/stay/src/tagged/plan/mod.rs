//! The extent of a flush: single pages as long as that is cheaper than losing everything.
//!
//! A list of ranges that a guest passes is [planned](plan) once, by the calling vCPU, before it is
//! given to the flush engine; each target then [obeys](Work) when it next enters. Neither step
//! takes longer than [`STEP_MAX_US`], however long the guest's list is (pitfalls H24, H25): a plan
//! holds at most [`RANGES_MAX`] ranges of at most [`Cost::page_limit`](crate::Cost::page_limit)
//! pages in total. A list of more ranges is done in parts, between which the guest takes
//! interrupts, as long as that is cheaper than one flush of the whole tag, which is constant work.

use coherence::{GvaRange, RANGE_CAPACITY};
use tlfs::GvaList;

/// The most ranges of a plan: as many as a mailbox holds.
pub const RANGES_MAX: usize = RANGE_CAPACITY;
/// The cost of one more part of a list, in pages flushed one by one: a kick, an exit and an entry
/// on each running target. It is not measured. On AMD's processors an interrupt, an exit and an
/// entry together take some thousands of cycles, and an INVLPGA some hundreds.
pub const STEP_PAGES: u64 = RANGES_MAX as u64;
/// The longest flush work in one step, in microseconds. TLFS, "Hypercall Continuation", has this
/// figure for calls.
pub const STEP_MAX_US: u64 = 50;

/// Why the whole tag is flushed instead of a list page by page.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Why {
    /// More ranges than a mailbox holds.
    ManyRanges,
    /// More pages than are worthwhile.
    ManyPages,
    /// The target uses PCIDs: the manual does not define from which PCID INVLPGA drops an entry
    /// (APM volume 3, INVLPGA).
    Pcid,
    /// The target may have pages of 4 MiB, which the TLB holds in pieces (pitfall A17).
    LegacyPaging,
    /// The nested page table has, or has had, pages smaller than the guest's large ones (pitfall
    /// A17).
    Pieces,
}

/// The request to make of the targets.
#[derive(Clone, Debug, PartialEq, Eq)]
#[allow(clippy::large_enum_variant, reason = "lives on the stack of one hypercall; nothing is allocated")]
pub enum Plan {
    /// Everything.
    Whole(Why),
    /// These ranges; an empty list is nothing.
    Ranges {
        /// The ranges to flush now.
        ranges: Ranges,
        /// Elements of the list that are done then, counted from element 0 of the whole list.
        done: u16,
    },
}

/// Up to [`RANGES_MAX`] ranges.
pub type Ranges = arrayvec::ArrayVec<GvaRange, RANGES_MAX>;

/// Plans the request that flushes `list`, or the first part of it, if single pages are worthwhile
/// up to `page_limit`.
///
/// Adjacent ranges are merged, which are frequent in kernels' lists. Each part of a list costs the
/// running targets another kick, and counts as [`STEP_PAGES`]. The rest after a part costs less
/// than the whole list did, so the choice stays the same from part to part.
pub fn plan(list: &GvaList<'_>, page_limit: u64) -> Plan {
    let mut ranges = Ranges::new();
    // Ranges that do not fit in the first part, and the element that begins the second part.
    let (mut later, mut second_part) = (0, None);
    let (mut pages, mut done) = (0, 0);
    let mut end_of_last = None;
    for (index, range) in list.elements() {
        done = index + 1;
        let Some(range) = range else { continue };
        pages += range.pages;
        if pages > page_limit {
            return Plan::Whole(Why::ManyPages);
        }
        let continues = end_of_last == Some(range.start);
        end_of_last = Some(range.start.wrapping_add(range.pages << 12));
        if continues {
            match ranges.last_mut() {
                Some(last) if second_part.is_none() => last.pages += range.pages,
                _ => {}
            }
        } else if ranges.try_push(GvaRange { first: range.start, pages: range.pages }).is_err() {
            second_part.get_or_insert(index);
            later += 1;
        }
    }
    let more_parts = u64::div_ceil(later, RANGES_MAX as u64);
    if more_parts != 0 && pages + more_parts * STEP_PAGES > page_limit {
        return Plan::Whole(Why::ManyRanges);
    }
    Plan::Ranges { ranges, done: second_part.unwrap_or(done) }
}

/// How a target carries out a request that it finds at its entry.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Work {
    /// Not at all: the next VMRUN begins without entries of this vCPU anyway.
    Nothing,
    /// By a flush of the tag.
    Whole(Why),
    /// Page by page, under this tag.
    Pages {
        /// The vCPU's ASID on this CPU.
        asid: u32,
    },
}

/// The state, besides its tag, that determines how a target carries out a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Mode {
    /// CR4.PCIDE, if one invalidation by address may not drop those of all PCIDs.
    pub pcid: bool,
    /// CR4.PAE: without it large pages are 4 MiB.
    pub pae: bool,
    /// Whether its memory may be mapped in pages of 4 KiB.
    pub pieces: bool,
}

/// How a target carries out a request for ranges of `pages` pages in total. `asid` is its tag on
/// this CPU, if entries may exist under it.
///
/// Requests of several initiators may have been merged, so the limit is checked here again.
///
/// An address in a large page stands for the whole page, and it is not known which pages were
/// large, because the tables have been changed. One INVLPGA drops the whole entry if the TLB holds
/// the page in one piece, which requires a nested page that is at least as large. Guest memory is
/// mapped by pages of at least 2 MiB, until a small slot or a dirty log maps it in smaller ones,
/// and larger ones are not offered to the guest. If there are such pieces, or pages of 4 MiB
/// (paging without PAE), the tag is flushed (pitfall A17).
pub const fn obey(pages: u64, asid: Option<u32>, owes_flush: bool, mode: Mode, page_limit: u64) -> Work {
    match asid {
        None => Work::Nothing,
        Some(_) if owes_flush || pages == 0 => Work::Nothing,
        Some(_) if mode.pcid => Work::Whole(Why::Pcid),
        Some(_) if !mode.pae => Work::Whole(Why::LegacyPaging),
        Some(_) if mode.pieces => Work::Whole(Why::Pieces),
        Some(_) if pages > page_limit => Work::Whole(Why::ManyPages),
        Some(asid) => Work::Pages { asid },
    }
}

#[cfg(test)]
mod tests;
