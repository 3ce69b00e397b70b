//! Guests with nested paging: translation, faults of the nested level, accessed and dirty bits. APM
//! volume 2, section 15.25.

use core::arch::x86_64::__cpuid;
use core::sync::atomic::{AtomicU64, Ordering};

use super::block::*;
use super::clauses::{clause, skip};
use super::l2::{NXE, features, memory_end, protect_writes, set_nxe};
use super::world::*;
use crate::paging::{ACCESSED, DIRTY, NO_EXECUTE, PAGE, RIGHTS, WRITABLE};
use crate::report::Verdict;

fn has_pages_of_1_gib() -> bool {
    __cpuid(0x8000_0001).edx & 1 << 26 != 0
}

/// The guest runs by the nested tables alone, with pages of each size.
pub(super) fn translated() -> Verdict {
    let mut world = World::new(0, 2);
    for (number, access) in (0..16).flat_map(|number| ACCESSES.map(|access| (number, access))) {
        let found = world.run(access, number, 0);
        let value = found_in(number, access, number);
        let is_done = access != Access::Write || Found::Value(word(number)) == value;
        clause!("nested-4k", found == value && is_done, "{access:?} of {number}: {found:x?}");
    }
    for (name, level) in [("nested-2m", 1), ("nested-1g", 2)] {
        if level == 2 && !has_pages_of_1_gib() {
            skip(name, "CPUID has no pages of 1 GiB");
            continue;
        }
        let (page, _) = world.map_large(level, 20);
        for access in [Access::Read, Access::Fetch, Access::Write] {
            let found = world.run(access, page, 0);
            clause!(name, found == found_in(20, access, page), "{access:?}: {found:x?}");
        }
    }
    // A large page of the guest's, of small nested ones.
    (0..16).for_each(|number| world.map(number, number));
    world.own(WINDOW_TABLE - 1, 1, DATA | LEAF | RIGHTS);
    for number in 0..16 {
        let found = world.run(Access::Read, 512 + number, 0);
        clause!("nested-pieces", found == Found::Value(number), "{number}: {found:x?}");
    }
    Ok(())
}

