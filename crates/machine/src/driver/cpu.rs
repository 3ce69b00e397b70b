//! One physical CPU: takes a vCPU, enters it, handles its exits, takes the next. The steps are
//! those of [`stay`].

use std::rc::Rc;

use coherence::asid::AsidAllocator;
use coherence::{CpuId, Ledger, Owner};
use memslots::MmioCache;
use stay::broadcast::CpuStage2;
use stay::{MMIO_PAGES, Mistake, Mistakes, Stay, broadcast, tagged};

use super::guest::{ALL_PAGES, Exit};
use super::life::Row;
use super::processor::Guest;
use super::vm::{Activity, Architecture, Tags, Vcpu, Vm};
use crate::hw::format::Arch;
use crate::machine::AbstractMachine;
use crate::stage2::Met;

/// The most stays of one vCPU before the next gets its turn.
const STAYS_MAX: usize = 12;
/// A timer wakes a halted vCPU once in this many idle turns.
const TIMER_TURNS: usize = 6;
/// Others continue before a section begins at least once in this many sections.
const SECTION_LATER_ONE_IN: usize = 4;
/// The hypervisor looks at the guest's code once in this many exits.
const LOOK_ONE_IN: usize = 3;
/// And once in this many times that a vCPU comes to a CPU, before it is entered: so many times.
const EARLY_ONE_IN: usize = 5;
const EARLY_LOOKS_MAX: usize = 12;

/// Memory is mapped for devices behind an SMMU once in this many exits, and unmapped.
const FILL_ONE_IN: usize = 8;

/// The state of one physical CPU.
pub(crate) struct Cpu<'m> {
    pub(crate) machine: &'m AbstractMachine,
    pub(crate) number: usize,
    pub(crate) ledger: Ledger<2>,
}

/// The tags that a physical CPU has loaded and assigned.
struct Tagging {
    /// For AMD64.
    asids: AsidAllocator,
    /// For Arm64.
    place: CpuStage2,
    /// By virtual machine, and of all: the index of the vCPU that ran last. For mistakes.
    last: Vec<Option<usize>>,
    last_of_all: Option<usize>,
}

impl Tagging {
    /// Whom a vCPU meets that arrives now.
    fn meet(&mut self, vm: usize, vcpu: usize) -> Met {
        let another = self.last[vm].replace(vcpu).is_some_and(|last| last != vcpu);
        Met { another, same_index: self.last_of_all.replace(vcpu) == Some(vcpu) }
    }
}

/// What to do with the vCPU after an exit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Next {
    Resume,
    Halt,
    GiveUp,
    /// Another vCPU takes its place.
    Replace,
}

/// The actor of a physical CPU: runs vCPUs until none has operations left.
pub(crate) fn run_cpu<'m, F: Architecture>(machine: &'m AbstractMachine, rows: &[Row<'m, F>], number: usize) {
    let tags = machine.config.tags.try_into().expect("there are tags");
    let mut cpu = Cpu { machine, number, ledger: Ledger::new() };
    let mut tagging = Tagging {
        asids: AsidAllocator::new(CpuId(number as u32), tags, machine.config.flush_by_asid),
        place: CpuStage2::new(),
        last: vec![None; rows.len()],
        last_of_all: None,
    };
    while !rows.iter().all(Row::is_over) {
        if machine.must_leave(number) {
            machine.leave_address_space(number, &mut tagging.place);
        }
        turn(&mut cpu, &mut tagging, rows);
        machine.give_way();
    }
    machine.leave_address_space(number, &mut tagging.place);
}

/// A CPU's look at one of the vCPUs that have operations left.
fn turn<'m, F: Architecture>(cpu: &mut Cpu<'m>, tagging: &mut Tagging, rows: &[Row<'m, F>]) {
    let machine = cpu.machine;
    let mut rest = Vec::new();
    for vm in rows.iter().filter_map(Row::vm) {
        let is_left = |vcpu: &usize| vm.activity[*vcpu].get() != Activity::Over;
        rest.extend((0..vm.vcpus.len()).filter(is_left).map(|vcpu| (Rc::clone(&vm), vcpu)));
    }
    if rest.is_empty() {
        // A guest is being destroyed, and another will take its place.
        return;
    }
    // A guest that is referred to is not taken down.
    let (vm, vcpu) = rest.swap_remove(machine.below(rest.len()));
    drop(rest);
    match vm.activity[vcpu].get() {
        Activity::Ready => run(cpu, tagging, &vm, vcpu),
        _ if machine.below(TIMER_TURNS) == 0 => vm.post_event(vcpu),
        _ => {}
    }
}

