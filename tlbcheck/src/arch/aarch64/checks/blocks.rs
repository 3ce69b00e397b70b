//! Tables in the place of blocks, blocks in the place of tables, and tables that are freed.
//!
//! DDI 0487 M.b, D8.17.1: the entry is made invalid and invalidated before it becomes one of the
//! other kind (P3). What is mapped stays the same meanwhile, so nobody ever sees anything else, or
//! nothing.

use core::sync::atomic::Ordering;

use baremetal::pages::{PAGE, Page};
use tlbcheck::report::Verdict;

use super::broadcast::at_window;
use super::local::block_memory;
use crate::arch::aarch64::machine::rounds;
use crate::arch::aarch64::tlbi::{self, Form, Kind, Scope, TlbiOperand};
use crate::arch::aarch64::watch::{self, Expected, Watch, What};
use crate::arch::aarch64::window::{
    self, BLOCK_WINDOW, PLACE_EVERY, PLACES, TestSpace, block_entry, page_entry, replace, table_entry, write,
};

/// Rounds of each row.
const ROUNDS: u32 = 100;
/// The word of the first place; each has the one after that before it.
const BASE: u64 = 0x5eed_0000;
/// What is to be found in memory that is no longer mapped.
const POISON: u64 = 0xdead_beef;

/// Two tables that take turns, and the page that a table leads to while it is not in use.
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

/// A table that is not in use: a walk of it finds poison.
fn poison(table: &Page) {
    let page = &spare()[2];
    page.write(&[POISON]);
    table.words().iter().for_each(|entry| entry.store(page_entry(page.address()), Ordering::Release));
}

/// What a block at [`BLOCK_WINDOW`] is changed to and from.
struct Change {
    asid: u16,
}

impl Change {
    fn entry(&self) -> &'static core::sync::atomic::AtomicU64 {
        TestSpace::shared().entry(BLOCK_WINDOW, 2)
    }

    /// Break: nobody sees the block or the pages any more. All of an ASID is flushed, since pages
    /// are many.
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

/// Has all look at a block, of which `steps` changes the entry.
fn with_block(is_table_first: bool, steps: impl FnOnce(&mut Watch, &Change) -> Verdict) -> Verdict {
    let memory = block_memory();
    for (page, word) in memory.iter().step_by((PLACE_EVERY / PAGE) as usize).zip(0..) {
        page.write(&[BASE + word]);
    }
    let change = Change { asid: TestSpace::shared().asid() };
    fill(&spare()[0]);
    let first = if is_table_first { table_entry(&spare()[0]) } else { block_entry(memory[0].address()) };
    let what = What { address: BLOCK_WINDOW, words: PLACES, every: PLACE_EVERY, ..at_window(1, PAGE) };
    let verdict = watch::during(what, |watch| {
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

/// A block becomes a table; the block is seen no more when the entry is invalid.
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

/// A table becomes a block, and is then used for something else.
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

/// A table that is cut off, flushed and used for something else is walked no more (P1): neither by
/// what TLBs keep of its pages, nor by what they keep of the way to it. The flush names each page
/// that was mapped; not the last level alone.
pub(super) fn freed(form: Form) -> Verdict {
    let space = TestSpace::shared();
    // 1 GiB behind the blocks: a table of its own.
    let address = BLOCK_WINDOW + (1 << 30);
    let entry = space.entry(address, 2);
    let page = super::local::page_of(BASE);
    let what = What { address, ..at_window(2, PAGE) };
    let hook = |table: &Page| {
        table.words().iter().for_each(|entry| entry.store(0, Ordering::Release));
        table.words()[..2].iter().for_each(|leaf| write(leaf, page_entry(page.address())));
        write(entry, table_entry(table));
    };
    let verdict = watch::during(what, |watch| {
        watch.notices(
            |_| {
                hook(&spare()[0]);
                (Expected::Value, BASE)
            },
            |_| {
                replace(entry, 0);
                (Expected::Gone, 0)
            },
        )?;
        replace(entry, 0);
        tlbi::settle();
        for round in rounds(ROUNDS) {
            let table = &spare()[round as usize % 2];
            hook(table);
            watch.expect(Expected::Value, BASE)?;
            replace(entry, 0);
            tlbi::order(form.0);
            tlbi::issue(form, TlbiOperand::page(address, space.asid()));
            tlbi::issue(form, TlbiOperand::page(address + PAGE, space.asid()));
            tlbi::complete(form.0);
            poison(table);
            watch.expect(Expected::Gone, 0)?;
        }
        Ok(())
    });
    replace(entry, 0);
    tlbi::settle();
    verdict
}
