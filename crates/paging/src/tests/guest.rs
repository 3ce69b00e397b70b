//! The walk of a guest's tables, mode by mode.

use std::cell::Cell;
use std::collections::BTreeMap;

use proptest::prelude::*;

use crate::Gpa;
use crate::guest::{Access, ControlRegisters, GuestPaging, PageFault, Translation, WalkError};

const NX: u64 = 1 << 63;
const LONG: ControlRegisters =
    ControlRegisters { cr0: 0x8001_0001, cr3: 0x1000, cr4: 0x20, efer: 0xd00, rflags: 2 };
const PAE: ControlRegisters =
    ControlRegisters { cr0: 0x8001_0001, cr3: 0x1020, cr4: 0x20, efer: 0x800, rflags: 2 };
const LEGACY: ControlRegisters =
    ControlRegisters { cr0: 0x8001_0001, cr3: 0x1000, cr4: 0x10, efer: 0, rflags: 2 };

const READ: Access = Access::empty();
const NOT_PRESENT: PageFault = PageFault::empty();
const PROTECTION: PageFault = PageFault::PRESENT;
const RESERVED: PageFault = PageFault::PRESENT.union(PageFault::RESERVED);

/// Guest memory as 8-byte words; words not listed are zero.
type Words<'a> = &'a [(u64, u64)];

/// Where a walk leads, and the size of the page.
type Found = Result<(Gpa, u64), WalkError<()>>;

fn walk(registers: &ControlRegisters, words: Words<'_>, linear: u64, access: Access) -> Found {
    let found = walk_by(&GuestPaging::new(registers, 40, true), words, linear, access)?;
    Ok((found.gpa, found.page_size))
}

fn walk_by(
    paging: &GuestPaging,
    words: Words<'_>,
    linear: u64,
    access: Access,
) -> Result<Translation, WalkError<()>> {
    let words: BTreeMap<u64, u64> = words.iter().copied().collect();
    paging.translate(linear, access, |gpa| Ok(words.get(&gpa.0).copied().unwrap_or(0)))
}

fn at(gpa: u64, page_size: u64) -> Found {
    Ok((Gpa(gpa), page_size))
}

fn fault<T>(code: PageFault) -> Result<T, WalkError<()>> {
    Err(WalkError::PageFault(code))
}

/// Linear 0x1235 through one table of each level, with these flags in their entries.
fn long(flags: [u64; 4]) -> [(u64, u64); 4] {
    [0, 1, 2, 3].map(|level| {
        let entry = 0x1000 * (level as u64 + 1) + if level == 3 { 8 } else { 0 };
        (entry, (0x1000 * (level as u64 + 2)) | flags[level])
    })
}

/// The same, where one entry has other flags than P, R/W, and U/S.
fn long_but(level: usize, flags: u64) -> [(u64, u64); 4] {
    let mut all = [7; 4];
    all[level] = flags;
    long(all)
}

const MAPPED: Found = Ok((Gpa(0x5235), 0x1000));

#[test]
fn h9_refuses_linear_addresses_that_are_not_canonical() {
    for linear in [1 << 47, !0 << 48, 1 << 63, !(1 << 47)] {
        assert_eq!(walk(&LONG, &[], linear, READ), Err(WalkError::NonCanonical), "{linear:#x}");
    }
    assert_eq!(walk(&LONG, &[], !0 << 47, READ), fault(NOT_PRESENT));
}

#[test]
fn each_level_of_long_mode_can_refuse() {
    let (write, user, fetch) = (Access::WRITE, Access::USER, Access::FETCH);
    let protection = |of| fault(PROTECTION | of);
    for level in 0..4 {
        for (flags, access, expected) in [
            (6, READ, fault(NOT_PRESENT)),
            (6, write | user, fault(PageFault::WRITE | PageFault::USER)),
            (7, READ, MAPPED),
            (3, user, protection(PageFault::USER)),
            (3, READ, MAPPED),
            (5, write, protection(PageFault::WRITE)),
            (7 | NX, fetch, protection(PageFault::FETCH)),
            (7 | NX, write | user, MAPPED),
        ] {
            let found = walk(&LONG, &long_but(level, flags), 0x1235, access);
            assert_eq!(found, expected, "{flags:#x} at {level}, {access:?}");
        }
    }
}

