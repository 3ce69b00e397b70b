//! A guest in guest mode, instruction by instruction.

use memslots::Gpa;
use paging::Level;
use tlfs::{CallRegisters, PAGE_WORDS};

use super::cpu::Cpu;
use super::fault::NestedFault;
use super::guest_tables::last_entry;
use super::vm::{Architecture, Vcpu, Vm, Window};
use crate::hw::format::{Arch, Format};
use crate::hw::walk::{Fault, Translation};
use crate::layout::{PAGE_SIZE, PAGES, VA_PAGES, WINDOWS, area, table, va};
use crate::program::{FlushOp, GpaPage, GuestOp, Track};

/// Nested faults after which an operation is abandoned: no vCPU may wait forever for memory that is
/// repeatedly added and removed.
const TRIES_MAX: u32 = 40;

/// The reason why a guest left guest mode.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Exit {
    Interrupt,
    NestedFault(NestedFault),
    Hypercall(CallRegisters),
    Halt,
    Yield,
    StartOver,
    Replace,
    /// It has no operations left, or its time slice is over.
    Over,
}

/// A flush by hypercall in progress.
#[derive(Clone, Debug)]
pub(crate) struct PendingCall {
    pub(crate) op: FlushOp,
    /// The calls to make, each with its input.
    pub(crate) calls: Vec<(tlfs::encode::EncodedCall, Box<[u64; PAGE_WORDS]>)>,
    /// Words of the first call's input that have been written.
    pub(super) written: usize,
    /// When the first call was made.
    pub(crate) begin: Option<u64>,
}

/// The continuation after an instruction.
pub(super) enum Step {
    /// The same operation.
    Again,
    /// The next operation.
    Next,
    Exit(Exit),
    /// Exit, and the operation is done.
    Last(Exit),
}

