//! Nested page faults, and accesses to device registers.

use memslots::{AccessError, Gpa, Pattern};
use paging::Level;
use paging::guest::{Access, ControlRegisters, GuestPaging};
use stay::{Answer, Mistake, Mistakes, Source};

use super::cpu::Visit;
use super::vm::{Architecture, Vcpu, Vm};
use crate::bug::Bug;
use crate::hw::format::{Format, Stage};
use crate::hw::walk::Step;
use crate::layout::{PHYSICAL_BITS, VA_PAGES, table, va};
use crate::machine::AbstractMachine;

/// An access that nested tables did not allow.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct NestedFault {
    pub(crate) gpa: u64,
    pub(crate) store: bool,
    /// The address is that of an entry of the guest's tables.
    pub(crate) in_walk: bool,
    /// The page of the access, if it was by virtual address.
    pub(crate) page: Option<usize>,
    pub(crate) time: u64,
}

/// Registers of a guest in long mode, with `root` in CR3.
const fn registers(root: u64) -> ControlRegisters {
    ControlRegisters { cr0: 0x8001_0001, cr3: root, cr4: 0x20, efer: 0x500, rflags: 2 }
}

impl<'m, F: Architecture> Visit<'_, 'm, F> {
    /// Handles a nested fault. The operation is eventually retried or done.
    pub(crate) fn nested_fault(&mut self, fault: NestedFault) {
        let (vm, machine, number) = (self.vm, self.cpu.machine, self.number);
        // An operation may have been abandoned.
        let is_over = self.vcpu.tries == 0;
        let (gpa, updates) = (Gpa(fault.gpa), vm.updates.get());
        let was_absent = is_absent(vm, gpa);
        machine.point();
        let answer = stay::nested_fault(self, &vm.space, gpa, fault.store);
        machine.note(|| format!("fault of vCPU {}.{number} at {gpa}: {answer:?}", vm.index));
        match answer {
            Answer::Installed(_) | Answer::Upgraded | Answer::Retry | Answer::OutOfTables => {}
            // Stores to read-only memory are dropped; a walk that cannot mark an entry is the
            // guest's fault.
            Answer::ReadOnly if is_over => {}
            Answer::ReadOnly => self.give_up(),
            Answer::Mmio(source) => {
                if source == Source::Searched && machine.has(Bug::MmioDuringUpdate) {
                    machine.point();
                    let _ = stay::in_section(self, |_, vm| {
                        let late = vm.space.slots().generation();
                        vm.space.tables().mark(gpa.0, late.number() + u64::from(late.is_in_progress()))
                    });
                }
                if fault.in_walk && !is_over {
                    self.give_up();
                    return;
                }
                self.emulate(fault, (was_absent, updates));
            }
        }
    }

    /// Ends the operation, as far as it was possible.
    fn give_up(&mut self) {
        self.vcpu.call = None;
        self.cpu.machine.finish_op(self.vcpu);
    }

    /// Performs the access to a device's registers: in a section, by its own walk.
    fn emulate(&mut self, fault: NestedFault, (was_absent, updates): (bool, u64)) {
        let (vm, machine, number) = (self.vm, self.cpu.machine, self.number);
        let gpa = Gpa(fault.gpa);
        if let (Some(page), true) = (fault.page, F::ARCH.is_x86()) {
            let access = if fault.store { Access::WRITE } else { Access::empty() };
            let is_still_meant = stay::in_section(self, |vcpu, vm| {
                let found = translate(vm, number, vcpu, page, access);
                machine.point();
                found == Some(gpa)
            });
            if !is_still_meant {
                return;
            }
        }
        // There is no memory now, or there was none when the access began, or the slots changed in
        // between.
        if !was_absent && !is_absent(vm, gpa) && updates == vm.updates.get() {
            machine.fail(|| {
                format!(
                    "G8: vCPU {}.{number} takes {gpa} for MMIO, and it has been memory since {}",
                    vm.index, fault.time
                )
            });
        }
        if self.vcpu.tries != 0 {
            self.give_up();
        }
    }

    /// Looks at the code at a page, as done for most exits, and compares the remembered walk with a
    /// real one.
    pub(crate) fn look_at_code(&mut self) {
        let (machine, number) = (self.cpu.machine, self.number);
        // Not where the page begins.
        let at = va(machine.below(VA_PAGES)) + 1;
        let (found, expected) = stay::in_section(self, |vcpu, vm| {
            let (root, memory) = (table::root(vcpu.space), vm.space.slots().memory());
            let paging = GuestPaging::new(&registers(root), PHYSICAL_BITS, false);
            let walk = |va: u64, read: &mut dyn FnMut(Gpa) -> Result<u64, AccessError>| {
                paging.translate(va, Access::empty(), read).ok().map(|found| found.gpa)
            };
            let gpa = walk(at, &mut |gpa| memory.read_u64(gpa));
            let code = gpa.and_then(|gpa| memory.read_u64(gpa).ok());
            let pattern = Pattern::new(&code.unwrap_or(0).to_le_bytes());
            let found = vcpu.walks.has_at(at, root, &memory, &pattern, &Unseen(machine), walk);
            (found, code.is_some())
        });
        if found != expected {
            machine.fail(|| {
                format!("the way of vCPU {}.{number} to {at:#x} is not as remembered", self.vm.index)
            });
        }
    }
}

/// Mistakes that are made atomically: no other actor runs meanwhile.
struct Unseen<'m>(&'m AbstractMachine);

impl Mistakes for Unseen<'_> {
    fn makes(&self, mistake: Mistake) -> bool {
        self.0.has(Bug::Step(mistake))
    }
}

/// Walks the guest's tables by software, like an emulator; the walk is checked against the
/// guarantees.
fn translate<F: Architecture>(
    vm: &Vm<'_, F>,
    number: usize,
    vcpu: &Vcpu,
    page: usize,
    access: Access,
) -> Option<Gpa> {
    let machine = vm.machine;
    let paging = GuestPaging::new(&registers(table::root(vcpu.space)), PHYSICAL_BITS, false);
    let format = Format { arch: machine.config.arch, stage: Stage::Guest };
    let (mut steps, mut levels) = (Vec::new(), Level::ALL.into_iter().rev());
    let memory = vm.space.slots().memory();
    let found = paging.translate(va(page), access, |gpa| {
        machine.point();
        let entry = memory.read_u64(gpa)?;
        if let (memslots::Resolution::Ram { host, .. }, Some(level)) = (memory.resolve(gpa), levels.next()) {
            let time = machine.now();
            steps.push(Step {
                format,
                address: va(page),
                level,
                word: host.0,
                word_gpa: Some(gpa.0),
                entry,
                time,
            });
        }
        Ok::<_, AccessError>(entry)
    });
    let result = {
        let hw = machine.hw.borrow();
        machine.oracle.borrow().check(&hw.memory, vm.index, number, vcpu.space, &steps)
    };
    machine.demand(result);
    found.ok().map(|found| found.gpa)
}

/// Whether an address has no memory, according to the current slots.
fn is_absent<F: Architecture>(vm: &Vm<'_, F>, gpa: Gpa) -> bool {
    vm.space.slots().memory().find(gpa).is_none()
}