#[test]
fn bits_that_a_walk_sets() {
    const A: u64 = 1 << 5;
    const D: u64 = 1 << 6;
    let used = |registers: &ControlRegisters, linear, access, count| {
        let paging = GuestPaging::new(registers, 40, true);
        (0..count).map(|index| paging.used_bits(linear, access, index, count)).collect::<Vec<_>>()
    };
    assert_eq!(used(&LONG, 0x1235, READ, 4), [A; 4]);
    assert_eq!(used(&LONG, 0x1235, Access::USER, 4), [A; 4]);
    assert_eq!(used(&LONG, 0x1235, Access::WRITE, 4), [A, A, A, A | D]);
    assert_eq!(used(&LONG, 0x1235, Access::WRITE, 3), [A, A, A | D], "a large page");
    assert_eq!(used(&PAE, 0x1235, Access::WRITE, 3), [0, A, A | D], "the upper four have none");
    assert_eq!(used(&PAE, 0x1235, READ, 2), [0, A]);
    assert_eq!(used(&LEGACY, 0x1235, Access::WRITE, 2), [A, (A | D) << 32], "the second of two entries");
    assert_eq!(used(&LEGACY, 0x0040_0234, Access::WRITE, 2), [A << 32, A | D]);
    assert_eq!(used(&LEGACY, 0x0040_0234, Access::WRITE, 1), [(A | D) << 32]);
}

#[test]
fn registers_decide_what_a_supervisor_may_do() {
    let without_wp = ControlRegisters { cr0: LONG.cr0 & !(1 << 16), ..LONG };
    let smep = ControlRegisters { cr4: LONG.cr4 | 1 << 20, ..LONG };
    let without_nxe = ControlRegisters { efer: 0x500, ..LONG };
    let (write, user, fetch) = (Access::WRITE, Access::USER, Access::FETCH);
    let refused = fault(PROTECTION | PageFault::WRITE | PageFault::USER);
    for (what, registers, words, access, expected) in [
        ("any store without WP", without_wp, &long([5; 4])[..], write, MAPPED),
        ("but no user's", without_wp, &long([5; 4]), write | user, refused),
        ("SMEP", smep, &long([7; 4]), fetch, fault(PROTECTION | PageFault::FETCH)),
        ("SMEP, by a user", smep, &long([7; 4]), fetch | user, MAPPED),
        ("SMEP, of a supervisor's page", smep, &long_but(3, 3), fetch, MAPPED),
        ("a fetch is not told where none can be refused", without_nxe, &[], fetch, fault(NOT_PRESENT)),
        ("and is where one can", LONG, &[], fetch, fault(PageFault::FETCH)),
    ] {
        assert_eq!(walk(&registers, words, 0x1235, access), expected, "{what}");
    }
}

/// A supervisor access to a user page: allowed only by AC, and only if the program itself makes it.
#[test]
fn u11_smap_refuses_a_supervisor_access_to_a_user_page() {
    const AC: u64 = 1 << 18;
    let smap = |rflags| ControlRegisters { cr4: LONG.cr4 | 1 << 21, rflags, ..LONG };
    let (user, kernel) = (long([7; 4]), long([7, 7, 7, 3]));
    for (access, code) in [(READ, PROTECTION), (Access::WRITE, PROTECTION | PageFault::WRITE)] {
        assert_eq!(walk(&smap(2), &user, 0x1235, access), fault(code));
        assert_eq!(walk(&smap(2 | AC), &user, 0x1235, access), MAPPED, "AC allows it");
        assert_eq!(walk(&LONG, &user, 0x1235, access), MAPPED, "SMAP is off");
        assert_eq!(walk(&smap(2), &kernel, 0x1235, access), MAPPED, "one level is a kernel's");
        assert_eq!(walk(&smap(2), &user, 0x1235, access | Access::USER), MAPPED);
        // Implicit accesses are supervisor accesses, AC or not, whatever runs.
        for implicit in [access | Access::IMPLICIT, access | Access::IMPLICIT | Access::USER] {
            assert_eq!(walk(&smap(2 | AC), &user, 0x1235, implicit), fault(code));
            assert_eq!(walk(&smap(2), &kernel, 0x1235, implicit), MAPPED);
        }
    }
    assert_eq!(walk(&smap(2), &user, 0x1235, Access::FETCH), MAPPED, "fetches are SMEP's");
}

