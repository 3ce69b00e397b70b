//! Nested page faults, and accesses to device registers.

use coherence::Owner;
use memslots::Gpa;
use memslots::space::Fault;
use paging::guest::{Access, ControlRegisters, GuestPaging};
use paging::{Format as TableFormat, Level};

use super::cpu::Cpu;
use super::vm::{Vcpu, Vm};
use crate::bug::Bug;
use crate::hw::format::{Arch, Format, Stage};
use crate::hw::walk::Step;
use crate::layout::{PHYSICAL_BITS, table, va};

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

impl Cpu<'_> {
    /// Deals with a nested fault. The operation is tried again, or done, in the end.
    pub(crate) fn nested_fault<F: TableFormat>(
        &mut self,
        vm: &Vm<'_, F>,
        number: usize,
        vcpu: &mut Vcpu,
        owner: &mut Owner<'_>,
        fault: NestedFault,
    ) {
        // An operation may have been given up.
        let is_over = vcpu.tries == 0;
        let (gpa, updates) = (Gpa(fault.gpa), vm.updates.get());
        let was_absent = is_absent(vm, gpa);
        let generation = vm.space.slots().generation();
        self.machine.point();
        if !fault.in_walk && vcpu.mmio.has(gpa, generation) {
            self.machine.note(|| format!("{gpa} is MMIO by the cache of vCPU {}.{number}", vm.index));
            self.emulate(vm, number, vcpu, owner, fault, (was_absent, updates));
            return;
        }
        let outcome = if self.machine.has(Bug::NoSection) {
            vm.space.fault(gpa, fault.store)
        } else {
            self.in_section(vm, vcpu, owner, |cpu, _| {
                cpu.machine.point();
                let outcome = vm.space.fault(gpa, fault.store);
                cpu.machine.point();
                outcome
            })
        };
        self.machine.note(|| format!("fault of vCPU {}.{number} at {gpa}: {outcome:?}", vm.index));
        match outcome {
            Fault::Installed(level) => {
                if level == Level::Page4K {
                    vm.has_small_pages.set(true);
                }
            }
            Fault::Upgraded | Fault::Retry | Fault::OutOfTables => {}
            // Stores to read-only memory are dropped; a walk that cannot mark an entry is the guest's fault.
            Fault::ReadOnly if is_over => {}
            Fault::ReadOnly => self.give_up(vcpu),
            Fault::Mmio { generation, .. } => {
                if self.machine.has(Bug::MmioDuringUpdate) {
                    self.machine.point();
                    let late = vm.space.slots().generation();
                    let _ = vm.space.tables().mark(gpa.0, late.number() + u64::from(late.is_in_progress()));
                }
                vcpu.mmio.insert(gpa, generation);
                if fault.in_walk && !is_over {
                    self.give_up(vcpu);
                    return;
                }
                self.emulate(vm, number, vcpu, owner, fault, (was_absent, updates));
            }
        }
    }

    /// Uses translations on the guest's behalf, after the flushes that have been asked for.
    fn in_section<F: TableFormat, R>(
        &mut self,
        vm: &Vm<'_, F>,
        vcpu: &mut Vcpu,
        owner: &mut Owner<'_>,
        work: impl FnOnce(&mut Self, &Vcpu) -> R,
    ) -> R {
        loop {
            if let Ok(section) = owner.begin_translation() {
                let result = work(self, vcpu);
                section.end();
                return result;
            }
            self.take_flush(vm, vcpu, owner);
        }
    }

    /// The operation is done as far as it goes.
    fn give_up(&self, vcpu: &mut Vcpu) {
        vcpu.call = None;
        self.finish_op(vcpu);
    }

    /// Performs the access on a device's registers: in a section, by a walk of its own.
    fn emulate<F: TableFormat>(
        &mut self,
        vm: &Vm<'_, F>,
        number: usize,
        vcpu: &mut Vcpu,
        owner: &mut Owner<'_>,
        fault: NestedFault,
        (was_absent, updates): (bool, u64),
    ) {
        let gpa = Gpa(fault.gpa);
        if let (Some(page), Arch::Amd64) = (fault.page, self.machine.config.arch) {
            let access = if fault.store { Access::WRITE } else { Access::empty() };
            let is_still_meant = self.in_section(vm, vcpu, owner, |cpu, vcpu| {
                let found = cpu.translate(vm, number, vcpu, page, access);
                cpu.machine.point();
                found == Some(gpa)
            });
            if !is_still_meant {
                return;
            }
        }
        // There is no memory now, or there was none when the access began, or the slots changed in between.
        if !was_absent && !is_absent(vm, gpa) && updates == vm.updates.get() {
            self.machine.fail(|| {
                format!(
                    "G8: vCPU {}.{number} takes {gpa} for MMIO, and it has been memory since {}",
                    vm.index, fault.time
                )
            });
        }
        if vcpu.tries != 0 {
            self.give_up(vcpu);
        }
    }

    /// Walks the guest's tables by software, as an emulator does; the walk is held against what was promised.
    fn translate<F: TableFormat>(
        &self,
        vm: &Vm<'_, F>,
        number: usize,
        vcpu: &Vcpu,
        page: usize,
        access: Access,
    ) -> Option<Gpa> {
        let paging = GuestPaging::new(&registers(table::root(vcpu.space)), PHYSICAL_BITS, false);
        let format = Format { arch: self.machine.config.arch, stage: Stage::Guest };
        let (mut steps, mut levels) = (Vec::new(), Level::ALL.into_iter().rev());
        let memory = vm.space.slots().memory();
        let found = paging.translate(va(page), access, |gpa| {
            self.machine.point();
            let entry = memory.read_u64(gpa)?;
            if let (memslots::Resolution::Ram { host, .. }, Some(level)) =
                (memory.resolve(gpa), levels.next())
            {
                let time = self.machine.now();
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
            Ok::<_, memslots::AccessError>(entry)
        });
        let result = {
            let hw = self.machine.hw.borrow();
            self.machine.oracle.borrow().check(&hw.memory, vm.index, number, vcpu.space, &steps)
        };
        self.machine.demand(result);
        found.ok().map(|found| found.gpa)
    }
}

/// Whether there is no memory at an address, by the slots of now.
fn is_absent<F: TableFormat>(vm: &Vm<'_, F>, gpa: Gpa) -> bool {
    vm.space.slots().memory().find(gpa).is_none()
}
