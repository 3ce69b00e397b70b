//! The processors, with nested tables that are written by hand.

use coherence::asid::TlbControl;
use paging::Level;

use super::cpu::{Hw, Roots};
use super::format::{Arch, Format};
use super::instruction::Tlbi;
use super::memory::{FRAME_SIZE, Memory};
use super::walk::Fault;
use crate::rng::Rng;

const VA: u64 = 0x40_3000;
const GPA: u64 = 0x7000;
const TAG: u32 = 1;

/// One or two CPUs, and a guest whose tables are in the first frames of a region that is mapped to
/// address 0.
struct World {
    hw: Hw,
    region: u64,
    /// The nested tables, the root first.
    nested: [u64; 4],
}

/// A nested leaf, or a pointer to a table, that allows everything and is dirty.
fn nested_entry(arch: Arch, pa: u64, is_table: bool) -> u64 {
    match (arch, is_table) {
        (Arch::Amd64, false) => pa | 0x67,
        (Arch::Amd64, true) => pa | 0x27,
        (Arch::Intel64, false) => pa | 0x337,
        (Arch::Intel64, true) => pa | 0x107,
        (Arch::Arm64, false) => pa | 0x4c3,
        (Arch::Arm64, true) => pa | 3,
    }
}

impl World {
    fn new(arch: Arch, seed: u64) -> Self {
        let mut memory = Memory::new(8, 2);
        let nested = std::array::from_fn(|_| memory.allocate_table().unwrap().unwrap());
        let region = memory.allocate_region(&[0, 1, 2, 3]).unwrap();
        let mut world = Self { hw: Hw::new(arch, 2, memory, Rng::new(seed)), region, nested };
        for level in 0..3 {
            world.put(nested[level], nested_entry(arch, nested[level + 1], true));
        }
        for page in 0..16 {
            world.put(nested[3] + page * 8, nested_entry(arch, region + page * FRAME_SIZE, false));
        }
        for (level, table) in [Level::Page512G, Level::Page1G, Level::Page2M].into_iter().zip(0u64..) {
            let entry = Format::guest_table(arch, (table + 1) * FRAME_SIZE);
            world.put(region + table * FRAME_SIZE + level.index(VA) as u64 * 8, entry);
        }
        world.map(GPA);
        world
    }

    fn put(&mut self, pa: u64, value: u64) {
        self.hw.memory.store(pa, value);
    }

    /// Points the guest's page elsewhere.
    fn map(&mut self, gpa: u64) {
        let entry = Format::guest_leaf(self.hw.arch(), gpa, Level::Page4K, true, true);
        let dirty = self.hw.format(super::format::Stage::Guest).used(entry, true);
        self.put(self.region + 3 * FRAME_SIZE + Level::Page4K.index(VA) as u64 * 8, dirty);
    }

    fn enter(&mut self, cpu: usize) {
        self.hw.enter(cpu, TAG, Roots { nested: self.nested[0], guest: 0 });
    }

    /// The possible targets of a load, by many tries.
    fn reachable(&mut self, cpu: usize) -> Vec<u64> {
        let mut found = Vec::new();
        for _ in 0..300 {
            let place = self.hw.access(cpu, VA, None).unwrap().translation.nested.place.pa - self.region;
            let page = place & !(FRAME_SIZE - 1);
            if !found.contains(&page) {
                found.push(page);
            }
        }
        found.sort_unstable();
        found
    }
}

#[test]
fn a_processor_may_use_what_was_replaced_until_it_is_invalidated() {
    for arch in [Arch::Amd64, Arch::Arm64] {
        let mut world = World::new(arch, 1);
        world.enter(0);
        assert_eq!(world.reachable(0), [GPA]);
        world.map(0x8000);
        assert_eq!(world.reachable(0), [GPA, 0x8000], "{arch:?}: either");
        world.hw.invalidate_own(0, VA + FRAME_SIZE);
        assert_eq!(world.reachable(0), [GPA, 0x8000], "{arch:?}: that was another page");
        world.hw.invalidate_own(0, VA);
        assert_eq!(world.reachable(0), [0x8000], "{arch:?}");
    }
}