#[test]
fn reserved_bits_of_long_mode() {
    let without_nxe = ControlRegisters { efer: 0x500, ..LONG };
    for level in 0..4 {
        let beyond = long_but(level, 7 | 1 << 40);
        assert_eq!(walk(&LONG, &beyond, 0x1235, READ), fault(RESERVED), "beyond 40 bits at {level}");
        let found = walk(&without_nxe, &long_but(level, 7 | NX), 0x1235, READ);
        assert_eq!(found, fault(RESERVED), "NX without NXE at {level}");
    }
    assert_eq!(walk(&LONG, &long_but(0, 0x87), 0x1235, READ), fault(RESERVED), "PS in a PML4E");
    let huge = |flags: u64| [(0x1000, 0x2007), (0x2000, 1 << 30 | 0x87 | flags)];
    let large = |flags: u64| [(0x1000, 0x2007), (0x2000, 0x3007), (0x3008, 0x40_0087 | flags)];
    assert_eq!(walk(&LONG, &huge(0), 0x1235, READ), at(1 << 30 | 0x1235, 1 << 30));
    for bit in 13..30 {
        assert_eq!(walk(&LONG, &huge(1 << bit), 0x1235, READ), fault(RESERVED), "bit {bit} of a 1 GiB page");
    }
    for bit in 13..21 {
        assert_eq!(
            walk(&LONG, &large(1 << bit), 0x20_0000, READ),
            fault(RESERVED),
            "bit {bit} of a 2 MiB page"
        );
    }
    let pat = 1 << 12;
    assert_eq!(walk(&LONG, &large(pat), 0x21_2345, READ), at(0x41_2345, 2 << 20), "PAT is ignored");
    let no_huge_pages = GuestPaging::new(&LONG, 40, false);
    let result: Result<_, WalkError<()>> =
        no_huge_pages.translate(0, READ, |gpa| Ok(if gpa.0 == 0x1000 { 0x2007 } else { huge(0)[1].1 }));
    assert_eq!(result, fault(RESERVED), "CPUID lacks 1 GiB pages");
}

#[test]
fn pae_pages() {
    // 0xc0601235: PDPTE 3 at 0x1038, PDE 3, PTE 1. The PDPTE has neither R/W nor U/S.
    let words = [(0x1038, 0x2001), (0x2018, 0x3007), (0x3008, 0x5007)];
    let all = Access::WRITE | Access::USER | Access::FETCH;
    assert_eq!(walk(&PAE, &words, 0xc060_1235, all), MAPPED);
    assert_eq!(walk(&PAE, &words, 0xffff_ffff_c060_1235, all), MAPPED, "upper bits do not count");
    let large = [(0x1038, 0x2001), (0x2018, 0xff_ffe0_0087)];
    assert_eq!(walk(&PAE, &large, 0xc060_1235, READ), at(0xff_ffe0_1235, 2 << 20));
    for bit in [1, 2, 5, 6, 7, 8, 40, 51, 52, 62, 63] {
        let words = [(0x1038, 0x2001 | 1 << bit), words[1], words[2]];
        assert_eq!(walk(&PAE, &words, 0xc060_1235, READ), fault(RESERVED), "bit {bit} of a PDPTE");
    }
    for bit in [40, 52, 62] {
        let words = [words[0], words[1], (0x3008, 0x5007 | 1 << bit)];
        assert_eq!(walk(&PAE, &words, 0xc060_1235, READ), fault(RESERVED), "bit {bit} of a PTE");
    }
    let words = [words[0], words[1], (0x3008, 0x5007 | NX)];
    assert_eq!(walk(&PAE, &words, 0xc060_1235, Access::FETCH), fault(PROTECTION | PageFault::FETCH));
}

