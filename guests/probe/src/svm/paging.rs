//! Guests with nested paging: APM volume 2, section 15.25.

use core::arch::x86_64::__cpuid;
use core::sync::atomic::{AtomicU64, Ordering};

use baremetal::x86_64::apic;

use super::block::*;
use super::clauses::{breaks, clause, skip};
use super::l2::{L2, NXE, RBX, RDI, RDX, RSI, code, features, host_state, last_page, memory_end};
use super::l2::{protect_writes, set_nxe};
use super::world::*;
use crate::guarded::rdmsr;
use crate::paging::{ACCESSED, DIRTY, NO_EXECUTE, PAGE, Page, RIGHTS, WINDOW, WRITABLE};
use crate::report::{Verdict, say};

const MSR_PAT: u32 = 0x277;

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
        if level == 2 && __cpuid(0x8000_0001).edx & 1 << 26 == 0 {
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
type Spoiled<'a> = (&'static str, &'a dyn Fn(u64) -> u64, fn(u64) -> Option<u64>);

const SPOILED: [Spoiled; 5] = [
    ("nested-absent", &|entry| entry & !PRESENT, |_| Some(0)),
    ("nested-write", &|entry| entry & !WRITABLE, |bits| (bits & WRITE != 0).then_some(PRESENT)),
    ("nested-user", &|entry| entry & !USER, |_| Some(PRESENT)),
    ("nested-fetch", &|entry| entry | NO_EXECUTE, |bits| (bits & FETCH != 0).then_some(PRESENT)),
    ("nested-reserved", &|entry| entry | memory_end(), |_| Some(PRESENT | RESERVED)),
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

/// Large pages that there are not, or at addresses that are not multiples of their size.
const MISPLACED: [(u32, u64); 3] = [(1, LEAF | 1 << 13), (2, LEAF | 1 << 13), (3, LEAF)];

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
        for (level, bits) in MISPLACED {
            let entry = world.nested(DATA + TRIED * PAGE, level);
            let spoiled: Spoiled = ("nested-misplaced", &|entry| entry | bits, SPOILED[4].2);
            spoil(&mut world, entry, &spoiled, access, None);
        }
    }
    set_nxe(false);
    for nxe in [0, NXE] {
        world.l2.block.set(EFER, efer | nxe);
        let spoiled = ("nested-nx-reserved", SPOILED[3].1, SPOILED[4].2);
        spoil_each(&mut world, &spoiled, Access::Read);
    }
    Ok(())
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

/// A flush: its TLB_CONTROL, and how far it moves the ASID.
const FLUSHES: [(&str, u64, u64); 3] =
    [("nested-flush-1", 1, 0), ("nested-flush-3", 3, 0), ("nested-new-asid", 0, 1)];

/// Leaves and tables that change: each flush shows the new ones, and again the old ones.
pub(super) fn flushes() -> Verdict {
    let mut world = World::new(0, 2);
    let leaf = world.nested(DATA + TRIED * PAGE, 0);
    let table = world.nested(DATA, 1);
    let own = world.nested(TABLES + WINDOW_TABLE as u64 * PAGE, 0);
    let [other_table, other_own, small] = [(); 3].map(|()| world.fresh());
    let to = |page: &Page| page.address() | RIGHTS;
    other_table.write_at(TRIED as usize, &[to(place(5))]);
    other_own.write_at(TRIED as usize, &[(DATA + 7 * PAGE) | RIGHTS]);
    // Two places that are in one large page.
    let first = if (place(20).address() ^ place(21).address()) < MIB_2 { 20 } else { 22 };
    let (large_page, large) = world.map_large(1, first);
    let offset = place(first).address() % MIB_2;
    small.write_at((offset / PAGE) as usize, &[to(place(30))]);
    world.own(WINDOW_TABLE, large_page as usize + 1, (LARGE + offset + PAGE) | RIGHTS);
    let (read, write) = (Access::Read, Access::Write);
    let fault = |bits| Found::Fault(FINAL | bits, DATA + TRIED * PAGE + WORD);
    let absent = Found::Fault(FINAL, LARGE + offset + PAGE + WORD);
    // An entry, its new value, a page with its place, and what then is found there.
    let changes = [
        (leaf, to(place(TRIED)) & !WRITABLE, write, TRIED, TRIED, fault(WRITE | PRESENT)),
        (leaf, 0, read, TRIED, TRIED, fault(0)),
        (leaf, to(place(4)), read, TRIED, TRIED, Found::Value(4)),
        (table, 0, read, TRIED, TRIED, fault(0)),
        (table, to(other_table), read, TRIED, TRIED, Found::Value(5)),
        (own, to(other_own), read, TRIED, TRIED, Found::Value(7)),
        (large, to(small), read, large_page, first, Found::Value(30)),
        (large, to(small), read, large_page + 1, first + 1, absent),
    ];
    let mut stale = 0;
    for (name, control, more) in FLUSHES {
        if control == 3 && !features().flush_by_asid() {
            skip(name, "CPUID has no flush by ASID");
            continue;
        }
        for (round, change) in (0..8).flat_map(|round| changes.map(|change| (round, change))) {
            let (entry, value, access, page, number, changed) = change;
            place(number);
            let (before, good) = (entry.load(Ordering::SeqCst), found_in(number, access, page));
            world.l2.block.set_field(ASID, 32, 2);
            let found = world.run(access, page, 1);
            clause!("nested-fresh", found == good, "{found:x?} behind a flush of all");
            for (value, expected, step) in [(value, changed, 1), (before, good, 2)] {
                entry.store(value, Ordering::SeqCst);
                if round % 2 == 0 {
                    let kept = world.run(access, page, 0);
                    stale += u32::from(kept != expected);
                    clause!("nested-either", [good, changed].contains(&kept), "{kept:x?}");
                }
                world.l2.block.set_field(ASID, 32, 2 + step * more);
                let found = world.run(access, page, control);
                clause!(name, found == expected, "{value:#x}: {found:x?}, not {expected:x?}");
            }
        }
    }
    say(format_args!("  {stale} translations were kept without a flush"));
    Ok(())
}

/// Guests with other tables under other ASIDs; and one that goes from one to the other and back.
pub(super) fn roots() -> Verdict {
    let (mut one, mut other) = (World::new(0, 2), World::new(1, 3));
    (0..16).for_each(|page| other.map(page, 16 + page));
    let roots = [&one, &other].map(|world| world.l2.block.get(NESTED_CR3));
    let _ = one.run(Access::Read, 0, 1);
    for page in (0..16).chain(0..16) {
        let found = [&mut one, &mut other].map(|world| world.run(Access::Read, page, 0));
        let is_apart = found == [page, 16 + page].map(Found::Value);
        clause!("nested-apart", is_apart, "page {page}: {found:x?}");
    }
    for page in (0..16).chain(0..16) {
        for (root, asid, number) in [(roots[1], 4, 16 + page), (roots[0], 2, page)] {
            one.l2.block.set(NESTED_CR3, root);
            one.l2.block.set_field(ASID, 32, asid);
            let found = one.run(Access::Read, page, 0);
            clause!("nested-exchanged", found == Found::Value(number), "ASID {asid}: {found:x?}");
        }
    }
    Ok(())
}

/// What VMRUN refuses; and the PAT, which a guest has to itself.
pub(super) fn refused() -> Verdict {
    const USUAL: u64 = 0x0007_0406_0007_0406;
    for (name, offset, value) in [
        ("nested-refused-cr3", NESTED_CR3, memory_end()),
        ("nested-refused-cr3", NESTED_CR3, 1 << 63),
        ("nested-refused-pat", PAT, USUAL - 4),
        ("nested-refused-pat", PAT, USUAL | 8 << 8),
        ("nested-refused-pat", PAT, USUAL | 3 << 56),
    ] {
        let mut world = World::new(0, 2);
        let root = if offset == NESTED_CR3 { world.l2.block.get(offset) } else { 0 };
        world.l2.block.set(offset, root | value);
        let (before, code) = (host_state(), world.l2.run());
        clause!(name, code == exit::INVALID, "{value:#x}: exit {code:#x}");
        let is_whole = before == host_state() && world.l2.host_is_whole();
        clause!("nested-refused-keeps-host", is_whole, "{name}: another host");
    }
    let mut world = World::new(0, 2);
    let (given, own) = (0x0107_0406_0007_0405, rdmsr(MSR_PAT));
    world.l2.block.set(PAT, given);
    let at = code!("mov ecx, 0x277"; "rdmsr"; "mov ebx, eax"; "mov eax, 0x05060107"; "wrmsr");
    let (code, saved) = (world.l2.run_at(at), world.l2.block.get(PAT));
    let read = world.l2.registers.general[RDX] << 32 | world.l2.registers.general[RBX];
    clause!("nested-pat-loaded", code == exit::VMMCALL && read == given, "{code:#x}, {read:#x}");
    clause!("nested-pat-saved", saved == given & !0xffff_ffff | 0x0506_0107, "{saved:#x}");
    let then = rdmsr(MSR_PAT);
    clause!("nested-pat-of-host", own == then, "{own:x?}, then {then:x?}");
    // Where it was not the guest's own.
    world.l2.block.set(RAX, USUAL & 0xffff_ffff);
    world.l2.registers.general[RDX] = USUAL >> 32;
    let _ = world.l2.run_at(code!("mov ecx, 0x277"; "wrmsr"));
    Ok(())
}

/// An event whose delivery faults at the nested level is reported with the fault. A guest without
/// paging, and one in real mode, has the nested tables alone.
pub(super) fn modes() -> Verdict {
    const EVENT_6: u64 = 1 << 31 | 3 << 8 | 6;
    let mut world = World::new(0, 2);
    let entry = world.nested(DATA + TRIED * PAGE, 0);
    let before = entry.swap(0, Ordering::SeqCst);
    let block = world.l2.block;
    block.set(RSP, WINDOW + TRIED * PAGE + 0x100);
    block.set(EVENT, EVENT_6);
    let code = world.l2.run();
    let found = [INFO_1, INFO_2, EXIT_EVENT].map(|offset| block.get(offset));
    let expected = [FINAL | WRITE, DATA + TRIED * PAGE + 0xf8, EVENT_6];
    let is_found = code == exit::NESTED_FAULT && found == expected;
    clause!("nested-event", is_found, "exit {code:#x}: {found:x?}, not {expected:x?}");
    entry.store(before, Ordering::SeqCst);
    block.set(EVENT, EVENT_6);
    block.set_field(TLB_CONTROL, 8, 0);
    let code = world.l2.run();
    clause!("nested-event-again", world.l2.vector() == Some(6), "exit {code:#x}");
    for (name, pe, code) in [("nested-unpaged", 0, 0xc9b), ("nested-real", 1, 0x9b)] {
        let mut world = World::new(0, 2);
        world.set(0x8000, 0, place(7).address() | RIGHTS);
        let block = world.l2.block;
        block.set(CR0, block.get(CR0) & !(1 << 31 | pe));
        block.set(EFER, block.get(EFER) & !0x500);
        block.set_segment(CS, 0, code, 0xffff, 0);
        block.set(RIP, 0x8800);
        // In real mode the code has an addition to BX + SI.
        (world.l2.registers.general[RBX], world.l2.registers.general[RSI]) = (0x8100, 0);
        let (code, value) = (world.l2.run(), block.get(RAX) & 0xffff);
        clause!(name, code == exit::VMMCALL && value == 7, "exit {code:#x}, {value:#x}");
    }
    Ok(())
}

/// Leaves that name a device, or no memory; tables that are their own, and in odd places.
pub(super) fn places() -> Verdict {
    let mut world = World::new(0, 2);
    let at = DATA + 200 * PAGE;
    let version = code!("mov dword ptr [rdi], 1"; "mov ebx, [rdi + 0x10]");
    let word = code!("mov ebx, [rdi + 0x30]");
    for (name, address, code) in [
        ("nested-io-apic", 0xfec0_0000, version),
        ("nested-local-apic", 0xfee0_0000, word),
        ("nested-hole", 0xf000_0000, word),
    ] {
        if name == "nested-local-apic" && apic::is_x2apic() {
            skip(name, "its interface is x2APIC");
            continue;
        }
        world.set(at, 0, address | RIGHTS);
        // A guest without nested paging finds there what the probe does.
        let mut plain = L2::with_pages(1, code);
        let found = [(&mut plain, address), (&mut world.l2, WINDOW + 200 * PAGE)].map(|(l2, base)| {
            l2.registers.general[RDI] = base;
            (l2.run_at(code), l2.registers.general[RBX])
        });
        clause!(name, found[0] == found[1], "{address:#x}: {found:x?}");
        let is_none = found[1] == (exit::VMMCALL, 0xffff_ffff);
        clause!("nested-ones", is_none == (name == "nested-hole"), "{name}: {found:x?}");
    }
    for level in 1..4 {
        let address = DATA + PAGE + MIB_2 + if level == 1 { 0 } else { GIB };
        // Word 1 of a table is the table: what the guest reads there.
        let entry = world.nested(address, level);
        let table = core::ptr::from_ref(entry).addr() as u64 & !(PAGE - 1);
        entry.store(table | RIGHTS, Ordering::SeqCst);
        world.own(WINDOW_TABLE, 200, address | RIGHTS);
        let found = world.run(Access::Read, 200, 1);
        let value = Found::Value(entry.load(Ordering::SeqCst));
        clause!("nested-loop", found == value, "level {level}: {found:x?}, not {value:x?}");
    }
    let mut world = World::new(0, 2);
    let root = world.l2.block.get(NESTED_CR3);
    if let Some(last) = last_page() {
        last.write(&[0, DATA].map(|at| world.nested(at, 3).load(Ordering::SeqCst)));
        world.l2.block.set(NESTED_CR3, last.address());
        let found = world.run(Access::Read, TRIED, 1);
        clause!("nested-last-page", found == Found::Value(TRIED), "{last:?}: {found:x?}");
    }
    world.l2.block.set(NESTED_CR3, root);
    if breaks("nested-no-table") {
        skip("nested-no-table", "the emulator ends");
        return Ok(());
    }
    for table in [0xf000_0000, memory_end() - PAGE] {
        world.set(DATA, 1, table | RIGHTS);
        let found = world.run(Access::Read, TRIED, 1);
        clause!("nested-no-table", matches!(found, Found::Fault(..)), "{found:x?}");
    }
    Ok(())
}
