//! The rows: each is named after the defect that makes it fail.

mod errors;
mod input;
mod lists;
mod local;
mod mutual;
mod prelude;
mod restart;
mod scopes;
mod sets;
mod stale;
mod waiting;
mod writes;

use tlbcheck::form::{Element, Kind, Via};
use tlbcheck::spans;
use x86_64::registers::control::Cr4Flags;

use super::back_end::BackEnd;
use super::window::{enter_space, invlpg, space};
use crate::arch::rows::{Row, row};
use crate::arch::window::WINDOW;

/// The guest's end of flush hypercalls, as kernels use it.
const BY_HYPERCALL: [BackEnd; 1] = [BackEnd::Hypercall];

/// Rows about the processor's own TLB, and about flushes by interrupts.
const NATIVE: [Row; 18] = [
    row("invlpg-leaves-page", || local::takes(false, || invlpg(WINDOW + 0x123))),
    row("invlpg-leaves-global-page", || local::takes(true, || invlpg(WINDOW))),
    row("invlpg-leaves-part-of-2m-page", local::invlpg_large),
    row("cr3-write-leaves-page", || local::takes(false, || enter_space(space()))),
    row("pge-toggle-leaves-global-page", || local::takes(true, || local::off_and_on(Cr4Flags::PAGE_GLOBAL))),
    row("pcid-mixes-spaces", local::pcid_mixes_spaces),
    row("pcid-cr3-write-leaves-page", local::pcid_cr3_write),
    row("pcid-toggle-leaves-page", || {
        local::with_pcids(|| local::takes(false, || local::off_and_on(Cr4Flags::PCID)))
    }),
    row("invpcid-address-leaves-page", || local::invpcid(0, false)),
    row("invpcid-context-leaves-page", || local::invpcid(1, false)),
    row("invpcid-all-leaves-global-page", || local::invpcid(2, true)),
    row("invpcid-non-global-leaves-page", || local::invpcid(3, false)),
    row("ipi-page-flush-leaves-page", || stale::by_engine(&BackEnd::BY_IPI, true)),
    row("ipi-full-flush-leaves-page", || stale::by_engine(&BackEnd::BY_IPI, false)),
    row("ipi-leaves-2m-page-in-pieces", stale::large_by_ipi),
    row("ipi-misses-a-processor", stale::every_processor_by_ipi),
    row("ipi-store-after-return", || writes::by_engine(&BackEnd::BY_IPI, writes::Looks::AtStores)),
    row("ipi-dirty-bit-after-return", || writes::by_engine(&BackEnd::BY_IPI, writes::Looks::AtBits)),
];

