//! Random programs on CPUs whose TLBs keep everything that they are not told to drop.

use crate::TargetSet;
use crate::shootdown::*;
use core::cell::RefCell;
use core::ops::ControlFlow;
use proptest::prelude::*;
use std::collections::BTreeMap;
use std::vec::Vec;

const CPUS: usize = 3;
const SPACES: usize = 3;
const PAGES: usize = 4;
const TAGS: usize = 2;

type Cpu<'m> = LocalCpu<'m, &'m AddressSpace<1>, 1, TAGS>;

/// The entries under each tag: by space and page, each with the version of the page that it
/// translates to.
#[derive(Clone, Default)]
struct KeepingTlb {
    loaded: Option<(usize, usize)>,
    entries: [BTreeMap<(usize, usize), u64>; TAGS],
}

impl KeepingTlb {
    fn access(&mut self, page: usize, tables: &[[u64; PAGES]; SPACES]) -> Option<(u64, u64)> {
        let (tag, space) = self.loaded?;
        let now = tables[space][page];
        // Entries of other spaces under the tag would be used as well: the processor distinguishes
        // only tags.
        let found = self.entries[tag].iter().find(|((_, of), _)| *of == page).map(|(_, version)| *version);
        let used = found.unwrap_or(now);
        self.entries[tag].entry((space, page)).or_insert(used);
        Some((used, now))
    }
}

impl Tlb for KeepingTlb {
    fn load(&mut self, root: u64, tag: Tag, keep: bool) {
        let tag = usize::from(tag.0);
        if !keep {
            self.entries[tag].clear();
        }
        self.loaded = Some((tag, root as usize));
    }

    fn load_none(&mut self) {
        self.loaded = None;
    }

    fn flush_everything(&mut self) {
        let (tag, _) = self.loaded.expect("something is loaded");
        self.entries[tag].clear();
    }

    fn flush_range(&mut self, range: PageRange, _tables: bool) {
        let (tag, _) = self.loaded.expect("something is loaded");
        self.entries[tag]
            .retain(|(_, page), _| range.addresses().all(|address| address >> 12 != *page as u64));
    }

    fn relax(&mut self, _turns: u64) -> ControlFlow<()> {
        ControlFlow::Break(())
    }
}

#[derive(Clone, Debug)]
enum Step {
    Access { cpu: usize, page: usize },
    Switch { cpu: usize, space: usize },
    Unload { cpu: usize },
    Lazy { cpu: usize },
    Wake { cpu: usize },
    Change { cpu: usize, space: usize, pages: Vec<usize>, mode: u8, direct: u64 },
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let cpu = 0..CPUS;
    let change = (cpu.clone(), 0..SPACES, prop::collection::vec(0..PAGES, 1..PAGES), 0..6u8, 0..1u64 << CPUS);
    let step = prop_oneof![
        4 => (cpu.clone(), 0..PAGES).prop_map(|(cpu, page)| Step::Access { cpu, page }),
        2 => (cpu.clone(), 0..SPACES).prop_map(|(cpu, space)| Step::Switch { cpu, space }),
        1 => cpu.clone().prop_map(|cpu| Step::Unload { cpu }),
        1 => cpu.clone().prop_map(|cpu| Step::Lazy { cpu }),
        1 => cpu.prop_map(|cpu| Step::Wake { cpu }),
        3 => change.prop_map(|(cpu, space, pages, mode, direct)| Step::Change { cpu, space, pages, mode, direct }),
    ];
    prop::collection::vec(step, 1..60)
}

/// Flushes the loaded tag of some CPUs directly, and has the others serve.
struct Reach<'a, 'm> {
    others: &'a [RefCell<(Cpu<'m>, KeepingTlb)>],
    direct: TargetSet<1>,
}

impl Remote<1> for Reach<'_, '_> {
    fn interrupt(&mut self, targets: &TargetSet<1>) {
        for cpu in targets.iter() {
            let (cpu, tlb) = &mut *self.others[cpu].borrow_mut();
            assert!(cpu.serve(tlb));
        }
    }

