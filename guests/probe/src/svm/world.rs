//! Guests with nested paging, and their accesses: APM volume 2, section 15.25.

use core::cell::Cell;
use core::sync::atomic::{AtomicU64, Ordering};

use baremetal::walk;

use super::block::*;
use super::l2::{Code, L2, RDI, RSI, code, features};
use crate::paging::{PAGE, Page, RIGHTS, WINDOW};

pub(super) const NP_ENABLE: u64 = 1;
pub(super) const PRESENT: u64 = 1;
pub(super) const USER: u64 = 1 << 2;
/// An entry that is a large page.
pub(super) const LEAF: u64 = 1 << 7;
pub(super) const MIB_2: u64 = 2 << 20;
pub(super) const GIB: u64 = 1 << 30;

/// EXITINFO1 of a fault: section 15.25.6.
pub(super) const WRITE: u64 = 1 << 1;
pub(super) const RESERVED: u64 = 1 << 3;
pub(super) const FETCH: u64 = 1 << 4;
/// Any access at the nested level is a user's; that of the final address, and one for a table.
pub(super) const FINAL: u64 = USER | 1 << 32;
pub(super) const WALK: u64 = USER | 1 << 33;

/// Where guests have what: the probe's memory, in large pages; it again, in a page of 1 GiB; their
/// own tables, and data, whose upper levels nothing else has a part of.
pub(super) const PROGRAM: u64 = 64 * GIB;
const HUGE: u64 = PROGRAM + GIB;
pub(super) const TABLES: u64 = PROGRAM + 2 * GIB;
pub(super) const DATA: u64 = 1 << 39;
/// A large page of data.
pub(super) const LARGE: u64 = DATA + GIB;
/// Their own tables: the root, two for the program, three for the window.
const OWN: usize = 6;
pub(super) const WINDOW_TABLES: core::ops::Range<u64> = 3..6;
pub(super) const WINDOW_TABLE: usize = 5;
/// The page of data that tests change.
pub(super) const TRIED: u64 = 3;

static POOLS: [[Page; 24]; 2] = [const { [const { Page::new() }; 24] }; 2];
static PLACES: [Page; 64] = [const { Page::new() }; 64];

/// In a place: a word of data, and code that loads RAX and exits.
pub(super) const WORD: u64 = 8;
const CODE: u64 = 0x800;

/// The page that holds this number.
pub(super) fn place(number: u64) -> &'static Page {
    let page = &PLACES[number as usize];
    page.write_at(WORD as usize / 8, &[number]);
    page.write_at(CODE as usize / 8, &[0xd901_0f00_0000_00b8 | number << 8]);
    page
}

/// What a place has as its word.
pub(super) fn word(number: u64) -> u64 {
    PLACES[number as usize].words()[WORD as usize / 8].load(Ordering::SeqCst)
}

/// An access of a guest's; each shows in a register whether it is done once.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Access {
    Read,
    Write,
    Fetch,
}

pub(super) const ACCESSES: [Access; 3] = [Access::Read, Access::Write, Access::Fetch];

impl Access {
    fn code(self) -> Code {
        match self {
            Self::Read => code!("lodsq"),
            Self::Write => code!("stosq"),
            Self::Fetch => code!("call rdi"),
        }
    }

    /// Its offset in a page.
    pub(super) const fn offset(self) -> u64 {
        if matches!(self, Self::Fetch) { CODE } else { WORD }
    }

    /// Its bits in EXITINFO1.
    pub(super) const fn bits(self) -> u64 {
        [0, WRITE, FETCH][self as usize]
    }

    /// How far it moves RSI and RDI forward, and RSP back.
    fn moves(self) -> [u64; 3] {
        core::array::from_fn(|register| if register == self as usize { 8 } else { 0 })
    }
}

/// How an access ended: with RAX, by a nested fault with EXITINFO1 and 2, or in another way.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Found {
    Value(u64),
    Fault(u64, u64),
    Other(u32),
}

/// What an access to a page of the window finds, if that is a place.
pub(super) fn found_in(number: u64, access: Access, page: u64) -> Found {
    Found::Value(if access == Access::Write { WINDOW + page * PAGE + WORD } else { number })
}

/// What flushes one guest's translations.
pub(super) fn flush_of_one() -> u64 {
    if features().flush_by_asid() { 3 } else { 1 }
}

/// A guest with nested tables and tables of its own: page N of the window is page N of its data,
/// and place N, for the first 16.
pub(super) struct World {
    pub(super) l2: L2,
    pages: &'static [Page; 24],
    used: Cell<usize>,
    /// The access that was begun, where its instruction is, and its address.
    access: Access,
    at: u64,
    address: u64,
}