#[test]
fn legacy_pages() {
    // 0x00c01235: PDE 3 at 0x100c, the upper half of its word; PTE 1 at 0x2004, likewise.
    let words = [(0x1008, 0x2007 << 32), (0x2000, 0x5007 << 32)];
    assert_eq!(walk(&LEGACY, &words, 0x00c0_1235, Access::WRITE | Access::USER), MAPPED);
    let words = [(0x1008, 0x2007 << 32), (0x2000, 0x5005 << 32)];
    assert_eq!(walk(&LEGACY, &words, 0x00c0_1235, Access::WRITE), fault(PROTECTION | PageFault::WRITE));
    assert_eq!(walk(&LEGACY, &words, 0x0080_1235, READ), fault(NOT_PRESENT));
    // The lower halves, beside other entries.
    let words = |flags: u64| [(0x1000, 0xffff_fffe_0000_2000 | flags), (0x2008, 0xffff_fffe_0000_5007)];
    assert_eq!(walk(&LEGACY, &words(7), 0x2235, READ), at(0x5235, 0x1000));
    assert_eq!(walk(&LEGACY, &words(6), 0x2235, READ), fault(NOT_PRESENT));
}

#[test]
fn large_legacy_pages_reach_beyond_32_bits() {
    let large = [(0x1008, (0x0040_0087 | 0xab << 13) << 32)];
    assert_eq!(walk(&LEGACY, &large, 0x00c1_2345, READ), at(0xab_0041_2345, 4 << 20));
    let reserved = [(0x1008, (0x0060_0087) << 32)];
    assert_eq!(walk(&LEGACY, &reserved, 0x00c1_2345, READ), fault(RESERVED), "bit 21");
    for (width, bit) in [32, 36, 40].into_iter().flat_map(|width| (0..8).map(move |bit| (width, bit))) {
        let entry = (0x0040_0087 | 1 << (13 + bit)) << 32;
        let paging = GuestPaging::new(&LEGACY, width, true);
        let result = paging.translate(0x00c1_2345, READ, |_| Ok(entry));
        let result = result.map(|found| (found.gpa, found.page_size));
        let is_within = 32 + bit < width;
        let expected = if is_within { at(1 << (32 + bit) | 0x41_2345, 4 << 20) } else { fault(RESERVED) };
        assert_eq!(result, expected, "bit {bit} of {width} bits");
    }
    let registers = ControlRegisters { cr4: 0, ..LEGACY };
    let words = [(0x1008, 0x2087 << 32), (0x2000, 0x5007 << 32)];
    assert_eq!(walk(&registers, &words, 0x00c0_1235, READ), MAPPED, "PS without PSE");
}

#[test]
fn without_paging_nothing_is_read() {
    let registers = ControlRegisters { cr0: 1, ..LONG };
    let result: Result<_, WalkError<()>> =
        GuestPaging::new(&registers, 40, true).translate(0x1_2345_6789, Access::all(), |_| panic!("read"));
    assert_eq!(result.map(|found| (found.gpa, found.page_size)), at(0x2345_6789, 0x1000));
}

