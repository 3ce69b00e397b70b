//! Withdrawn rights: no store succeeds after the flush (P14).

use super::pages::alternate;
use super::prelude::*;

/// A page that all write to becomes read-only. D8.17.1: rights need no intermediate invalid entry.
pub(super) fn reduced(kind: Kind) -> Verdict {
    let leaf = TestSpace::shared().leaf(WINDOW);
    let writable = page_entry(page_of(0).address());
    let target = TlbiOperand::page(WINDOW, TestSpace::shared().asid());
    let put = |round| {
        settle(leaf, writable);
        (Expected::Writable, round)
    };
    let take = |round| {
        replace(leaf, writable | READ_ONLY);
        (Expected::ReadOnly, round)
    };
    let flush = |_| tlbi::flush(Form(Scope::Inner, kind), target);
    let verdict = alternate(at_window(1, PAGE), put, take, flush);
    settle(leaf, 0);
    verdict
}