/// One time slice of a vCPU, unless another CPU has it.
fn run<'m, F: Architecture>(cpu: &mut Cpu<'m>, tagging: &mut Tagging, vm: &Vm<'m, F>, number: usize) {
    let Some(owner) = vm.target_of(number).owner() else { return };
    if vm.is_dying.get() {
        vm.give_up(owner);
        return;
    }
    if vm.is_still.get() {
        return;
    }
    let mut vcpu = vm.vcpus[number].borrow_mut();
    let mut tags = vm.tags[number].borrow_mut();
    let mut visit = Visit { cpu, tagging, vm, number, vcpu: &mut vcpu, tags: &mut tags, owner };
    let is_replaced = visit.arrive() && visit.run();
    let Visit { vcpu, tags, owner, .. } = visit;
    if vm.is_dying.get() {
        vm.give_up(owner);
    } else if is_replaced {
        owner.remove();
        vm.replace(number, vcpu, tags);
    } else {
        drop(owner);
    }
    if vcpu.next == vcpu.ops.len() {
        vm.activity[number].set(Activity::Over);
    }
}

/// A vCPU on a CPU, out of guest mode.
pub(crate) struct Visit<'v, 'm, F: Architecture> {
    pub(crate) cpu: &'v mut Cpu<'m>,
    tagging: &'v mut Tagging,
    pub(crate) vm: &'v Vm<'m, F>,
    pub(crate) number: usize,
    pub(crate) vcpu: &'v mut Vcpu,
    tags: &'v mut Tags,
    owner: Owner<'v>,
}

impl<F: Architecture> Mistakes for Visit<'_, '_, F> {
    fn makes(&self, mistake: Mistake) -> bool {
        self.cpu.machine.makes(mistake)
    }
}

impl<'v, 'm, F: Architecture> Stay<'v> for Visit<'v, 'm, F> {
    type State = Vcpu;
    type Vm = Vm<'m, F>;

    const COUNTED: bool = matches!(F::ARCH, Arch::Arm64);

    fn split(&mut self) -> (&mut Owner<'v>, &mut Vcpu, &Vm<'m, F>) {
        match self.cpu.machine.below(SECTION_LATER_ONE_IN) {
            0 => self.cpu.machine.give_way(),
            _ => self.cpu.machine.point(),
        }
        (&mut self.owner, self.vcpu, self.vm)
    }

    /// Takes a pending flush: carries it out, or makes the next VMRUN do so.
    fn take_flush(&mut self) {
        let machine = self.cpu.machine;
        machine.point();
        match F::ARCH {
            Arch::Amd64 | Arch::Intel64 => {
                let mut guest = Guest::new(self.cpu, self.vm, self.number, self.vcpu);
                let (asids, slot) = (&self.tagging.asids, &mut self.tags.asid);
                let limit = machine.config.page_limit;
                let taken = tagged::take_flush(
                    &mut tagged::Mistaken::new(&mut guest),
                    &mut self.owner,
                    asids,
                    slot,
                    limit,
                );
                machine.note(|| format!("vCPU {}.{}: {taken:?}", self.vm.index, self.number));
            }
            Arch::Arm64 => broadcast::take_flush(&machine.tlb(self.cpu.number, None), &mut self.owner),
        }
        machine.point();
    }

    fn mmio(&mut self) -> &mut MmioCache<MMIO_PAGES> {
        &mut self.vcpu.mmio
    }
}

impl<F: Architecture> Visit<'_, '_, F> {
    /// The vCPU runs until its time slice ends. Returns whether another one takes its place.
    fn run(&mut self) -> bool {
        for _ in 0..STAYS_MAX {
            self.cpu.machine.point();
            // The event or kick that came with this may have been taken already.
            let stops = self.vm.is_dying.get() || self.vm.is_still.get();
            if stops || self.cpu.machine.must_leave(self.cpu.number) {
                return false;
            }
            let Some(exit) = self.stay() else { continue };
            match self.handle(exit) {
                Next::Resume => {}
                Next::GiveUp => return false,
                Next::Replace => return true,
                Next::Halt => {
                    if self.halt() {
                        self.vm.activity[self.number].set(Activity::Halted);
                        // A wake-up from here on finds the state saved.
                        return false;
                    }
                }
            }
        }
        false
    }

