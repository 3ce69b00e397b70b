//! Random programs on a whole system, compared with [`Reference`]: after each step every vCPU is
//! signalled exactly the interrupt that the reference says. So no interrupt is lost or duplicated,
//! and the order is correct, with few list registers.

use super::reference::Reference;
use super::system::System;
use crate::devices::virt::gic::{Bits, Maintenance, SgiGroup};
use proptest::collection::vec;
use proptest::prelude::*;

/// The interrupts of the programs: few, so that they interact.
const INTIDS: [u8; 18] = [0, 1, 2, 15, 16, 20, 22, 27, 31, 32, 33, 34, 35, 63, 64, 100, 254, 255];
/// The hardware-linked one.
const TIMER: u8 = 27;

#[derive(Clone, Debug)]
enum Op {
    Line(u8, u8, bool),
    Sgi(u8, u8, u8, bool),
    Fire(u8),
    Leave(u8),
    Enable(u8, u8, bool),
    Pend(u8, u8, bool),
    Priority(u8, u8, u8),
    Group(u8, u8, bool),
    Edge(u8, u8, bool),
    Route(u8, u8),
    Groups(u8),
    CpuGroups(u8, u8),
    Mask(u8, u8),
    Acknowledge(u8),
    End(u8),
    Deactivate(u8, u8),
    Exit(u8),
}

fn ops() -> impl Strategy<Value = Op> {
    let (vcpu, intid) = (0..3_u8, prop::sample::select(&INTIDS[..]));
    let one = (vcpu.clone(), intid, any::<bool>());
    let level = 0..8_u8;
    // Closed for a while, but usually open.
    let open = prop::sample::select(&[3_u8, 3, 3, 3, 3, 0, 1, 2][..]);
    let mask = prop::sample::select(&[0xff_u8, 0xff, 0xff, 0xff, 0xa0, 0x60, 0x20, 0][..]);
    prop_oneof![
        6 => one.clone().prop_map(|(vcpu, intid, on)| Op::Line(vcpu, intid, on)),
        4 => (vcpu.clone(), 0..8_u8, 0..3_u8, any::<bool>()).prop_map(|(a, b, c, d)| Op::Sgi(a, b, c, d)),
        3 => vcpu.clone().prop_map(Op::Fire),
        1 => vcpu.clone().prop_map(Op::Leave),
        4 => (one.clone(), 0..4_u8).prop_map(|((vcpu, intid, _), on)| Op::Enable(vcpu, intid, on != 0)),
        4 => one.clone().prop_map(|(vcpu, intid, on)| Op::Pend(vcpu, intid, on)),
        3 => (one.clone(), level).prop_map(|((a, b, _), c)| Op::Priority(a, b, c << 5)),
        1 => one.clone().prop_map(|(vcpu, intid, on)| Op::Group(vcpu, intid, on)),
        1 => one.clone().prop_map(|(vcpu, intid, on)| Op::Edge(vcpu, intid, on)),
        2 => one.prop_map(|(vcpu, intid, _)| Op::Route(vcpu, intid)),
        1 => open.clone().prop_map(Op::Groups),
        1 => (vcpu.clone(), open).prop_map(|(vcpu, groups)| Op::CpuGroups(vcpu, groups)),
        1 => (vcpu.clone(), mask).prop_map(|(vcpu, mask)| Op::Mask(vcpu, mask)),
        14 => vcpu.clone().prop_map(Op::Acknowledge),
        20 => vcpu.clone().prop_map(Op::End),
        5 => (vcpu.clone(), any::<u8>()).prop_map(|(vcpu, which)| Op::Deactivate(vcpu, which)),
        2 => vcpu.prop_map(Op::Exit),
    ]
}

struct Run {
    system: System,
    reference: Reference,
    /// The interrupts that each vCPU has acknowledged and not ended, the last at the end.
    running: Vec<Vec<u8>>,
    /// The interrupts that it has ended and not deactivated, with EOImode = 1.
    ended: Vec<Vec<u8>>,
    acknowledged: usize,
    /// Maintenance interrupts that were enabled at any time.
    seen: Maintenance,
}

impl Run {
    fn new(list_count: usize, splits_eoi: bool) -> Self {
        let mut run = Self {
            system: System::new(3, list_count),
            reference: Reference::new(3),
            running: vec![Vec::new(); 3],
            ended: vec![Vec::new(); 3],
            acknowledged: 0,
            seen: Maintenance::empty(),
        };
        run.system.vcpus.iter_mut().for_each(|vcpu| vcpu.cpu.splits_eoi = splits_eoi);
        // Most programs should have interrupts to handle.
        run.step(&Op::Groups(3));
        for vcpu in 0..3 {
            for &intid in &INTIDS {
                run.step(&Op::Enable(vcpu, intid, true));
                run.step(&Op::Priority(vcpu, intid, (intid % 6) << 5));
            }
        }
        run
    }

