//! Blocks that are replaced by tables, tables that are replaced by blocks, and freed tables.
//!
//! DDI 0487 M.b, D8.17.1: the entry is made invalid and invalidated before it becomes one of the
//! other kind (P3). The mapped contents stay, so a processor only ever sees these, or nothing.

use super::pages::{alternate, at_block, block_memory};
use super::prelude::*;
use crate::arch::aarch64::watch::Watch;
use crate::arch::aarch64::window::table_entry;

const ROUNDS: u32 = 100;
/// The word of the first place; each has the one after that before it.
const BASE: u64 = 0x5eed_0000;
/// The contents of memory that is no longer mapped.
const POISON: u64 = 0xdead_beef;

/// Two tables that alternate, and the page that a table maps while it is not in use.
fn spare() -> &'static [Page] {
    static PAGES: spin::Once<&[Page]> = spin::Once::new();
    PAGES.call_once(|| window::take(3, 1))
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

/// A change of a block at [`BLOCK_WINDOW`] to a table or back.
struct Change {
    asid: u16,
}

impl Change {
    fn entry(&self) -> &'static core::sync::atomic::AtomicU64 {
        TestSpace::shared().entry(BLOCK_WINDOW, 2)
    }

    /// Break: no processor sees the block or the pages any more: the whole ASID is flushed.
    fn take_away(&self, watch: &mut Watch, pages: bool) -> Verdict {
        replace(self.entry(), 0);
        let kind = if pages { Kind::Asid } else { Kind::Va };
        tlbi::flush(Form(Scope::Inner, kind), TlbiOperand::page(BLOCK_WINDOW + 0x12_3000, self.asid));
        watch.expect(Expected::Gone, BASE)
    }

    /// Make: all see it.
    fn put(&self, watch: &mut Watch, value: u64) -> Verdict {
        write(self.entry(), value);
        watch.expect(Expected::Kept, BASE)
    }
}

/// Makes all processors check a block while `steps` changes its entry.
fn with_block(is_table_first: bool, steps: impl FnOnce(&mut Watch, &Change) -> Verdict) -> Verdict {
    let memory = block_memory();
    for (page, word) in memory.iter().step_by((PLACE_EVERY / PAGE) as usize).zip(0..) {
        page.write(&[BASE + word]);
    }
    let change = Change { asid: TestSpace::shared().asid() };
    fill(&spare()[0]);
    let first = if is_table_first { table_entry(&spare()[0]) } else { block_entry(memory[0].address()) };
    let verdict = watch::during(at_block(), |watch| {
        watch.notices(
            |_| {
                write(change.entry(), first);
                (Expected::Kept, BASE)
            },
            |_| {
                replace(change.entry(), 0);
                (Expected::Gone, BASE)
            },
        )?;
        steps(watch, &change)
    });
    replace(change.entry(), 0);
    tlbi::settle();
    verdict
}

/// A block becomes a table; the block is no longer visible when the entry is invalid.
pub(super) fn to_table() -> Verdict {
    with_block(false, |watch, change| {
        let block = block_entry(block_memory()[0].address());
        for round in rounds(ROUNDS) {
            let table = &spare()[round as usize % 2];
            fill(table);
            replace(change.entry(), 0);
            tlbi::settle();
            change.put(watch, block)?;
            change.take_away(watch, false)?;
            change.put(watch, table_entry(table))?;
        }
        Ok(())
    })
}

/// A table becomes a block, and is then reused.
pub(super) fn to_block() -> Verdict {
    with_block(true, |watch, change| {
        let block = block_entry(block_memory()[0].address());
        for round in rounds(ROUNDS) {
            let table = &spare()[round as usize % 2];
            fill(table);
            replace(change.entry(), 0);
            tlbi::settle();
            change.put(watch, table_entry(table))?;
            change.take_away(watch, true)?;
            poison(table);
            change.put(watch, block)?;
        }
        Ok(())
    })
}

/// A table that is detached, flushed and reused is not walked any more (P1): neither through cached
/// translations of its pages, nor through cached table walks to it. The flush names each page that
/// was mapped; it covers not only the last level.
pub(super) fn freed(form: Form) -> Verdict {
    let space = TestSpace::shared();
    // 1 GiB after the blocks: a table of its own.
    let address = BLOCK_WINDOW + (1 << 30);
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