/// Rows about what hypercalls flush, and when.
const FLUSHES: [Row; 47] = [
    row("vp-index-unstable", sets::indices),
    row("no-kick-space", || stale::pinned(Kind::Space, Via::Memory)),
    row("no-kick-list", || stale::pinned(Kind::List, Via::Memory)),
    row("no-kick-space-ex", || stale::pinned(Kind::SpaceEx, Via::Memory)),
    row("no-kick-list-ex", || stale::pinned(Kind::ListEx, Via::Memory)),
    row("no-kick-space-xmm", || stale::pinned(Kind::Space, Via::Xmm)),
    row("no-kick-list-xmm", || stale::pinned(Kind::List, Via::Xmm)),
    row("no-kick-space-ex-xmm", || stale::pinned(Kind::SpaceEx, Via::Xmm)),
    row("no-kick-list-ex-xmm", || stale::pinned(Kind::ListEx, Via::Xmm)),
    row("early-return-space", || writes::by_hypercall(Kind::Space, writes::Looks::AtStores)),
    row("early-return-list", || writes::by_hypercall(Kind::List, writes::Looks::AtStores)),
    row("early-return-space-ex", || writes::by_hypercall(Kind::SpaceEx, writes::Looks::AtStores)),
    row("early-return-list-ex", || writes::by_hypercall(Kind::ListEx, writes::Looks::AtStores)),
    row("dirty-bit-after-return-space", || writes::by_hypercall(Kind::Space, writes::Looks::AtBits)),
    row("dirty-bit-after-return-list", || writes::by_hypercall(Kind::List, writes::Looks::AtBits)),
    row("nmi-handler-sees-stale-page", stale::in_nmi),
    row("engine-page-flush-leaves-page", || stale::by_engine(&BY_HYPERCALL, true)),
    row("engine-full-flush-leaves-page", || stale::by_engine(&BY_HYPERCALL, false)),
    row("engine-store-after-return", || writes::by_engine(&BY_HYPERCALL, writes::Looks::AtStores)),
    row("list-tail-ignored", || lists::places(Kind::List, Via::Memory)),
    row("list-ex-tail-ignored", || lists::places(Kind::ListEx, Via::Memory)),
    row("list-xmm-tail-ignored", || lists::places(Kind::List, Via::Xmm)),
    row("list-ex-xmm-tail-ignored", || lists::places(Kind::ListEx, Via::Xmm)),
    row("element-tail-ignored", || lists::spans(Element::Plain, spans::tails(Element::Plain))),
    row("extended-4k-misread", || lists::spans(Element::Extended4K, spans::tails(Element::Extended4K))),
    row("extended-2m-misread", || lists::spans(Element::Extended2M, spans::tails(Element::Extended2M))),
    row("extended-1g-misread", || lists::spans(Element::Extended1G, spans::tails(Element::Extended1G))),
    row("range-into-hole-dropped-whole", || lists::spans(Element::Plain, spans::into_the_hole())),
    row("range-out-of-hole-dropped-whole", || lists::spans(Element::Plain, spans::out_of_the_hole())),
    row("range-over-end-dropped-whole", || lists::spans(Element::Plain, spans::over_the_end())),
    row("non-canonical-ends-list", lists::not_canonical),
    row("2m-page-in-pieces", lists::large),
    row("wrong-processor-by-mask", || sets::every_processor(false)),
    row("wrong-processor-by-set", || sets::every_processor(true)),
    row("bank-by-number", sets::bank_by_number),
    row("empty-banks-shift-list", sets::empty_banks),
    row("flag-of-all-ignored", sets::all_flag),
    row("set-of-all-ignored", sets::all_format),
    row("absent-processors-spoil-set", sets::absent),
    row("global-page-kept", scopes::global),
    row("other-space-kept", scopes::other_space),
    row("pcid-bits-confuse-space", scopes::space_with_pcid_bits),
    row("own-tlb-left-out", mutual::own),
    row("mutual-flush-hangs", mutual::by_hypercall),
    row("halted-target-waited-for", waiting::halted),
    row("flush-of-halted-forgotten", waiting::halted_sees),
    row("list-settles-earlier-flush", waiting::wakes_amid_lists),
];

const INTERFACE: [Row; 18] = [
    row("call-before-identity", errors::before_identity),
    row("ring3-call-allowed", errors::ring3),
    row("unknown-code-accepted", errors::codes),
    row("reserved-bits-ignored", errors::reserved),
    row("rep-fields-unchecked", errors::reps),
    row("header-size-unchecked", errors::header_size),
    row("reserved-flags-ignored", errors::flags),
    row("set-format-unchecked", errors::set_format),
    row("bank-count-unchecked", errors::bank_count),
    row("reps-done-not-from-0", errors::reps_done),
    row("xmm-limit-unchecked", errors::xmm_limit),
    row("xmm-without-offer-accepted", errors::xmm_without_offer),
    row("empty-mask-breaks", errors::empty),
    row("misaligned-input-accepted", input::misaligned),
    row("input-across-pages-accepted", input::across_pages),
    row("input-at-end-of-memory-refused", input::at_end_of_memory),
    row("input-outside-memory-accepted", input::outside_memory),
    row("changing-input-breaks", input::changing),
];

/// A row that compares many calls, and one after whose failure a processor is missing.
const LAST: [Row; 2] =
    [row("xmm-differs-from-memory", input::xmm_differs), row("init-keeps-translations", restart::init)];

pub(in crate::arch) fn rows() -> impl Iterator<Item = &'static Row> + Clone {
    NATIVE.iter().chain(&FLUSHES).chain(&INTERFACE).chain(&LAST)
}
