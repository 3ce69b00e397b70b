//! Flushes against a hypervisor that decodes each call, and takes it literally.

use super::*;
use core::ops::ControlFlow;
use proptest::prelude::*;
use quell_coherence::shootdown::*;
use quell_tlfs::{
    Call, CallRegisters, EmptyTargets, FlushScope, InputError, InputPage, InputSource, Profile, Status,
    VaWidth, XMM_FAST_WORDS, XMM_WORDS,
};
use std::collections::BTreeSet;
use std::vec::Vec;
use zerocopy::IntoBytes;

const GPA: u64 = 0x7000;
const FULL: Interface = Interface { vp_sets: true, xmm_input: true, extended_ranges: true };
const PLAIN: Interface = Interface { vp_sets: true, xmm_input: false, extended_ranges: false };

/// One call's input.
struct Input<'p> {
    page: &'p [u64; PAGE_WORDS],
    registers: [u64; XMM_FAST_WORDS],
}

impl InputSource for Input<'_> {
    fn read(&self, gpa: u64, into: &mut [u8]) -> Result<(), InputError> {
        assert_eq!(gpa, GPA);
        into.copy_from_slice(&self.page.as_bytes()[..into.len()]);
        Ok(())
    }

    fn xmm_words(&self) -> [u64; XMM_WORDS] {
        self.registers[2..].try_into().unwrap()
    }
}

/// The effect of a call.
#[derive(Debug, PartialEq, Eq)]
struct Seen {
    vps: Vec<u32>,
    space: Option<u64>,
    /// First and last address of each element; `None` stands for everything.
    ranges: Option<Vec<(u64, u64)>>,
}

/// Decodes calls as strictly as possible, and does up to `step` elements of a list at a time.
struct Host {
    interface: Interface,
    step: usize,
    fails: bool,
    calls: u32,
    seen: Vec<Seen>,
}

impl Host {
    fn new(interface: Interface) -> Self {
        Self { interface, step: usize::MAX, fails: false, calls: 0, seen: Vec::new() }
    }

    fn execute(&mut self, call: &EncodedCall, page: &[u64; PAGE_WORDS]) -> HvResult {
        self.calls += 1;
        if self.fails && self.calls > 1 {
            return HvResult::of(Status::INVALID_PARAMETER, call.control.rep_start());
        }
        let registers = call.registers(page);
        let input = Input { page, registers };
        let (first, second) = if call.control.fast() { (registers[0], registers[1]) } else { (GPA, !0) };
        let profile = Profile {
            empty_targets: EmptyTargets::Strict,
            va_width: VaWidth::Bits48,
            xmm_input: self.interface.xmm_input,
            cluster_ipi: false,
            extended_ranges: self.interface.extended_ranges,
            guest_physical: false,
        };
        let mut copy = InputPage::new();
        let registers = CallRegisters { control: call.control.into_bits(), input: first, output: second };
        let decoded = quell_tlfs::decode(registers, &input, &mut copy, &profile);
        let Ok(Call::Flush(flush)) = decoded else { panic!("{decoded:?}") };
        assert!(flush.flags.non_global_only());
        let mut done = 0;
        let ranges = match flush.scope {
            FlushScope::Everything => None,
            FlushScope::List(list) => {
                done = (usize::from(call.control.rep_start()) + self.step).min(usize::from(flush.rep_count));
                let taken = list.elements().take_while(|(index, _)| usize::from(*index) < done);
                Some(taken.filter_map(|(_, range)| Some((range?.start, range?.last() + 0xfff))).collect())
            }
        };
        let vps = (0..MAX_VPS).filter(|vp| flush.targets.contains(*vp)).collect();
        let space = (!flush.flags.all_address_spaces()).then_some(flush.address_space);
        self.seen.push(Seen { vps, space, ranges });
        HvResult::of(Status::SUCCESS, done as u16)
    }
}

struct NoTlb;

impl Tlb for NoTlb {
    fn load(&mut self, _root: u64, _tag: Tag, _keep: bool) {}
    fn load_none(&mut self) {}
    fn flush_everything(&mut self) {}
    fn flush_range(&mut self, _range: PageRange, _tables: bool) {}
    fn relax(&mut self, _turns: u64) -> ControlFlow<()> {
        ControlFlow::Break(())
    }
}