impl World {
    /// With the pages of the processor of that number.
    pub(super) fn new(number: usize, asid: u64) -> Self {
        let pages = &POOLS[number];
        pages.iter().for_each(|page| page.write(&[0; 512]));
        let l2 = L2::with_pages(number, code!());
        let used = Cell::new(1 + OWN);
        let world = Self { l2, pages, used, access: Access::Read, at: 0, address: 0 };
        let large = LEAF | RIGHTS;
        let own = |table: usize| (TABLES + table as u64 * PAGE) | RIGHTS;
        for (table, index, next) in [(0, 0, 1), (1, 0, 2), (0, 1, 3), (3, 0, 4), (4, 0, 5)] {
            world.own(table, index, own(next));
        }
        for index in 0..512u64 {
            world.own(2, index as usize, (PROGRAM + index * MIB_2) | large);
            world.own(WINDOW_TABLE, index as usize, (DATA + index * PAGE) | RIGHTS);
            world.set(PROGRAM + index * MIB_2, 1, (index * MIB_2) | large);
        }
        for table in 0..OWN {
            world.set(TABLES + table as u64 * PAGE, 0, pages[1 + table].address() | RIGHTS);
        }
        (0..16).for_each(|number| world.map(number, number));
        let block = world.l2.block;
        block.set(NESTED, NP_ENABLE);
        block.set(NESTED_CR3, pages[0].address());
        block.set(CR3, TABLES);
        block.set_field(ASID, 32, asid);
        world
    }

    /// Sets an entry of the guest's own tables.
    pub(super) fn own(&self, table: usize, index: usize, value: u64) {
        self.pages[1 + table].write_at(index, &[value]);
    }

    /// An empty table.
    pub(super) fn fresh(&self) -> &'static Page {
        self.used.set(self.used.get() + 1);
        &self.pages[self.used.get() - 1]
    }

    /// The nested entry for a guest-physical address at a level: 0 is that of pages.
    pub(super) fn nested(&self, address: u64, level: u32) -> &'static AtomicU64 {
        walk::entry(&self.pages[0], address, level, || self.fresh())
    }

    pub(super) fn set(&self, address: u64, level: u32, value: u64) {
        self.nested(address, level).store(value, Ordering::SeqCst);
    }

    /// Makes a page of data a place.
    pub(super) fn map(&self, page: u64, number: u64) {
        self.set(DATA + page * PAGE, 0, place(number).address() | RIGHTS);
    }

    /// Maps a large page that has a place, by a leaf of level 1 or 2. Returns the page of the
    /// window at which that is, and the leaf.
    pub(super) fn map_large(&self, level: u32, number: u64) -> (u64, &'static AtomicU64) {
        let (base, size) = if level == 1 { (LARGE, MIB_2) } else { (HUGE, GIB) };
        let (at, page) = (place(number).address(), 100 + 10 * u64::from(level));
        let leaf = self.nested(base, level);
        leaf.store(at & !(size - 1) | LEAF | RIGHTS, Ordering::SeqCst);
        self.own(WINDOW_TABLE, page as usize, (base + at % size) | RIGHTS);
        (page, leaf)
    }

    /// An access to a page of the window, with this TLB_CONTROL. A write writes the address.
    pub(super) fn run(&mut self, access: Access, page: u64, control: u64) -> Found {
        let address = WINDOW + page * PAGE + access.offset();
        (self.access, self.at, self.address) = (access, access.code().at, address);
        let (block, top) = (self.l2.block, self.l2.stack_top());
        [RSI, RDI].into_iter().for_each(|register| self.l2.registers.general[register] = address);
        for (offset, value) in [(RAX, address), (RIP, self.at), (RSP, top)] {
            block.set(offset, value);
        }
        block.set_field(TLB_CONTROL, 8, control);
        self.resume()
    }

    /// Goes on with the instruction that has faulted.
    pub(super) fn resume(&mut self) -> Found {
        let code = self.l2.run();
        let (block, general) = (self.l2.block, &self.l2.registers.general);
        block.set_field(TLB_CONTROL, 8, 0);
        let Self { access, at, address, .. } = *self;
        let moved = [
            general[RSI].wrapping_sub(address),
            general[RDI].wrapping_sub(address),
            self.l2.stack_top().wrapping_sub(block.get(RSP)),
        ];
        // A call has moved RSP before its fetch.
        let begun = if access == Access::Fetch { (address, access.moves()) } else { (at, [0; 3]) };
        let is_begun = (block.get(RIP), moved) == begun && block.get(EXIT_EVENT) == 0;
        match code {
            exit::VMMCALL if moved == access.moves() => Found::Value(block.get(RAX)),
            exit::NESTED_FAULT if is_begun => Found::Fault(block.get(INFO_1), block.get(INFO_2)),
            code => Found::Other(code),
        }
    }
}
