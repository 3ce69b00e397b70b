//! A guest in guest mode, instruction by instruction.

use memslots::Gpa;
use paging::Level;
use tlfs::encode::EncodedCall;
use tlfs::{CallRegisters, PAGE_WORDS};

use super::fault::NestedFault;
use super::guest_tables::last_entry;
use super::processor::Guest;
use super::vm::{Architecture, Window};
use crate::hw::format::Format;
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

/// A call, and its input.
pub(super) type EncodedPage = (EncodedCall, Box<[u64; PAGE_WORDS]>);

/// A flush by hypercall in progress.
#[derive(Clone, Debug)]
pub(crate) struct PendingCall {
    pub(crate) op: FlushOp,
    pub(crate) calls: Vec<EncodedPage>,
    /// Words of the first call's input that have been written.
    pub(super) written: usize,
    /// When the first call was made.
    pub(crate) begin: Option<u64>,
}

/// The continuation after an instruction.
pub(super) enum Step {
    Again,
    Next,
    Exit(Exit),
    /// Exit, and the operation is done.
    Last(Exit),
}

impl<F: Architecture> Guest<'_, '_, F> {
    /// Runs the guest until it leaves guest mode.
    pub(super) fn run_guest(&mut self) -> Exit {
        let machine = self.cpu.machine;
        loop {
            machine.point();
            if machine.is_due(self.cpu.number) {
                return Exit::Interrupt;
            }
            let Some(&op) = self.vcpu.ops.get(self.vcpu.next) else { return Exit::Over };
            match self.execute(op) {
                Step::Again => {}
                Step::Next => self.finish_op(),
                Step::Exit(exit @ Exit::NestedFault(_)) => {
                    self.vcpu.tries += 1;
                    if self.vcpu.tries > TRIES_MAX {
                        self.vcpu.call = None;
                        self.finish_op();
                    }
                    return exit;
                }
                Step::Exit(exit) => return exit,
                Step::Last(exit) => {
                    self.finish_op();
                    return exit;
                }
            }
        }
    }

    pub(super) fn finish_op(&mut self) {
        self.cpu.machine.finish_op(self.vcpu);
    }

    /// What reports call the vCPU.
    fn name(&self) -> String {
        format!("vCPU {}.{}", self.vm.index, self.number)
    }

    fn execute(&mut self, op: GuestOp) -> Step {
        match op {
            GuestOp::Load(page) => self.access(page, false),
            GuestOp::Store(page) => self.access(page, true),
            GuestOp::Direct(page, store) => self.direct(page, store),
            GuestOp::Map { space, page, to, write, used } => {
                let Some(entry_gpa) = last_entry(self.vm, space, page) else { return Step::Next };
                let gpa = area(to.area) + PAGES[to.page] * PAGE_SIZE;
                let arch = self.cpu.machine.config.arch;
                let entry = Format::guest_leaf(arch, gpa, Level::Page4K, write, used);
                self.write_entry(entry_gpa, entry, || ())
            }
            GuestOp::MapLarge { space, window, area: to, write } => {
                let entry =
                    Format::guest_leaf(self.cpu.machine.config.arch, area(to), Level::Page2M, write, true);
                self.write_window((space, window), entry, Window::Large)
            }
            GuestOp::Unmap { space, page } => match last_entry(self.vm, space, page) {
                Some(entry_gpa) => self.write_entry(entry_gpa, 0, || ()),
                None => self.write_window((space, page / PAGES.len()), 0, Window::Nothing),
            },
            GuestOp::Link { space, window, table: last } => {
                let entry = Format::guest_table(self.cpu.machine.config.arch, table::last(last));
                self.write_window((space, window), entry, Window::Table(last))
            }
            GuestOp::LinkMiddle { space, number: middle } => {
                let entry = Format::guest_table(self.cpu.machine.config.arch, table::middle(space, middle));
                let gpa = table::upper(space) + Level::Page1G.index(va(0)) as u64 * 8;
                self.write_entry(gpa, entry, || self.vm.tables.borrow_mut().middle[space] = middle)
            }
            GuestOp::FlushOwn(page) => self.flush_own(Some(page)),
            GuestOp::Reload => self.flush_own(None),
            GuestOp::Switch(space) => self.switch(space),
            GuestOp::Flush(flush) => self.flush(flush),
            GuestOp::Halt => Step::Last(Exit::Halt),
            GuestOp::Yield => Step::Last(Exit::Yield),
            GuestOp::Preempt => Step::Last(Exit::Over),
            GuestOp::StartOver if F::ARCH.is_x86() => Step::Last(Exit::StartOver),
            GuestOp::StartOver => Step::Next,
            GuestOp::Replace => Step::Last(Exit::Replace),
            GuestOp::Spin(count) => {
                self.vcpu.spin += 1;
                if self.vcpu.spin <= count {
                    return Step::Again;
                }
                self.vcpu.spin = 0;
                Step::Next
            }
        }
    }