/// Flushes `ranges` from the first of CPUs with `indices`, all of which use the space; returns the
/// interrupted CPUs.
fn flush_all(indices: &[VpIndex], ranges: &[PageRange], host: &mut Host, names_space: bool) -> Vec<usize> {
    let slots: Vec<_> = indices.iter().map(|_| CpuSlot::new()).collect();
    let spaces = Spaces::new();
    let space: AddressSpace<4> = spaces.create(0x1234_5000);
    let claim = |index| {
        let cpu: Option<LocalCpu<'_, &AddressSpace<4>, 4, 1>> = Cpus::new(&slots, &[]).claim(index);
        let mut cpu = cpu.expect("each once");
        cpu.switch_to(&space, &mut NoTlb);
        cpu
    };
    let mut cpus: Vec<_> = (0..indices.len()).map(claim).collect();
    let (from, others) = cpus.split_first_mut().expect("one at least");
    let (mut page, mut interrupted) = ([!0; PAGE_WORDS], Vec::new());
    let interrupts = ByInterrupt(|set: &TargetSet<4>| {
        interrupted.extend(set.iter());
        set.iter().for_each(|cpu| assert!(others[cpu - 1].serve(&mut NoTlb)));
    });
    let interface = host.interface;
    let limit = ListLimit { pages: u64::MAX, elements: 2000 };
    let mut remote =
        ByHypercall::new(&mut page, indices, interface, interrupts, |call, page| host.execute(call, page));
    remote = remote.with_limit(limit);
    if names_space {
        remote = remote.naming_the_space();
    }
    let mut room = std::vec![PageRange::default(); ranges.len()];
    let mut batch = space.batch(&mut room, ());
    ranges.iter().for_each(|range| batch.add(*range));
    let receipt = from.flush(batch, Inline, &mut remote, &mut NoTlb).expect("flushed or served").receipt;
    assert_eq!(receipt.outcome().direct as usize + receipt.outcome().interrupted as usize, indices.len() - 1);
    interrupted
}

fn vps(count: u32) -> Vec<VpIndex> {
    (0..count).map(VpIndex).collect()
}

#[test]
fn h13_targets_are_named_by_vp_index() {
    let mut host = Host::new(PLAIN);
    let indices = [7, 3, 65, 2].map(VpIndex);
    assert!(flush_all(&indices, &[PageRange::small(0x5000, 2)], &mut host, true).is_empty());
    let expected =
        Seen { vps: [2, 3, 65].into(), space: Some(0x1234_5000), ranges: Some([(0x5000, 0x6fff)].into()) };
    assert_eq!(host.seen, [expected]);
}

#[test]
fn h10_cpus_that_no_call_can_name_are_interrupted() {
    let mut host = Host::new(FULL);
    let indices = [VpIndex(0), VpIndex::UNKNOWN, VpIndex(MAX_VPS), VpIndex(MAX_VPS - 1)];
    assert_eq!(flush_all(&indices, &[PageRange::small(0, 1)], &mut host, false), [1, 2]);
    assert_eq!(host.seen[0].vps, [MAX_VPS - 1]);
    assert_eq!(host.seen[0].space, None, "with PCIDs, all of them");
}

#[test]
fn h8_nobody_to_name_is_no_call_and_never_everybody() {
    let mut host = Host::new(FULL);
    assert!(flush_all(&[VpIndex(0)], &[PageRange::small(0, 1)], &mut host, false).is_empty());
    assert_eq!(flush_all(&[VpIndex(0), VpIndex::UNKNOWN], &[PageRange::small(0, 1)], &mut host, false), [1]);
    assert_eq!(host.calls, 0);
}

#[test]
fn call_that_fails_half_way_is_made_good_by_interrupts() {
    let mut host = Host::new(PLAIN);
    (host.step, host.fails) = (1, true);
    let ranges = [PageRange::small(0, 1), PageRange::small(0x5000, 1)];
    assert_eq!(flush_all(&vps(3), &ranges, &mut host, false), [1, 2]);
    assert_eq!((host.calls, host.seen.len()), (2, 1));
}