#[test]
fn entries_outlive_exits_and_go_with_their_tag() {
    let mut world = World::new(Arch::Amd64, 2);
    world.enter(0);
    world.hw.leave(0);
    world.map(0x8000);
    world.enter(0);
    assert_eq!(world.reachable(0), [GPA, 0x8000], "it could have been loaded before the exit");
    world.hw.leave(0);
    world.map(0x9000);
    world.hw.tlb_control(0, TAG, TlbControl::FlushAsid);
    world.enter(0);
    assert_eq!(world.reachable(0), [0x9000]);
    world.hw.leave(0);
    world.map(0xa000);
    world.hw.tlb_control(0, TAG + 1, TlbControl::FlushAsid);
    world.enter(0);
    assert_eq!(world.reachable(0), [0x9000, 0xa000], "another tag was flushed");
    world.enter(1);
    assert_eq!(world.reachable(1), [0xa000], "another CPU has nothing of it");
}

#[test]
fn amd64_does_not_walk_for_a_guest_that_does_not_run_and_arm64_does() {
    for (arch, expected) in [(Arch::Amd64, &[GPA, 0x9000][..]), (Arch::Arm64, &[GPA, 0x8000, 0x9000])] {
        let mut world = World::new(arch, 3);
        world.enter(0);
        world.hw.leave(0);
        world.map(0x8000);
        world.map(0x9000);
        world.enter(0);
        assert_eq!(world.reachable(0), expected, "{arch:?}");
    }
}

#[test]
fn tlbi_is_done_by_the_barrier_and_on_all_processors() {
    let mut world = World::new(Arch::Arm64, 4);
    world.enter(0);
    world.enter(1);
    world.map(0x8000);
    world.hw.tlbi(0, TAG, Tlbi::Va { va: VA, level: None });
    assert_eq!(world.reachable(1), [GPA, 0x8000], "no barrier yet");
    world.hw.dsb(1);
    assert_eq!(world.reachable(1), [GPA, 0x8000], "another processor's barrier");
    world.hw.dsb(0);
    assert_eq!((world.reachable(0), world.reachable(1)), (vec![0x8000], vec![0x8000]));
    world.map(0x9000);
    world.hw.tlbi(0, TAG, Tlbi::VmallLocal);
    world.hw.dsb(0);
    assert_eq!((world.reachable(0), world.reachable(1)), (vec![0x9000], vec![0x8000, 0x9000]));
}

/// Points the nested leaf of the guest's page to another frame, without an invalidation.
fn move_nested(world: &mut World, page: u64) {
    let leaf = world.nested[3] + (GPA / FRAME_SIZE) * 8;
    world.put(leaf, 0);
    world.put(leaf, nested_entry(Arch::Arm64, world.region + page, false));
}

#[test]
fn p18_p19_stage_2_is_invalidated_with_the_right_hint_and_the_combined_entries_too() {
    let stage2 = |level| Tlbi::Stage2 { ipa: GPA, len: FRAME_SIZE, level };
    let cases = [
        (vec![stage2(None), Tlbi::Vmall], true),
        (vec![stage2(Some(Level::Page4K)), Tlbi::Vmall], true),
        (vec![stage2(Some(Level::Page2M)), Tlbi::Vmall], false),
        (vec![stage2(None)], false),
        (vec![Tlbi::Vmall], false),
        (vec![Tlbi::VmallS12], true),
    ];
    for (instructions, is_enough) in cases {
        let mut world = World::new(Arch::Arm64, 5);
        world.enter(0);
        move_nested(&mut world, 0x9000);
        instructions.iter().for_each(|&instruction| world.hw.tlbi(0, TAG, instruction));
        world.hw.dsb(0);
        let met_old = (0..300).any(|_| matches!(world.hw.access(0, VA, None), Err(Fault::Forbidden(_))));
        assert_eq!(met_old, !is_enough, "{instructions:?}");
    }
}

#[test]
fn a_walk_that_gets_to_a_free_table_is_noticed() {
    for arch in [Arch::Amd64, Arch::Arm64] {
        let mut world = World::new(arch, 6);
        world.enter(0);
        world.put(world.nested[2], 0);
        assert!(world.hw.memory.free_table(world.nested[3]));
        let is_noticed = (0..300).any(|_| matches!(world.hw.access(0, VA, None), Err(Fault::Forbidden(_))));
        assert!(is_noticed, "{arch:?}: it may hold the entry that pointed there");
    }
}