    /// Returns false if the CPU gives the vCPU up again.
    fn arrive(&mut self) -> bool {
        let (machine, number) = (self.cpu.machine, self.cpu.number);
        if F::ARCH.is_x86() {
            if machine.below(EARLY_ONE_IN) == 0 {
                // Flushes may be taken here, and the vCPU be entered elsewhere.
                for _ in 0..machine.below(EARLY_LOOKS_MAX) {
                    machine.give_way();
                    self.look_at_code();
                }
                return machine.below(3) == 0;
            }
            return true;
        }
        if machine.below(machine.config.arm.visitor_one_in) == 0 {
            machine.be_visited(number, &mut self.tagging.place);
        }
        let place = (number, self.vm.index);
        let met = self.tagging.meet(self.vm.index, self.number);
        machine.arrive(place, &mut self.tagging.place, &mut self.tags.home, met);
        self.enter_address_space();
        true
    }

    /// For Arm64.
    fn enter_address_space(&mut self) {
        let roots = self.vm.roots(self.vcpu.space);
        let place = &mut self.tagging.place;
        self.cpu.machine.enter_address_space(self.cpu.number, self.vm.index, roots, place);
    }

    /// One stay in guest mode; `None` if a request or event had to be handled first.
    fn stay(&mut self) -> Option<Exit> {
        if self.owner.take_events() {
            self.vm.activity[self.number].set(Activity::Ready);
        }
        if F::ARCH == Arch::Arm64 {
            let arm = self.cpu.machine.config.arm;
            if self.cpu.machine.below(arm.visitor_one_in) == 0 {
                self.cpu.machine.be_passed(self.cpu.number);
            }
            self.enter_address_space();
        }
        self.cpu.machine.point();
        let mut guest = Guest::new(self.cpu, self.vm, self.number, self.vcpu);
        let has_entered = match F::ARCH {
            Arch::Amd64 | Arch::Intel64 => tagged::enter(
                &mut tagged::Mistaken::new(&mut guest),
                &mut self.owner,
                &mut self.tagging.asids,
                &mut self.tags.asid,
            ),
            Arch::Arm64 => broadcast::enter(&mut guest, &mut self.owner),
        };
        let exit = guest.exit.take();
        self.cpu.machine.point();
        self.cpu.machine.take_interrupt(self.cpu.number);
        if !has_entered {
            self.take_flush();
            return None;
        }
        exit
    }

    fn handle(&mut self, exit: Exit) -> Next {
        if F::ARCH.is_x86() && self.cpu.machine.below(LOOK_ONE_IN) == 0 {
            self.look_at_code();
        }
        if self.vm.mirror.is_some() {
            match self.cpu.machine.below(FILL_ONE_IN) {
                0 => drop(self.vm.fill_mirror()),
                // As in a flush for whatever reason.
                1 => self.vm.tell_devices(),
                _ => {}
            }
        }
        match exit {
            Exit::Interrupt => Next::Resume,
            Exit::NestedFault(fault) => {
                self.nested_fault(fault);
                Next::Resume
            }
            Exit::Hypercall(registers) => {
                Guest::new(self.cpu, self.vm, self.number, self.vcpu).hypercall(&registers);
                Next::Resume
            }
            Exit::StartOver => {
                self.start_over();
                Next::Resume
            }
            Exit::Halt => Next::Halt,
            Exit::Replace => Next::Replace,
            Exit::Yield | Exit::Over => Next::GiveUp,
        }
    }

    /// Puts the vCPU into its state after INIT.
    fn start_over(&mut self) {
        let machine = self.cpu.machine;
        self.vcpu.space = 0;
        tagged::start_over(&mut self.tags.asid, machine);
        machine.point();
        let time = machine.now();
        machine.oracle.borrow_mut().promise_guest(self.vm.index, self.number, None, ALL_PAGES, time);
    }

    /// Halts the vCPU; returns whether it has halted.
    fn halt(&mut self) -> bool {
        let space = self.vm.translation_controls(self.vcpu.space, self).space();
        self.owner.try_halt(space)
    }
}