    fn is_active(&mut self, vcpu: u8, intid: u8) -> bool {
        self.reference.irq(vcpu, intid).active.is_some()
    }

    fn step(&mut self, op: &Op) {
        match *op {
            Op::Line(vcpu, intid, level) => self.line(vcpu, intid, level),
            Op::Sgi(from, list, intid, group0) => {
                let group = if group0 { SgiGroup::Group0 } else { SgiGroup::Group1 };
                self.system.send(from, u64::from(intid) << 24 | u64::from(list), group);
                for vcpu in (0..3).filter(|vcpu| list >> vcpu & 1 != 0) {
                    let irq = self.reference.irq(vcpu, intid);
                    irq.latch |= !group0 || !irq.group1;
                }
            }
            Op::Fire(vcpu) => {
                self.system.exit(vcpu);
                self.system.enter(vcpu);
                if self.system.vcpus[usize::from(vcpu)].cpu.physical & 1 << TIMER == 0 {
                    self.system.forward(vcpu, TIMER);
                    self.reference.irq(vcpu, TIMER).line = true;
                }
            }
            Op::Leave(vcpu) => {
                self.system.leave(vcpu);
                self.reference.irq(vcpu, TIMER).line = false;
            }
            Op::Enable(vcpu, intid, on) => {
                self.system.write_bit(vcpu, if on { 0x100 } else { 0x180 }, intid);
                self.reference.irq(vcpu, intid).enabled = on;
            }
            Op::Pend(vcpu, intid, on) => {
                self.system.write_bit(vcpu, if on { 0x200 } else { 0x280 }, intid);
                self.reference.irq(vcpu, intid).latch = on;
            }
            // Interrupts that are in no list register end in the order of their priorities.
            Op::Priority(vcpu, intid, priority) if !self.is_active(vcpu, intid) => {
                self.system.set_priority(vcpu, intid, priority);
                self.reference.irq(vcpu, intid).priority = priority;
            }
            Op::Group(vcpu, intid, group1) => self.group(vcpu, intid, group1),
            Op::Edge(vcpu, intid, edge) if intid >= 16 && intid != TIMER => self.edge(vcpu, intid, edge),
            Op::Route(vcpu, intid) if intid >= 32 => {
                self.system.write(0x6000 + 8 * u32::from(intid), 8, u64::from(vcpu));
                self.reference.irq(vcpu, intid).target = vcpu;
            }
            Op::Groups(groups) => {
                self.system.write(0, 4, u64::from(groups));
                self.reference.groups = groups;
            }
            Op::CpuGroups(vcpu, groups) => self.system.vcpus[usize::from(vcpu)].cpu.groups = groups,
            Op::Mask(vcpu, mask) => self.system.vcpus[usize::from(vcpu)].cpu.pmr = mask,
            Op::Acknowledge(vcpu) => self.acknowledge(vcpu),
            Op::End(vcpu) => self.end(vcpu),
            Op::Deactivate(vcpu, which) => self.deactivate(vcpu, which),
            Op::Exit(vcpu) => {
                self.system.exit(vcpu);
                self.system.enter(vcpu);
            }
            Op::Priority(..) | Op::Edge(..) | Op::Route(..) => {}
        }
        self.system.settle();
        self.check();
        self.system.vcpus.iter().for_each(|vcpu| self.seen |= vcpu.cpu.maintenance);
    }

    fn line(&mut self, vcpu: u8, intid: u8, level: bool) {
        match intid {
            0..16 | TIMER => return,
            16..32 => self.system.with(vcpu, |vcpu| vcpu.private.set_line(intid, level)),
            _ => self.system.set_line(intid, level),
        }
        self.reference.set_line(vcpu, intid, level);
    }

    fn group(&mut self, vcpu: u8, intid: u8, group1: bool) {
        let (word, bit) = (u32::from(intid / 32), 1_u64 << (intid % 32));
        let old = if word == 0 {
            self.system.vcpus[usize::from(vcpu)].private.read(super::system::SGI_FRAME + 0x80, 4)
        } else {
            self.system.read(0x80 + 4 * word, 4)
        };
        let new = if group1 { old | bit } else { old & !bit };
        if word == 0 {
            self.system.write_own(vcpu, 0x80, 4, new);
        } else {
            self.system.write(0x80 + 4 * word, 4, new);
        }
        self.reference.irq(vcpu, intid).group1 = group1;
    }