#[test]
fn stores_set_dirty_bits_in_memory_unless_the_processor_holds_the_leaf_as_dirty() {
    let mut world = World::new(Arch::Amd64, 7);
    let leaf = world.nested[3] + (GPA / FRAME_SIZE) * 8;
    let entry = nested_entry(Arch::Amd64, world.region + GPA, false);
    world.put(leaf, entry & !0x40);
    world.enter(0);
    assert_eq!(world.hw.is_noted(0, GPA), Some(false));
    world.hw.access(0, VA, Some(1)).unwrap();
    assert_eq!(world.hw.is_noted(0, GPA), Some(true));
    // Cleared by software, without a flush.
    world.put(leaf, entry & !0x40);
    let is_lost = (0..300).any(|_| {
        world.put(leaf, entry & !0x40);
        world.hw.access(0, VA, Some(2)).unwrap();
        world.hw.is_noted(0, GPA) == Some(false)
    });
    assert!(is_lost, "P14");
    world.hw.leave(0);
    world.hw.tlb_control(0, TAG, TlbControl::FlushAll);
    world.put(leaf, entry & !0x40);
    world.enter(0);
    world.hw.access(0, VA, Some(3)).unwrap();
    assert_eq!(world.hw.is_noted(0, GPA), Some(true));
}

#[test]
fn what_nested_tables_forbid_faults() {
    let mut world = World::new(Arch::Amd64, 8);
    let leaf = world.nested[3] + (GPA / FRAME_SIZE) * 8;
    world.put(leaf, (world.region + GPA) | 0x25);
    world.enter(0);
    assert!(world.hw.access(0, VA, None).is_ok());
    let fault = Fault::Nested { gpa: GPA, in_walk: false, store: true };
    assert_eq!(world.hw.access(0, VA, Some(1)).unwrap_err(), fault);
    world.put(world.nested[3] + 3 * 8, 0);
    world.hw.leave(0);
    world.hw.tlb_control(0, TAG, TlbControl::FlushAll);
    world.enter(0);
    let fault = Fault::Nested {
        gpa: 3 * FRAME_SIZE + Level::Page4K.index(VA) as u64 * 8,
        in_walk: true,
        store: false,
    };
    assert_eq!(world.hw.access(0, VA, None).unwrap_err(), fault);
    assert_eq!(
        world.hw.load_direct(0, 20 * FRAME_SIZE).unwrap_err(),
        Fault::Nested { gpa: 20 * FRAME_SIZE, in_walk: false, store: false }
    );
}

#[test]
fn p17_p18_operands_are_read_as_the_encoder_means_them() {
    use coherence::tlbi::{Granule, LeafLevel, page, range};
    let granule = Granule::Size4K;
    let stage2 = |ipa, len, level| Some(Tlbi::Stage2 { ipa, len, level });
    assert_eq!(Tlbi::page(page(granule, 0x7000, None)), stage2(0x7000, 0x1000, None));
    let hinted = page(granule, 0x4020_0000, Some(LeafLevel::Two));
    assert_eq!(Tlbi::page(hinted), stage2(0x4020_0000, 0x1000, Some(Level::Page2M)));
    let gibibyte = range(granule, 1 << 30, 3, 4, Some(LeafLevel::One));
    assert_eq!(Tlbi::range(gibibyte), stage2(1 << 30, 1 << 30, Some(Level::Page1G)));
    assert_eq!(Tlbi::range(range(granule, 0x5000, 0, 1, None)), stage2(0x5000, 0x2000, None));
    // An unused granule, or none.
    assert_eq!(Tlbi::range(range(Granule::Size64K, 0, 0, 1, None)), None);
    assert_eq!((Tlbi::range(0), Tlbi::page(0b1111 << 44), Tlbi::page(0b0100 << 44)), (None, None, None));
}

#[test]
fn o11_a_barrier_for_the_own_processor_leaves_the_others_as_they_are() {
    let mut world = World::new(Arch::Arm64, 9);
    world.enter(0);
    world.enter(1);
    world.map(0x8000);
    world.hw.tlbi(0, TAG, Tlbi::Vmall);
    world.hw.dsb_local(0);
    assert_eq!((world.reachable(0), world.reachable(1)), (vec![0x8000], vec![GPA, 0x8000]));
    world.hw.dsb(0);
    assert_eq!(world.reachable(1), [0x8000]);
    world.map(0x9000);
    world.hw.tlbi(0, TAG, Tlbi::VaLocal { va: VA, level: None });
    world.hw.dsb(0);
    assert_eq!((world.reachable(0), world.reachable(1)), (vec![0x9000], vec![0x8000, 0x9000]));
    world.map(0xa000);
    world.hw.tlbi(0, TAG + 1, Tlbi::AllLocal);
    world.hw.dsb_local(0);
    assert_eq!((world.reachable(0), world.reachable(1).len()), (vec![0xa000], 3));
}