impl Cpu<'_> {
    /// Runs the guest until it leaves guest mode.
    pub(crate) fn run_guest<F: Architecture>(
        &mut self,
        vm: &Vm<'_, F>,
        number: usize,
        vcpu: &mut Vcpu,
    ) -> Exit {
        loop {
            self.machine.point();
            if self.machine.is_due(self.number) {
                return Exit::Interrupt;
            }
            let Some(&op) = vcpu.ops.get(vcpu.next) else { return Exit::Over };
            match self.execute(vm, number, vcpu, op) {
                Step::Again => {}
                Step::Next => self.finish_op(vcpu),
                Step::Exit(exit @ Exit::NestedFault(_)) => {
                    vcpu.tries += 1;
                    if vcpu.tries > TRIES_MAX {
                        vcpu.call = None;
                        self.finish_op(vcpu);
                    }
                    return exit;
                }
                Step::Exit(exit) => return exit,
                Step::Last(exit) => {
                    self.finish_op(vcpu);
                    return exit;
                }
            }
        }
    }

    /// Ends the current operation.
    pub(crate) fn finish_op(&self, vcpu: &mut Vcpu) {
        vcpu.next += 1;
        vcpu.tries = 0;
        self.machine.count();
    }

    fn execute<F: Architecture>(
        &mut self,
        vm: &Vm<'_, F>,
        number: usize,
        vcpu: &mut Vcpu,
        op: GuestOp,
    ) -> Step {
        match op {
            GuestOp::Load(page) => self.access(vm, number, vcpu, page, false),
            GuestOp::Store(page) => self.access(vm, number, vcpu, page, true),
            GuestOp::Direct(page, store) => self.direct(vm, number, vcpu, page, store),
            GuestOp::Map { space, page, to, write, used } => {
                let Some(entry_gpa) = last_entry(vm, space, page) else { return Step::Next };
                let gpa = area(to.area) + PAGES[to.page] * PAGE_SIZE;
                let arch = self.machine.config.arch;
                let entry = Format::guest_leaf(arch, gpa, Level::Page4K, write, used);
                self.write_entry(vm, number, vcpu, entry_gpa, entry, || ())
            }
            GuestOp::MapLarge { space, window, area: to, write } => {
                let entry =
                    Format::guest_leaf(self.machine.config.arch, area(to), Level::Page2M, write, true);
                self.write_window(vm, number, vcpu, (space, window), entry, Window::Large)
            }
            GuestOp::Unmap { space, page } => match last_entry(vm, space, page) {
                Some(entry_gpa) => self.write_entry(vm, number, vcpu, entry_gpa, 0, || ()),
                None => self.write_window(vm, number, vcpu, (space, page / PAGES.len()), 0, Window::Nothing),
            },
            GuestOp::Link { space, window, table: last } => {
                let entry = Format::guest_table(self.machine.config.arch, table::last(last));
                self.write_window(vm, number, vcpu, (space, window), entry, Window::Table(last))
            }
            GuestOp::LinkMiddle { space, number: middle } => {
                let entry = Format::guest_table(self.machine.config.arch, table::middle(space, middle));
                let gpa = table::upper(space) + Level::Page1G.index(va(0)) as u64 * 8;
                self.write_entry(vm, number, vcpu, gpa, entry, || {
                    vm.tables.borrow_mut().middle[space] = middle
                })
            }
            GuestOp::FlushOwn(page) => self.flush_own(vm, number, vcpu, Some(page)),
            GuestOp::Reload => self.flush_own(vm, number, vcpu, None),
            GuestOp::Switch(space) => self.switch(vm, number, vcpu, space),
            GuestOp::Flush(flush) => self.flush(vm, number, vcpu, flush),
            GuestOp::Halt => Step::Last(Exit::Halt),
            GuestOp::Yield => Step::Last(Exit::Yield),
            GuestOp::Preempt => Step::Last(Exit::Over),
            GuestOp::StartOver if F::ARCH == Arch::Amd64 => Step::Last(Exit::StartOver),
            GuestOp::StartOver => Step::Next,
            GuestOp::Replace => Step::Last(Exit::Replace),
            GuestOp::Spin(count) => {
                vcpu.spin += 1;
                if vcpu.spin <= count {
                    return Step::Again;
                }
                vcpu.spin = 0;
                Step::Next
            }
        }
    }

    /// A load or store by virtual address.
    fn access<F: Architecture>(
        &mut self,
        vm: &Vm<'_, F>,
        number: usize,
        vcpu: &Vcpu,
        page: usize,
        store: bool,
    ) -> Step {
        let address = va(page);
        let accessed = {
            let mut hw = self.machine.hw.borrow_mut();
            let value = store.then(|| hw.memory.now());
            hw.access(self.number, address, value)
        };
        match accessed {
            Ok(accessed) => {
                self.machine.note(|| {
                    let found = accessed.translation;
                    let hw = self.machine.hw.borrow();
                    format!(
                        "vCPU {}.{number} {} {address:#x}: {:#x} ({:?}), {} ({:?}, of {})",
                        vm.index,
                        if store { "stores to" } else { "loads" },
                        found.gpa,
                        found.level,
                        hw.memory.name(found.nested.place.pa),
                        found.nested.level,
                        found.nested.time,
                    )
                });
                self.check_access(vm, number, vcpu, Some(accessed.translation));
                self.take_down_stores(&accessed.stored);
                if store {
                    self.check_noted(vm, number, accessed.translation.gpa);
                }
                Step::Next
            }
            Err(fault) => self.fault(vm, number, fault, store, Some(page)),
        }
    }

    /// A load or store by the direct map.
    fn direct<F: Architecture>(
        &mut self,
        vm: &Vm<'_, F>,
        number: usize,
        vcpu: &Vcpu,
        page: GpaPage,
        store: bool,
    ) -> Step {
        let gpa = area(page.area) + PAGES[page.page] * PAGE_SIZE;
        if store {
            let value = self.machine.now();
            return self.store_direct(vm, number, vcpu, gpa, value);
        }
        let loaded = self.machine.hw.borrow_mut().load_direct(self.number, gpa);
        match loaded {
            Ok(_) => {
                self.check_access(vm, number, vcpu, None);
                Step::Next
            }
            Err(fault) => self.fault(vm, number, fault, false, None),
        }
    }

    pub(super) fn store_direct<F: Architecture>(
        &mut self,
        vm: &Vm<'_, F>,
        number: usize,
        vcpu: &Vcpu,
        gpa: u64,
        value: u64,
    ) -> Step {
        let stored = self.machine.hw.borrow_mut().store_direct(self.number, gpa, value);
        match stored {
            Ok(pa) => {
                self.machine.note(|| {
                    let hw = self.machine.hw.borrow();
                    format!(
                        "vCPU {}.{number} stores {value:#x} to {gpa:#x}: {}",
                        vm.index,
                        hw.memory.name(pa)
                    )
                });
                self.check_access(vm, number, vcpu, None);
                self.take_down_stores(&[pa]);
                self.check_noted(vm, number, gpa);
                Step::Next
            }
            Err(fault) => self.fault(vm, number, fault, true, None),
        }
    }

    /// Checks the access that was just done against the guarantees.
    fn check_access<F: Architecture>(
        &self,
        vm: &Vm<'_, F>,
        number: usize,
        vcpu: &Vcpu,
        found: Option<Translation>,
    ) {
        let roots = vm.roots(vcpu.space);
        let result = match found {
            Some(found) if found.nested_root != roots.nested => {
                Err("a translation of another virtual machine".into())
            }
            Some(found) if found.guest_root != roots.guest => {
                Err("a translation of another address space".into())
            }
            _ => {
                let hw = self.machine.hw.borrow();
                let oracle = self.machine.oracle.borrow();
                oracle.check(&hw.memory, vm.index, number, vcpu.space, &hw.steps)
            }
        };
        self.machine.demand(result.map_err(|what| format!("vCPU {}.{number}: {what}", vm.index)));
    }

    fn take_down_stores(&self, stored: &[u64]) {
        let now = self.machine.now();
        let mut oracle = self.machine.oracle.borrow_mut();
        stored.iter().for_each(|&pa| oracle.stored(pa, now));
    }

    /// Whether a store that was just done has left a trace, in the leaf or in the log, if dirty
    /// bits are tracked: without one, no fetch will ever report it.
    fn check_noted<F: Architecture>(&self, vm: &Vm<'_, F>, number: usize, gpa: u64) {
        if vm.is_changing.get() || self.machine.config.track != Track::DirtyBits {
            return;
        }
        let memory = vm.space.slots().memory();
        if memory.find(Gpa(gpa)).is_none_or(|slot| !slot.is_logged()) || memory.is_marked(Gpa(gpa)) {
            return;
        }
        let is_noted = self.machine.hw.borrow_mut().is_noted(self.number, gpa);
        if is_noted == Some(false) {
            self.machine.fail(|| {
                format!("vCPU {}.{number}: the store to {gpa:#x} leaves no trace in the log", vm.index)
            });
        }
    }

    fn fault<F: Architecture>(
        &self,
        vm: &Vm<'_, F>,
        number: usize,
        fault: Fault,
        store: bool,
        page: Option<usize>,
    ) -> Step {
        match fault {
            // A page fault, which the guest's kernel ignores.
            Fault::Guest => Step::Next,
            Fault::Nested { gpa, in_walk, store: in_store } => {
                let time = self.machine.now();
                Step::Exit(Exit::NestedFault(NestedFault {
                    gpa,
                    store: store && !in_walk || in_store,
                    in_walk,
                    page,
                    time,
                }))
            }
            Fault::Unknown => Step::Again,
            Fault::Forbidden(what) => {
                self.machine.fail(|| format!("vCPU {}.{number}: {what}", vm.index));
                Step::Next
            }
        }
    }
}

/// Bits for all pages.
pub(crate) const ALL_PAGES: u16 = (1 << VA_PAGES) - 1;
const _: () = assert!(WINDOWS * PAGES.len() <= 16);