#[test]
fn more_than_64_cpus_without_vp_sets_are_everybody() {
    let mut host = Host::new(Interface::default());
    assert!(flush_all(&vps(66), &[PageRange::small(0, 1)], &mut host, false).is_empty());
    assert_eq!(host.seen[0].vps.len(), MAX_VPS as usize);
}

#[test]
fn list_that_is_too_long_is_everything() {
    let mut host = Host::new(PLAIN);
    let ranges: Vec<_> = (0..2001).map(|page| PageRange::small(page * 0x2000, 1)).collect();
    flush_all(&vps(2), &ranges, &mut host, false);
    assert_eq!(host.seen, [Seen { vps: [1].into(), space: None, ranges: None }]);
    let mut host = Host::new(PLAIN);
    flush_all(&vps(2), &ranges[..2000], &mut host, false);
    assert_eq!(host.calls, 4, "509 elements each");
}

#[test]
fn h9_ranges_up_to_the_last_address_are_neither_lost_nor_wrapped() {
    let top = PageRange::small(u64::MAX - 0x1fff, 100);
    let lower = PageRange::small(0x7fff_ffff_f000, 3);
    for interface in [PLAIN, FULL] {
        let mut host = Host::new(interface);
        flush_all(&vps(2), &[top, lower], &mut host, false);
        let expected = [(u64::MAX - 0x1fff, u64::MAX), (0x7fff_ffff_f000, 0x7fff_ffff_ffff)];
        assert_eq!(host.seen[0].ranges.as_deref(), Some(&expected[..]));
    }
}

fn ranges() -> impl Strategy<Value = Vec<PageRange>> {
    let shift = prop_oneof![Just(12u8), Just(21), Just(30)];
    // Below the hole between the halves, whatever the size.
    let range = (0u64..1 << 17, 1u64..5000, shift).prop_map(|(first, pages, shift)| PageRange {
        first: first << shift.min(29),
        pages,
        shift,
    });
    prop::collection::vec(range, 1..20)
}

proptest! {
    #[test]
    fn every_target_and_every_page_is_named(
        indices in prop::collection::btree_set(0u32..300, 2..200),
        holes in prop::collection::btree_set(1usize..200, 0..5),
        ranges in ranges(),
        full: bool,
        step in 1usize..600,
    ) {
        // In descending order, so that no index equals its CPU's number by chance.
        let mut indices: Vec<_> = indices.into_iter().rev().map(VpIndex).collect();
        indices.iter_mut().enumerate().filter(|(cpu, _)| holes.contains(cpu)).for_each(|(_, vp)| *vp = VpIndex::UNKNOWN);
        let mut host = Host::new(if full { FULL } else { PLAIN });
        host.step = step;
        let interrupted = flush_all(&indices, &ranges, &mut host, false);
        let unknown: Vec<_> = (1..indices.len()).filter(|cpu| indices[*cpu] == VpIndex::UNKNOWN).collect();
        prop_assert_eq!(interrupted, unknown);
        let named: BTreeSet<_> = indices[1..].iter().map(|vp| vp.0).filter(|vp| *vp < MAX_VPS).collect();
        for seen in &host.seen {
            prop_assert!(seen.vps.iter().copied().eq(named.iter().copied()));
        }
        let everything = host.seen.iter().any(|seen| seen.ranges.is_none());
        let mut flushed: Vec<_> = host.seen.iter().flat_map(|seen| seen.ranges.iter().flatten().copied()).collect();
        flushed.sort_unstable();
        for range in &ranges {
            // The end of the flushed range, from its first address on.
            let first = range.first >> range.shift << range.shift;
            let last = first + (range.pages << range.shift) - 1;
            let reach = flushed.iter().fold(first, |reach, piece| {
                if piece.0 <= reach && piece.1 >= reach { piece.1.saturating_add(1) } else { reach }
            });
            prop_assert!(named.is_empty() || everything || reach > last, "{:x?} of {:x?}", range, flushed);
        }
    }
}