    fn begin(&mut self, targets: &mut TargetSet<1>, flush: &Flush<'_>, _: &Pinned) {
        for cpu in targets.and(&self.direct).iter() {
            let tlb = &mut self.others[cpu].borrow_mut().1;
            match flush.ranges() {
                None => tlb.flush_everything(),
                Some(ranges) => ranges.iter().for_each(|range| tlb.flush_range(*range, flush.frees_tables())),
            }
        }
        *targets = targets.without(&self.direct);
    }
}

/// Runs the steps; fails at the first access through a translation that a flush had to drop.
fn run(steps: &[Step]) -> Result<(), TestCaseError> {
    let slots: Vec<_> = (0..CPUS).map(|_| CpuSlot::new()).collect();
    let cells: Vec<_> = (0..CPUS * 2).map(|_| RangeCell::new()).collect();
    let ids = Spaces::new();
    let spaces: Vec<AddressSpace<1>> = (0..SPACES).map(|root| ids.create(root as u64)).collect();
    let claim = |index| Cpus::new(&slots, &cells).claim(index).expect("each once");
    let cpus: Vec<_> = (0..CPUS).map(|index| RefCell::new((claim(index), KeepingTlb::default()))).collect();
    let (mut tables, mut lazy) = ([[0u64; PAGES]; SPACES], [false; CPUS]);
    for (time, step) in (1..).zip(steps) {
        match step {
            Step::Access { cpu, page } if !lazy[*cpu] => {
                if let Some((used, now)) = cpus[*cpu].borrow_mut().1.access(*page, &tables) {
                    prop_assert_eq!(used, now, "stale at step {} of {:?}", time, steps);
                }
            }
            Step::Switch { cpu, space } => {
                let (local, tlb) = &mut *cpus[*cpu].borrow_mut();
                local.switch_to(&spaces[*space], tlb);
                lazy[*cpu] = false;
            }
            Step::Unload { cpu } => {
                let (local, tlb) = &mut *cpus[*cpu].borrow_mut();
                local.unload(tlb);
            }
            Step::Lazy { cpu } => {
                cpus[*cpu].borrow_mut().0.enter_lazy();
                lazy[*cpu] = true;
            }
            Step::Wake { cpu } => {
                let (local, tlb) = &mut *cpus[*cpu].borrow_mut();
                local.leave_lazy(tlb);
                lazy[*cpu] = false;
            }
            Step::Change { cpu, space, pages, mode, direct } => {
                pages.iter().for_each(|page| tables[*space][*page] = time);
                change(&cpus, *cpu, &spaces[*space], pages, *mode, *direct);
            }
            Step::Access { .. } => {}
        }
    }
    Ok(())
}

fn change<'m>(
    cpus: &[RefCell<(Cpu<'m>, KeepingTlb)>],
    cpu: usize,
    space: &AddressSpace<1>,
    pages: &[usize],
    mode: u8,
    direct: u64,
) {
    let mut room = [PageRange::default(); PAGES];
    let mut batch = space.batch(&mut room, ());
    pages.iter().for_each(|page| batch.add(PageRange::small((*page as u64) << 12, 1)));
    let mut reach = Reach { others: cpus, direct: TargetSet::from_banks([direct]) };
    let (local, tlb) = &mut *cpus[cpu].borrow_mut();
    let flushed = match mode {
        0 => local.flush(batch, Serial, &mut reach, tlb).is_ok(),
        1 => local.flush(batch, Concurrent, &mut reach, tlb).is_ok(),
        2 => local.flush(batch, Inline, &mut reach, tlb).is_ok(),
        3 => local.flush(batch, super::no_user(), &mut reach, tlb).is_ok(),
        4 => local.flush(batch.freeing_tables(), Serial, &mut reach, tlb).is_ok(),
        _ => local.flush(batch.freeing_tables(), Inline, &mut reach, tlb).is_ok(),
    };
    assert!(flushed, "everybody serves");
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(512))]

    #[test]
    fn g1_a12_no_program_meets_a_stale_translation(steps in steps()) {
        run(&steps)?;
    }
}