    /// A load or store by virtual address.
    fn access(&mut self, page: usize, store: bool) -> Step {
        let machine = self.cpu.machine;
        let address = va(page);
        let accessed = {
            let mut hw = machine.hw.borrow_mut();
            let value = store.then(|| hw.memory.now());
            hw.access(self.cpu.number, address, value)
        };
        match accessed {
            Ok(accessed) => {
                machine.note(|| {
                    let found = accessed.translation;
                    let hw = machine.hw.borrow();
                    format!(
                        "{} {} {address:#x}: {:#x} ({:?}), {} ({:?}, of {})",
                        self.name(),
                        if store { "stores to" } else { "loads" },
                        found.gpa,
                        found.level,
                        hw.memory.name(found.nested.place.pa),
                        found.nested.level,
                        found.nested.time,
                    )
                });
                self.check_access(Some(accessed.translation));
                self.take_down_stores(&accessed.stored);
                if store {
                    self.check_noted(accessed.translation.gpa);
                }
                Step::Next
            }
            Err(fault) => self.fault(fault, store, Some(page)),
        }
    }

    /// A load or store by the direct map.
    fn direct(&mut self, page: GpaPage, store: bool) -> Step {
        let gpa = area(page.area) + PAGES[page.page] * PAGE_SIZE;
        if store {
            let value = self.cpu.machine.now();
            return self.store_direct(gpa, value);
        }
        let loaded = self.cpu.machine.hw.borrow_mut().load_direct(self.cpu.number, gpa);
        match loaded {
            Ok(_) => {
                self.check_access(None);
                Step::Next
            }
            Err(fault) => self.fault(fault, false, None),
        }
    }

    pub(super) fn store_direct(&mut self, gpa: u64, value: u64) -> Step {
        let machine = self.cpu.machine;
        let stored = machine.hw.borrow_mut().store_direct(self.cpu.number, gpa, value);
        match stored {
            Ok(pa) => {
                machine.note(|| {
                    let hw = machine.hw.borrow();
                    format!("{} stores {value:#x} to {gpa:#x}: {}", self.name(), hw.memory.name(pa))
                });
                self.check_access(None);
                self.take_down_stores(&[pa]);
                self.check_noted(gpa);
                Step::Next
            }
            Err(fault) => self.fault(fault, true, None),
        }
    }

    /// Checks the access that was just done against the guarantees.
    fn check_access(&self, found: Option<Translation>) {
        let machine = self.cpu.machine;
        let roots = self.vm.roots(self.vcpu.space);
        let result = match found {
            Some(found) if found.nested_root != roots.nested => {
                Err("a translation of another virtual machine".into())
            }
            Some(found) if found.guest_root != roots.guest => {
                Err("a translation of another address space".into())
            }
            _ => {
                let hw = machine.hw.borrow();
                let oracle = machine.oracle.borrow();
                oracle.check(&hw.memory, self.vm.index, self.number, self.vcpu.space, &hw.steps)
            }
        };
        machine.demand(result.map_err(|what| format!("{}: {what}", self.name())));
    }

    fn take_down_stores(&self, stored: &[u64]) {
        let now = self.cpu.machine.now();
        let mut oracle = self.cpu.machine.oracle.borrow_mut();
        stored.iter().for_each(|&pa| oracle.stored(pa, now));
    }

    /// Whether a store that was just done has left a trace, if dirty bits are tracked: without
    /// one, no fetch will ever report it. It is in the leaf or in the log, and with lists in a list
    /// or in the log.
    fn check_noted(&self, gpa: u64) {
        let (machine, vm) = (self.cpu.machine, self.vm);
        if vm.is_changing.get() || machine.config.track == Track::WriteProtection {
            return;
        }
        let memory = self.vm.space.slots().memory();
        if memory.find(Gpa(gpa)).is_none_or(|slot| !slot.is_logged()) || memory.is_marked(Gpa(gpa)) {
            return;
        }
        let is_noted = match machine.config.track {
            Track::Lists => Some(machine.hw.borrow().is_listed(gpa)),
            _ => machine.hw.borrow_mut().is_noted(self.cpu.number, gpa),
        };
        if is_noted == Some(false) {
            machine.fail(|| format!("{}: the store to {gpa:#x} leaves no trace in the log", self.name()));
        }
    }

    fn fault(&self, fault: Fault, store: bool, page: Option<usize>) -> Step {
        match fault {
            // A page fault, which the guest's kernel ignores.
            Fault::Guest => Step::Next,
            Fault::Nested { gpa, in_walk, store: in_store } => {
                self.cpu.machine.hw.borrow_mut().violate(self.cpu.number, page.map(va), gpa);
                let (time, store) = (self.cpu.machine.now(), store && !in_walk || in_store);
                Step::Exit(Exit::NestedFault(NestedFault { gpa, store, in_walk, page, time }))
            }
            Fault::Unknown => Step::Again,
            Fault::Forbidden(what) => {
                self.cpu.machine.fail(|| format!("{}: {what}", self.name()));
                Step::Next
            }
        }
    }
}

/// Bits for all pages.
pub(crate) const ALL_PAGES: u16 = (1 << VA_PAGES) - 1;
const _: () = assert!(WINDOWS * PAGES.len() <= 16);
