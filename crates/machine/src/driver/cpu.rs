//! One physical CPU: takes a vCPU, enters it, handles its exits, takes the next.

use coherence::asid::{AsidAllocator, Assignment, TlbControl};
use coherence::vmid::Resident;
use coherence::{CpuId, Ledger, Owner, Scope};
use paging::Format;

use super::guest::Exit;
use super::vm::{Activity, Vcpu, Vm};
use crate::bug::Bug;
use crate::hw::format::Arch;
use crate::machine::Machine;
use crate::stage2::Residents;

/// Stays of one vCPU before the next gets its turn.
const STAYS_MAX: usize = 12;
/// Once in so many idle turns a timer wakes a vCPU that has halted.
const TIMER_TURNS: usize = 6;

/// What belongs to one physical CPU.
pub(crate) struct Cpu<'m> {
    pub(crate) machine: &'m Machine,
    pub(crate) number: usize,
    pub(crate) asids: AsidAllocator,
    pub(crate) ledger: Ledger<2>,
    /// Of Arm64.
    residents: Residents,
}

/// What to do with the vCPU after an exit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Next {
    Resume,
    Halt,
    GiveUp,
}

/// The actor of a physical CPU: runs vCPUs until none has anything left to do.
pub(crate) fn run_cpu<F: Format>(machine: &Machine, vms: &[Vm<'_, F>], number: usize) {
    let tags = machine.config.tags.try_into().expect("there are tags");
    let mut cpu = Cpu {
        machine,
        number,
        asids: AsidAllocator::new(CpuId(number as u32), tags, machine.config.flush_by_asid),
        ledger: Ledger::new(),
        residents: vec![Resident::new(); vms.len()],
    };
    loop {
        let everything = vms.iter().flat_map(|vm| (0..vm.vcpus.len()).map(move |vcpu| (vm, vcpu)));
        let rest: Vec<_> =
            everything.filter(|(vm, vcpu)| vm.activity[*vcpu].get() != Activity::Over).collect();
        if rest.is_empty() {
            return;
        }
        let (vm, vcpu) = rest[machine.below(rest.len())];
        match vm.activity[vcpu].get() {
            Activity::Ready => cpu.run(vm, vcpu),
            _ if machine.below(TIMER_TURNS) == 0 => vm.post_event(vcpu),
            _ => {}
        }
        machine.give_way();
    }
}

impl Cpu<'_> {
    /// One time slice of a vCPU, unless another CPU has it.
    fn run<F: Format>(&mut self, vm: &Vm<'_, F>, number: usize) {
        let Some(mut owner) = vm.target_of(number).owner() else { return };
        let mut vcpu = vm.vcpus[number].borrow_mut();
        for _ in 0..STAYS_MAX {
            self.machine.point();
            let Some(exit) = self.stay(vm, number, &mut vcpu, &mut owner) else { continue };
            match self.handle(vm, number, &mut vcpu, &mut owner, exit) {
                Next::Resume => {}
                Next::GiveUp => break,
                Next::Halt => {
                    let has_halted = owner.try_halt(vm.halt_space(vcpu.space));
                    if has_halted {
                        vm.activity[number].set(Activity::Halted);
                        // A wake-up that comes now finds the state put away.
                        break;
                    }
                }
            }
        }
        if vcpu.next == vcpu.ops.len() {
            vm.activity[number].set(Activity::Over);
        }
    }

    /// One stay in guest mode; `None` if something had to be looked at first.
    fn stay<F: Format>(
        &mut self,
        vm: &Vm<'_, F>,
        number: usize,
        vcpu: &mut Vcpu,
        owner: &mut Owner<'_>,
    ) -> Option<Exit> {
        if owner.take_events() {
            vm.activity[number].set(Activity::Ready);
        }
        let assignment = self.asids.assign(&mut vcpu.asid);
        self.machine.point();
        let Ok(in_guest) = owner.try_enter(CpuId(self.number as u32)) else {
            // Interrupts are taken here; the assignment is dropped.
            self.machine.take_interrupt(self.number);
            self.take_flush(vm, vcpu, owner);
            return None;
        };
        vm.activity[number].set(Activity::Ready);
        self.machine.point();
        let tag = self.enter(vm, number, vcpu, &assignment);
        self.machine.note(|| {
            let control = assignment.control;
            format!("enters vCPU {}.{number} with tag {tag} ({control:?})", vm.index)
        });
        let exit = self.run_guest(vm, number, vcpu);
        self.machine.hw.borrow_mut().leave(self.number);
        in_guest.leave();
        self.asids.executed(&mut vcpu.asid, assignment);
        self.machine.note(|| format!("leaves vCPU {}.{number}: {exit:?}", vm.index));
        self.machine.point();
        self.machine.take_interrupt(self.number);
        Some(exit)
    }

    /// VMRUN, or ERET after what must come before it. Returns the tag.
    fn enter<F: Format>(
        &mut self,
        vm: &Vm<'_, F>,
        number: usize,
        vcpu: &mut Vcpu,
        assignment: &Assignment,
    ) -> u32 {
        let (machine, roots) = (self.machine, vm.roots(vcpu.space));
        let tag = match machine.config.arch {
            Arch::Amd64 => {
                let control = match assignment.control {
                    TlbControl::FlushAll if machine.has(Bug::TagReused) => TlbControl::DoNothing,
                    control => control,
                };
                machine.hw.borrow_mut().tlb_control(self.number, assignment.asid, control);
                assignment.asid
            }
            Arch::Arm64 => {
                if machine.below(machine.config.arm.visitor_one_in) == 0 {
                    machine.be_visited(self.number);
                }
                let resident = &mut self.residents[vm.index];
                machine.arrive(self.number, vm.index, roots, resident, (number, &mut vcpu.home))
            }
        };
        machine.hw.borrow_mut().enter(self.number, tag, roots);
        tag
    }

    /// Takes a flush that pends: carries it out, or has the next VMRUN do so.
    pub(crate) fn take_flush<F: Format>(&mut self, vm: &Vm<'_, F>, vcpu: &mut Vcpu, owner: &mut Owner<'_>) {
        self.machine.point();
        let Some(work) = owner.take_flush() else { return };
        self.machine.point();
        match (work.scope(), self.asids.resident(&vcpu.asid)) {
            (Scope::All, _) => vcpu.asid.owe_flush(),
            (Scope::Ranges(_), None) => {}
            (Scope::Ranges(_), Some(_)) if vcpu.asid.owes_flush() => {}
            // Not every piece of a guest's large page would be found by its address (A17).
            (Scope::Ranges(_), Some(_)) if vm.has_small_pages.get() && !self.machine.has(Bug::PiecesKept) => {
                vcpu.asid.owe_flush();
            }
            (Scope::Ranges(ranges), Some(asid)) => {
                let mut hw = self.machine.hw.borrow_mut();
                for page in
                    ranges.iter().flat_map(|range| (0..range.pages).map(|page| range.first + (page << 12)))
                {
                    hw.invlpga(self.number, asid, page, !self.machine.has(Bug::WalkCacheKept));
                }
            }
        }
        self.machine.point();
        work.complete();
    }

    fn handle<F: Format>(
        &mut self,
        vm: &Vm<'_, F>,
        number: usize,
        vcpu: &mut Vcpu,
        owner: &mut Owner<'_>,
        exit: Exit,
    ) -> Next {
        match exit {
            Exit::Interrupt => Next::Resume,
            Exit::NestedFault(fault) => {
                self.nested_fault(vm, number, vcpu, owner, fault);
                Next::Resume
            }
            Exit::Hypercall(registers) => {
                self.hypercall(vm, number, vcpu, owner, &registers);
                Next::Resume
            }
            Exit::Halt => Next::Halt,
            Exit::Yield | Exit::Over => Next::GiveUp,
        }
    }
}