/// On Intel64: what can be loaded on CPU 0 after `act`, where the guest's page went from 7 to 8,
/// and page 8 from one frame to another.
fn after(tag: u32, act: impl FnOnce(&mut Hw, u64)) -> Vec<u64> {
    let mut world = World::new(Arch::Intel64, 7);
    let root = world.nested[0];
    world.enter(0);
    world.map(0x8000);
    world.hw.leave(0);
    let moved = nested_entry(Arch::Intel64, world.region + 9 * FRAME_SIZE, false);
    world.put(world.nested[3] + 8 * 8, moved);
    act(&mut world.hw, root);
    world.hw.enter(0, tag, Roots { nested: root, guest: 0 });
    world.reachable(0)
}

#[test]
fn invvpid_drops_combined_entries_and_invept_all_by_its_root() {
    use stay::tagged::two_flushes::{Invept, Invvpid};
    const VPID: u16 = TAG as u16;
    let all = [GPA, 0x8000, 0x9000];
    assert_eq!(after(TAG, |_, _| ()), all, "exit and entry drop nothing");
    // What nested tables alone have led to is not the VPID's.
    assert_eq!(after(TAG + 1, |_, _| ()), [0x8000, 0x9000]);
    assert_eq!(after(TAG, |hw, _| hw.invvpid(0, Invvpid::Vpid(VPID))), [0x8000, 0x9000]);
    assert_eq!(after(TAG, |hw, _| hw.invvpid(0, Invvpid::ButGlobals(VPID))), [0x8000, 0x9000]);
    assert_eq!(after(TAG, |hw, _| hw.invvpid(0, Invvpid::All)), [0x8000, 0x9000]);
    let address = Invvpid::Address { vpid: VPID, address: VA };
    assert_eq!(after(TAG, |hw, _| hw.invvpid(0, address)), [0x8000, 0x9000]);
    assert_eq!(after(TAG, |hw, _| hw.invvpid(0, Invvpid::Vpid(VPID + 1))), all);
    assert_eq!(after(TAG, |hw, _| hw.invvpid(1, Invvpid::All)), all, "another CPU");
    assert_eq!(after(TAG, |hw, root| hw.invept(0, Invept::Root(root))), [0x9000]);
    assert_eq!(after(TAG, |hw, _| hw.invept(0, Invept::All)), [0x9000]);
    assert_eq!(after(TAG, |hw, root| hw.invept(0, Invept::Root(root + FRAME_SIZE))), all);
}

#[test]
fn without_vpids_entry_and_exit_leave_what_nested_tables_alone_have_led_to() {
    let untagged = |hw: &mut Hw, _| {
        hw.has_vpids = false;
        hw.invvpid(0, stay::tagged::two_flushes::Invvpid::Vpid(TAG as u16));
    };
    assert_eq!(after(0, untagged), [0x8000, 0x9000]);
}

#[test]
fn an_ept_violation_drops_what_the_access_would_use() {
    let all = [GPA, 0x8000, 0x9000];
    let violated = |va: Option<u64>, gpa: u64| {
        let mut world = World::new(Arch::Intel64, 9);
        world.enter(0);
        world.map(0x8000);
        let moved = nested_entry(Arch::Intel64, world.region + 9 * FRAME_SIZE, false);
        world.put(world.nested[3] + 8 * 8, moved);
        world.hw.violate(0, va, gpa);
        world.reachable(0)
    };
    assert_eq!(violated(None, GPA), all, "combined ones are by a linear address");
    assert_eq!(violated(Some(VA), 0x8000), [0x9000]);
    assert_eq!(violated(Some(VA), GPA), [0x8000, 0x9000]);
    assert_eq!(violated(Some(VA + FRAME_SIZE), 0x8000), all);
}

#[test]
fn global_pages_outlive_a_load_of_the_root_and_not_invlpg() {
    let mut world = World::new(Arch::Intel64, 10);
    world.hw.globals = true;
    world.enter(0);
    world.map(0x8000);
    world.hw.reload_guest_root(0, 0);
    assert_eq!(world.reachable(0), [GPA, 0x8000]);
    world.hw.invalidate_own(0, VA);
    assert_eq!(world.reachable(0), [0x8000]);
}