    fn edge(&mut self, vcpu: u8, intid: u8, edge: bool) {
        let (offset, shift) = (0xc00 + u32::from(intid / 16) * 4, 2 * (intid % 16) + 1);
        let old = if intid < 32 {
            self.system.vcpus[usize::from(vcpu)].private.read(super::system::SGI_FRAME + offset, 4)
        } else {
            self.system.read(offset, 4)
        };
        let new = old & !(1 << shift) | u64::from(edge) << shift;
        if intid < 32 {
            self.system.write_own(vcpu, offset, 4, new);
        } else {
            self.system.write(offset, 4, new);
        }
        self.reference.irq(vcpu, intid).edge = edge;
    }

    fn acknowledge(&mut self, vcpu: u8) {
        let index = usize::from(vcpu);
        if let Some(intid) = self.system.vcpus[index].cpu.acknowledge() {
            let irq = self.reference.irq(vcpu, intid);
            (irq.latch, irq.active) = (false, Some(vcpu));
            self.running[index].push(intid);
            self.acknowledged += 1;
        }
    }

    fn end(&mut self, vcpu: u8) {
        let index = usize::from(vcpu);
        let Some(intid) = self.running[index].pop() else { return };
        let cpu = &mut self.system.vcpus[index].cpu;
        cpu.end(intid);
        if cpu.splits_eoi { self.ended[index].push(intid) } else { self.deactivated(vcpu, intid) }
    }

    fn deactivate(&mut self, vcpu: u8, which: u8) {
        let ended = &mut self.ended[usize::from(vcpu)];
        if !ended.is_empty() {
            let intid = ended.swap_remove(usize::from(which) % ended.len());
            self.system.deactivate(vcpu, intid);
            self.deactivated(vcpu, intid);
        }
    }

    fn deactivated(&mut self, vcpu: u8, intid: u8) {
        let irq = self.reference.irq(vcpu, intid);
        irq.active = None;
        // The physical interrupt is deactivated too, and would be signalled again.
        irq.line &= intid != TIMER;
    }

    fn check(&mut self) {
        for vcpu in 0..3 {
            let cpu = &self.system.vcpus[usize::from(vcpu)].cpu;
            let (view, signalled) = (cpu.view(), cpu.signalled());
            let expected =
                self.reference.highest(vcpu, &INTIDS, |priority, group1| view.admits(priority, group1));
            assert_eq!(signalled.map(|(_, priority)| priority), expected, "vCPU {vcpu}");
            if let Some((intid, _)) = signalled {
                assert!(self.reference.is_deliverable(vcpu, intid), "vCPU {vcpu}, INTID {intid}");
            }
        }
    }

    /// Serves everything until nothing is pending.
    fn drain(&mut self) {
        for vcpu in 0..3 {
            self.step(&Op::Mask(vcpu, 0xff));
            self.step(&Op::CpuGroups(vcpu, 3));
            for &intid in &INTIDS {
                self.step(&Op::Line(vcpu, intid, false));
                self.step(&Op::Enable(vcpu, intid, true));
            }
        }
        self.step(&Op::Groups(3));
        for _ in 0..3 * INTIDS.len() {
            for vcpu in 0..3 {
                for op in [Op::End(vcpu), Op::Deactivate(vcpu, 0), Op::Acknowledge(vcpu)] {
                    self.step(&op);
                }
            }
        }
        for vcpu in 0..3 {
            let found = (&self.running[usize::from(vcpu)], &self.ended[usize::from(vcpu)]);
            assert_eq!(found, (&vec![], &vec![]));
            for &intid in &INTIDS {
                assert!(!self.reference.is_deliverable(vcpu, intid), "vCPU {vcpu}, INTID {intid}");
            }
            self.step(&Op::Exit(vcpu));
        }
        assert!(self.system.vcpus.iter().all(|vcpu| vcpu.cpu.lists == [0; 16] && vcpu.cpu.physical == 0));
        assert!(self.system.vcpus.iter().all(|vcpu| vcpu.private.held() == Bits::EMPTY), "given back");
    }
}

const CASES: u32 = if cfg!(miri) { 1 } else { 32 };

proptest! {
    #![proptest_config(ProptestConfig { cases: CASES, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn nothing_is_lost_or_comes_twice_or_out_of_order(
        program in vec(ops(), 0..300),
        list_count in prop::sample::select(&[1_usize, 2, 3, 4, 16][..]),
        splits_eoi in any::<bool>(),
    ) {
        let mut run = Run::new(list_count, splits_eoi);
        program.iter().for_each(|op| run.step(op));
        run.drain();
    }
}

/// The programs exercise the interrupt controller.
#[test]
fn programs_acknowledge_plenty() {
    use proptest::strategy::ValueTree;
    use proptest::test_runner::TestRunner;
    let mut runner = TestRunner::deterministic();
    let program = vec(ops(), 3000..=3000).new_tree(&mut runner).unwrap().current();
    let mut run = Run::new(2, false);
    program.iter().for_each(|op| run.step(op));
    assert!(run.acknowledged > 150, "{}", run.acknowledged);
    assert_eq!(run.seen, Maintenance::all());
}
