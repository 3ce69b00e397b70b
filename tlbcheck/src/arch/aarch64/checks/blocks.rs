//! Blocks that are replaced by tables, tables that are replaced by blocks, and freed tables.
//!
//! DDI 0487 M.b, D8.17.1: the entry is made invalid and invalidated before it becomes one of the
//! other kind (P3). The mapped contents stay, so a processor only ever sees these, or nothing.

use super::pages::{alternate, at_block, block_memory};
use super::prelude::*;
use crate::arch::aarch64::window::table_entry;

const ROUNDS: u32 = 100;
/// The word of the first place; each has the one after that before it.
const BASE: u64 = 0x5eed_0000;
/// The contents of memory that is no longer mapped.
const POISON: u64 = 0xdead_beef;

/// Two tables that alternate, and the page that a table maps while it is not in use.
fn spare() -> &'static [Page] {
    static PAGES: spin::Once<&[Page]> = spin::Once::new();
    PAGES.call_once(|| take(3, 1))
}

/// A table whose entries map the block's memory in pages.
fn fill(table: &Page) {
    for (entry, page) in table.words().iter().zip(block_memory()) {
        entry.store(page_entry(page.address()), Ordering::Release);
    }
}

/// Makes a table unused: a walk of it finds poison.
fn poison(table: &Page) {
    let page = &spare()[2];
    page.write(&[POISON]);
    table.words().iter().for_each(|entry| entry.store(page_entry(page.address()), Ordering::Release));
}

/// A block at [`LARGE_WINDOW`] becomes a table; or a table becomes a block, and is then reused. The
/// former one is no longer visible when the entry is invalid: to flush the pages of a table, the
/// whole ASID is flushed.
pub(super) fn changed(is_table_first: bool) -> Verdict {
    let (space, memory) = (TestSpace::shared(), block_memory());
    let entry = space.entry(LARGE_WINDOW, 2);
    let target = TlbiOperand::page(LARGE_WINDOW + 0x12_3000, space.asid());
    let kind = if is_table_first { Kind::Asid } else { Kind::Va };
    for (page, word) in memory.iter().step_by((SEEN_EVERY / PAGE) as usize).zip(0..) {
        page.write(&[BASE + word]);
    }
    fill(&spare()[0]);
    // The entry before the change to or from this table, and after it.
    let states = |table| {
        let (block, table) = (block_entry(memory[0].address()), table_entry(table));
        if is_table_first { (table, block) } else { (block, table) }
    };
    let put = |value| {
        write(entry, value);
        (Expected::Kept, BASE)
    };
    let take = |_| {
        replace(entry, 0);
        (Expected::Gone, BASE)
    };
    let verdict = watch::during(at_block(), |watch| {
        watch.notices(|_| put(states(&spare()[0]).0), take)?;
        for round in rounds(ROUNDS) {
            let table = &spare()[round as usize % 2];
            let (first, second) = states(table);
            fill(table);
            settle(entry, 0);
            watch.expect(put(first))?;
            let gone = take(round.into());
            tlbi::flush(Form(Scope::Inner, kind), target);
            watch.expect(gone)?;
            if is_table_first {
                poison(table);
            }
            watch.expect(put(second))?;
        }
        Ok(())
    });
    settle(entry, 0);
    verdict
}

/// A table that is detached, flushed and reused is not walked any more (P1): neither through cached
/// translations of its pages, nor through cached table walks to it. The flush names each page that
/// was mapped; it covers not only the last level.
pub(super) fn freed(form: Form) -> Verdict {
    let space = TestSpace::shared();
    // 1 GiB after the blocks: a table of its own.
    let address = LARGE_WINDOW + (1 << 30);
    let entry = space.entry(address, 2);
    let page = page_of(BASE);
    let what = What { address, ..at_window(2, PAGE) };
    let table = |round: u64| &spare()[round as usize % 2];
    let put = |round| {
        table(round).words().iter().for_each(|entry| entry.store(0, Ordering::Release));
        table(round).words()[..2].iter().for_each(|leaf| write(leaf, page_entry(page.address())));
        write(entry, table_entry(table(round)));
        (Expected::Value, BASE)
    };
    let take = |_| {
        replace(entry, 0);
        (Expected::Gone, 0)
    };
    alternate(what, put, take, |round| {
        tlbi::order(form.0);
        tlbi::issue(form, TlbiOperand::page(address, space.asid()));
        tlbi::issue(form, TlbiOperand::page(address + PAGE, space.asid()));
        tlbi::complete(form.0);
        poison(table(round));
    })
}
