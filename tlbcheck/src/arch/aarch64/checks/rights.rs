//! Withdrawn rights: no store succeeds after the flush (P14).

use super::prelude::*;

const ROUNDS: u32 = 100;

/// A page that all write to becomes read-only. D8.17.1: rights need no intermediate invalid entry.
pub(super) fn reduced(kind: Kind) -> Verdict {
    let leaf = TestSpace::shared().leaf(WINDOW);
    let writable = page_entry(page_of(0).address());
    let target = TlbiOperand::page(WINDOW, TestSpace::shared().asid());
    let form = Form(Scope::Inner, kind);
    let verdict = watch::during(at_window(1, PAGE), |watch| {
        watch.notices(
            |round| {
                replace(leaf, writable);
                (Expected::Writable, round)
            },
            |round| {
                replace(leaf, writable | READ_ONLY);
                (Expected::ReadOnly, round)
            },
        )?;
        for round in rounds(ROUNDS).map(u64::from) {
            replace(leaf, writable);
            tlbi::settle();
            watch.expect(Expected::Writable, round)?;
            replace(leaf, writable | READ_ONLY);
            tlbi::flush(form, target);
            watch.expect(Expected::ReadOnly, round)?;
        }
        Ok(())
    });
    replace(leaf, 0);
    tlbi::settle();
    verdict
}