/// Section 15.25.7: each access is a user's, whatever the registers say of supervisors.
#[test]
fn nested_tables_of_a_guest_are_walked_for_users() {
    const A: u64 = 1 << 5;
    const D: u64 = 1 << 6;
    let paging = |registers| GuestPaging::nested(registers, 40, true);
    let strict = ControlRegisters { cr4: 0x30_0020, rflags: 0, ..LONG };
    let user = Access::USER;
    for level in 0..4 {
        let walk = |flags, access| walk_by(&paging(&strict), &long_but(level, flags), 0x1235, user | access);
        let rights = |flags| {
            let found = walk(flags, READ).expect("is mapped");
            assert_eq!(found.gpa, Gpa(0x5235));
            (found.is_writable, found.is_executable, found.is_dirty)
        };
        let is_leaf = level == 3;
        assert_eq!(rights(7), (true, true, false));
        assert_eq!(rights(5), (false, true, false), "at {level}");
        assert_eq!(rights(7 | NX), (true, false, false), "at {level}");
        assert_eq!(rights(7 | A | D), (true, true, is_leaf), "at {level}");
        let refused = PROTECTION | PageFault::USER;
        assert_eq!(walk(3, READ), fault(refused), "a supervisor's at {level}");
        assert_eq!(walk(5, Access::WRITE), fault(refused | PageFault::WRITE), "WP is clear");
        assert!(walk(7, Access::FETCH).is_ok(), "SMEP is set");
    }
    let not_there = |registers, address| walk_by(&paging(registers), &[], address, user);
    for (registers, address) in [(&LONG, 1 << 48), (&LONG, !0 << 47), (&PAE, 1 << 32), (&LEGACY, 1 << 40)] {
        assert_eq!(not_there(registers, address), fault(PageFault::USER), "{address:#x}");
    }
    let without_nx = ControlRegisters { efer: 0x500, ..LONG };
    for (registers, fetch) in [(&LONG, PageFault::FETCH), (&without_nx, PageFault::empty())] {
        let code = paging(registers).unreadable(user | Access::FETCH);
        assert_eq!(code, RESERVED | PageFault::USER | fetch, "only where fetches can be refused");
    }
    let words = [(0x1000 + 256 * 8, 0x4000_0087)];
    let found = walk_by(&paging(&LONG), &[words[0], (0x4000_0000, 0x4000_0087)], 1 << 47, user);
    assert_eq!(found, fault(RESERVED | PageFault::USER), "its upper half is translated: this is no table");
}

/// Entries such as a careless or hostile guest might write: mostly present, with any other bit.
fn garbage() -> impl Strategy<Value = u64> {
    prop_oneof![
        any::<u64>(),
        any::<u64>().prop_map(|entry| entry | 0x7),
        (0u64..1 << 32).prop_map(|entry| entry | 7)
    ]
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 4096, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn g9_garbage_ends_in_an_address_or_an_error(
        cr0 in any::<u64>(), cr3 in any::<u64>(), cr4 in any::<u64>(), efer in any::<u64>(),
        rflags in any::<u64>(),
        physical_bits in any::<u32>(), gigabyte_pages: bool,
        linear in prop_oneof![any::<u64>(), 0u64..1 << 47],
        access in (0..16u8).prop_map(Access::from_bits_truncate),
        entries in prop::collection::vec(garbage(), 4),
    ) {
        let registers = ControlRegisters { cr0: cr0 | 1 << 31, cr3, cr4, efer, rflags };
        let width = physical_bits.clamp(32, 52);
        let reads = Cell::new(0);
        let result = GuestPaging::new(&registers, physical_bits, gigabyte_pages).translate(linear, access, |gpa| {
            assert_eq!(gpa.0 % 8, 0);
            assert_eq!(gpa.0 >> width, 0, "reads beyond the guest's physical width");
            let entry = entries.get(reads.replace(reads.get() + 1)).copied();
            entry.ok_or("a fifth read")
        });
        match result {
            Ok(found) => {
                prop_assert_eq!(found.gpa.0 >> width, 0);
                prop_assert_eq!((found.gpa.0 ^ linear) & (found.page_size - 1), 0);
            }
            Err(WalkError::PageFault(code)) => {
                prop_assert_eq!(code.contains(PageFault::WRITE), access.contains(Access::WRITE));
                let is_user = access & (Access::USER | Access::IMPLICIT) == Access::USER;
                prop_assert_eq!(code.contains(PageFault::USER), is_user);
            }
            Err(error) => prop_assert_eq!(error, WalkError::NonCanonical),
        }
    }
}