/// A name, what spoils an entry, and the fault of an access: P and RSV, if there is one.
type Spoiled = (&'static str, fn(u64) -> u64, fn(u64) -> Option<u64>);

const SPOILED: [Spoiled; 5] = [
    ("nested-absent", |entry| entry & !PRESENT, |_| Some(0)),
    ("nested-write", |entry| entry & !WRITABLE, |bits| (bits & WRITE != 0).then_some(PRESENT)),
    ("nested-user", |entry| entry & !USER, |_| Some(PRESENT)),
    ("nested-fetch", |entry| entry | NO_EXECUTE, |bits| (bits & FETCH != 0).then_some(PRESENT)),
    ("nested-reserved", |entry| entry | memory_end(), |_| Some(PRESENT | RESERVED)),
];

/// Spoils an entry, and sees that an access exits as it has to, or does not; then mends the entry,
/// and sees that the guest goes on without a flush, once.
fn spoil(world: &mut World, entry: &AtomicU64, it: &Spoiled, access: Access, table: Option<u64>) {
    let &(name, spoil, fault) = it;
    place(TRIED);
    let before = entry.load(Ordering::SeqCst);
    entry.store(spoil(before), Ordering::SeqCst);
    let mut found = world.run(access, TRIED, 1);
    let (bits, address) = match table {
        None => (FINAL | access.bits(), DATA + TRIED * PAGE + access.offset()),
        Some(5) => (WALK | WRITE, TABLES + 5 * PAGE + TRIED * 8),
        Some(table) => (WALK | WRITE, TABLES + table * PAGE),
    };
    let expected = match fault(bits) {
        Some(more) => Found::Fault(bits | more, address),
        None => found_in(TRIED, access, TRIED),
    };
    let is_reserved = fault(bits).is_some_and(|more| more & RESERVED != 0);
    if let (true, Found::Fault(bits, _)) = (is_reserved, &mut found) {
        clause!("nested-reserved-present", *bits & PRESENT != 0, "EXITINFO1 {bits:#x}");
        *bits |= PRESENT;
    }
    clause!(name, found == expected, "{access:?}, table {table:?}: {found:x?}, not {expected:x?}");
    let is_kept = fault(bits).is_none() || word(TRIED) == TRIED;
    clause!("nested-fault-keeps", is_kept, "{name}: the fault has written");
    entry.store(before, Ordering::SeqCst);
    if let Found::Fault(..) = found {
        let found = world.resume();
        let is_done = found == found_in(TRIED, access, TRIED);
        clause!("nested-mended", is_done, "{name}, {access:?}, table {table:?}: {found:x?}");
    }
}

/// Each level of the way to the data, and the page of each table of the guest's on its own way.
fn spoil_each(world: &mut World, spoiled: &Spoiled, access: Access) {
    for level in 0..4 {
        let entry = world.nested(DATA + TRIED * PAGE, level);
        spoil(world, entry, spoiled, access, None);
    }
    for table in WINDOW_TABLES {
        let entry = world.nested(TABLES + table * PAGE, 0);
        spoil(world, entry, spoiled, access, Some(table));
    }
}

/// Faults of the nested level. The probe's EFER.NXE counts, its CR0.WP and the guest's NXE do not.
pub(super) fn faults() -> Verdict {
    let mut world = World::new(0, 2);
    let efer = world.l2.block.get(EFER) & !NXE;
    set_nxe(true);
    for (case, access) in (0..4).flat_map(|case| ACCESSES.map(|access| (case, access))) {
        protect_writes(case & 1 != 0);
        world.l2.block.set(EFER, efer | if case & 2 != 0 { NXE } else { 0 });
        SPOILED.iter().for_each(|spoiled| spoil_each(&mut world, spoiled, access));
    }
    set_nxe(false);
    for nxe in [0, NXE] {
        world.l2.block.set(EFER, efer | nxe);
        let spoiled = ("nested-nx-reserved", SPOILED[3].1, SPOILED[4].2);
        spoil_each(&mut world, &spoiled, Access::Read);
    }
    Ok(())
}

/// What flushes one guest's translations.
pub(super) fn flush_of_one() -> u64 {
    if features().flush_by_asid() { 3 } else { 1 }
}

/// Accessed and dirty bits: of the way, of the leaf, and of the pages of the guest's own tables,
/// each access to which is a write.
pub(super) fn bits() -> Verdict {
    const BITS: u64 = ACCESSED | DIRTY;
    let mut world = World::new(0, 2);
    let way: [_; 4] = core::array::from_fn(|level| world.nested(DATA + TRIED * PAGE, level as u32));
    let tables = [3, 4, 5].map(|table| world.nested(TABLES + table * PAGE, 0));
    let clear = |bits: u64| {
        let all = way.iter().chain(&tables);
        all.for_each(|entry| _ = entry.fetch_and(!bits, Ordering::SeqCst));
    };
    let of = |entry: &AtomicU64| entry.load(Ordering::SeqCst) & BITS;
    // At first the guest's own tables have no accessed bits, either.
    for access in ACCESSES {
        clear(BITS);
        let _ = world.run(access, TRIED, 1);
        let (leaf, dirty) = (of(way[0]), if access == Access::Write { DIRTY } else { 0 });
        clause!("bits-of-leaf", leaf == ACCESSED | dirty, "{access:?}: {leaf:#x}");
        let above = [way[1], way[2], way[3]].map(of);
        clause!("bits-of-way", above == [ACCESSED; 3], "{access:?}: {above:x?}");
        let walked = tables.map(of);
        clause!("bits-of-walk", walked == [BITS; 3], "{access:?}: {walked:x?}");
    }
    let (page, large) = world.map_large(1, 20);
    for (page, leaf) in [(TRIED, way[0]), (page, large)] {
        for control in [1, flush_of_one()] {
            leaf.fetch_and(!BITS, Ordering::SeqCst);
            let mut bits_after = |access, control| {
                let _ = world.run(access, page, control);
                of(leaf)
            };
            let (read, written) = (bits_after(Access::Read, control), bits_after(Access::Write, 0));
            clause!("bits-read", read == ACCESSED, "flush {control}: {read:#x}");
            clause!("bits-late", written == BITS, "a write after a read: {written:#x}");
            leaf.fetch_and(!DIRTY, Ordering::SeqCst);
            let again = bits_after(Access::Write, control);
            clause!("bits-again", again == BITS, "flush {control}: {again:#x}");
        }
    }
    clear(DIRTY | WRITABLE);
    tables.iter().for_each(|entry| _ = entry.fetch_or(WRITABLE, Ordering::SeqCst));
    let found = world.run(Access::Write, TRIED, 1);
    let is_clean = matches!(found, Found::Fault(..)) && of(way[0]) & DIRTY == 0;
    clause!("bits-of-fault", is_clean, "{found:x?}, {:#x}", of(way[0]));
    Ok(())
}
