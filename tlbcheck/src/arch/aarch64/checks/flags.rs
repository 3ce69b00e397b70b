//! Access flag and dirty state: by faults, and by hardware (FEAT_HAFDBS). DDI 0487 M.b, D8.5.

use super::prelude::*;
use crate::arch::aarch64::window::{ACCESSED, DIRTY_MODIFIER, SETS_ACCESSED, SETS_DIRTY};

const ROUNDS: u32 = 100;

/// The entry of a page in these rows, except for flags.
fn entry() -> u64 {
    page_entry(page_of(7).address())
}

/// Lets each round of a row change the entry at [`WINDOW`], with bits of TCR_EL1 set.
fn with_control(control: u64, round: impl Fn(&AtomicU64, u32) -> Verdict) -> Verdict {
    let leaf = TestSpace::shared().leaf(WINDOW);
    window::enter(TestSpace::shared().register());
    window::set_control(control, true);
    let verdict = rounds(ROUNDS).try_for_each(|number| round(leaf, number));
    window::set_control(control, false);
    settle(leaf, 0);
    window::leave();
    verdict
}

fn flush() {
    tlbi::flush(Form(Scope::Local, Kind::VaLast), TlbiOperand::page(WINDOW, TestSpace::shared().asid()));
}

/// A clear access flag is noticed after a flush, even if the page was in the TLB.
pub(super) fn faults() -> Verdict {
    with_control(0, |leaf, round| {
        settle(leaf, entry());
        ensure!(guarded::load(WINDOW) == Ok(7), "the page is not there, round {round}");
        replace(leaf, entry() & !ACCESSED);
        flush();
        let cause = guarded::load(WINDOW).map_err(|fault| fault.cause());
        ensure!(cause == Err(Cause::AccessFlag(3)), "{cause:x?} with a clear flag, round {round}");
        Ok(())
    })
}

/// D8.5.1: no TLB caches an entry whose access flag faults, so that setting it needs no flush.
pub(super) fn fault_is_not_kept() -> Verdict {
    with_control(0, |leaf, round| {
        settle(leaf, entry() & !ACCESSED);
        let cause = guarded::load(WINDOW).map_err(|fault| fault.cause());
        ensure!(cause == Err(Cause::AccessFlag(3)), "{cause:x?} with a clear flag, round {round}");
        window::write(leaf, entry());
        let found = guarded::load(WINDOW);
        ensure!(found == Ok(7), "{found:x?} when the flag is set, round {round}");
        Ok(())
    })
}

/// The processor sets the access flag, also for a page that was in the TLB before the flush.
pub(super) fn set_by_processor() -> Verdict {
    let sets = machine::get().platform.sets_access_flag;
    needs!(sets, "the processor sets no access flags (FEAT_HAFDBS)");
    with_control(SETS_ACCESSED, |leaf, round| {
        replace(leaf, entry() & !ACCESSED);
        flush();
        let found = guarded::load(WINDOW);
        ensure!(found == Ok(7), "{found:x?} where the processor sets the flag, round {round}");
        ensure!(leaf.load(Ordering::Acquire) & ACCESSED != 0, "clear after a load, round {round}");
        Ok(())
    })
}

/// The bits that FEAT_HAFDBS needs to manage the dirty state.
const KEEPS_DIRTY: u64 = SETS_ACCESSED | SETS_DIRTY;
/// A writable page that has not been written to.
const CLEAN: u64 = READ_ONLY | DIRTY_MODIFIER;

/// The processor makes a clean page dirty at a store.
pub(super) fn dirty_by_processor() -> Verdict {
    needs!(machine::get().platform.sets_dirty_state, "the processor keeps no dirty state (FEAT_HAFDBS)");
    with_control(KEEPS_DIRTY, |leaf, round| {
        replace(leaf, entry() | CLEAN);
        flush();
        let found = guarded::load(WINDOW);
        ensure!(found.is_ok(), "{found:x?} of a clean page, round {round}");
        ensure!(leaf.load(Ordering::Acquire) & READ_ONLY != 0, "a load makes it dirty, round {round}");
        // SAFETY: the page belongs to this row.
        let stored = unsafe { guarded::store(WINDOW, 7) };
        ensure!(stored.is_ok(), "{stored:x?} at a store to a clean page, round {round}");
        ensure!(leaf.load(Ordering::Acquire) & READ_ONLY == 0, "a store leaves it clean, round {round}");
        Ok(())
    })
}

/// Without hardware management of the dirty state a clean page is read-only.
pub(super) fn clean_is_read_only() -> Verdict {
    with_control(0, |leaf, round| {
        settle(leaf, entry());
        // SAFETY: the page belongs to this row.
        let first = unsafe { guarded::store(WINDOW, 7) };
        ensure!(first.is_ok(), "{first:x?} at a store to a writable page, round {round}");
        replace(leaf, entry() | CLEAN);
        flush();
        // SAFETY: as above.
        let cause = unsafe { guarded::store(WINDOW, 8) }.map_err(|fault| fault.cause());
        ensure!(cause == Err(Cause::Permission(3)), "{cause:x?} at a store to a clean page in {round}");
        Ok(())
    })
}

/// Each processor writes to its own page all the time, and all pages are made clean: after the
/// flush a store makes the page dirty again, or a copier loses it (P14).
pub(super) fn dirty_again() -> Verdict {
    needs!(machine::get().platform.sets_dirty_state, "the processor keeps no dirty state (FEAT_HAFDBS)");
    let space = TestSpace::shared();
    let place = |number: usize| WINDOW + number as u64 * PAGE;
    let all = || (0..machine::get().processors).map(|number| space.leaf(place(number)));
    all().for_each(|leaf| replace(leaf, entry() | DIRTY_MODIFIER));
    tlbi::settle();
    let what = What { control: KEEPS_DIRTY, each: PAGE, ..at_window(1, PAGE) };
    let verdict = watch::during(what, |watch| {
        for round in rounds(ROUNDS).map(u64::from) {
            watch.expect((Expected::Writable, round))?;
            for leaf in all() {
                leaf.fetch_or(READ_ONLY, Ordering::AcqRel);
            }
            let form = Form(Scope::Inner, Kind::VaLast);
            tlbi::order(form.0);
            for number in 0..machine::get().processors {
                tlbi::issue(form, TlbiOperand::page(place(number), space.asid()));
            }
            tlbi::complete(form.0);
            watch.expect((Expected::Writable, round + 1))?;
            let clean = all().filter(|leaf| leaf.load(Ordering::Acquire) & READ_ONLY != 0).count();
            ensure!(clean == 0, "{clean} pages are clean after each has been written to, round {round}");
        }
        Ok(())
    });
    all().for_each(|leaf| replace(leaf, 0));
    tlbi::settle();
    verdict
}
