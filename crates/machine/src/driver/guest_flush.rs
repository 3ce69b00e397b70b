//! Flushes by a guest.

use tlfs::CallRegisters;

use super::flush::encode;
use super::guest::{ALL_PAGES, Exit, PendingCall, Step};
use super::processor::Guest;
use super::vm::Architecture;
use crate::hw::format::Arch;
use crate::hw::instruction::Tlbi;
use crate::layout::{VA_PAGES, input_page, table, va};
use crate::program::FlushOp;

impl<F: Architecture> Guest<'_, '_, F> {
    /// Drops the vCPU's own translations: of a page, or all by reloading the root.
    pub(super) fn flush_own(&mut self, page: Option<usize>) -> Step {
        let (machine, cpu) = (self.cpu.machine, self.cpu.number);
        let mut hw = machine.hw.borrow_mut();
        match (machine.config.arch, page) {
            (Arch::Amd64 | Arch::Intel64, Some(page)) => hw.invalidate_own(cpu, va(page)),
            (Arch::Amd64 | Arch::Intel64, None) => hw.reload_guest_root(cpu, table::root(self.vcpu.space)),
            (Arch::Arm64, page) => {
                // HCR_EL2.FB determines whether they are broadcasts (A21).
                let (va, level) = (va(page.unwrap_or(0)), None);
                let what = match (page.is_some(), machine.config.arm.forces_broadcast) {
                    (true, true) => Tlbi::Va { va, level },
                    (true, false) => Tlbi::VaLocal { va, level },
                    (false, true) => Tlbi::Vmall,
                    (false, false) => Tlbi::VmallLocal,
                };
                hw.tlbi(cpu, machine.stage2.loaded(cpu), what);
                hw.dsb(cpu);
            }
        }
        let (time, pages) = (hw.memory.now(), page.map_or(ALL_PAGES, |page| 1 << page));
        if page.is_none() && machine.config.globals {
            return Step::Next;
        }
        self.promise(Some(self.vcpu.space), pages, time);
        Step::Next
    }

    /// From now on the vCPU uses nothing that was replaced before `time`.
    fn promise(&self, space: Option<usize>, pages: u16, time: u64) {
        let mut oracle = self.cpu.machine.oracle.borrow_mut();
        oracle.promise_guest(self.vm.index, self.number, space, pages, time);
    }

    pub(super) fn switch(&mut self, space: usize) -> Step {
        let (machine, cpu) = (self.cpu.machine, self.cpu.number);
        self.vcpu.space = space;
        let mut hw = machine.hw.borrow_mut();
        hw.load_guest_root(cpu, table::root(space));
        if machine.config.arch.is_x86() && !machine.config.pcid {
            // Without PCIDs nothing of either space remains.
            let time = hw.memory.now();
            self.promise(None, ALL_PAGES, time);
        }
        Step::Next
    }

    /// Flushes translations of several vCPUs: by hypercall, or by broadcast where available.
    pub(super) fn flush(&mut self, op: FlushOp) -> Step {
        if self.cpu.machine.config.arch == Arch::Arm64 {
            self.broadcast(op);
            return Step::Next;
        }
        let call = match &mut self.vcpu.call {
            Some(call) => call,
            empty => {
                let calls = encode(&op, self.cpu.machine.config.first_vp);
                if calls.is_empty() {
                    return Step::Next;
                }
                empty.insert(PendingCall { op, calls, written: 0, begin: None })
            }
        };
        let (encoded, page) = &call.calls[0];
        let words = encoded.words(page);
        let control = encoded.control.into_bits();
        if encoded.control.fast() {
            let registers = encoded.registers(page);
            call.begin.get_or_insert(self.cpu.machine.now());
            let (input, output) = (registers[0], registers[1]);
            return Step::Exit(Exit::Hypercall(CallRegisters { control, input, output }));
        }
        let input = input_page(self.number);
        if let Some(&word) = words.get(call.written) {
            let gpa = input + call.written as u64 * 8;
            let step = self.store_direct(gpa, word);
            return match (step, &mut self.vcpu.call) {
                (Step::Next, Some(call)) => {
                    call.written += 1;
                    Step::Again
                }
                (step, _) => step,
            };
        }
        call.begin.get_or_insert(self.cpu.machine.now());
        Step::Exit(Exit::Hypercall(CallRegisters { control, input, output: 0 }))
    }

    /// TLBI by the guest, for all of its vCPUs.
    fn broadcast(&mut self, op: FlushOp) {
        let (machine, cpu) = (self.cpu.machine, self.cpu.number);
        let vmid = machine.stage2.loaded(cpu);
        let mut hw = machine.hw.borrow_mut();
        let begin = hw.memory.now();
        match op.pages {
            None => hw.tlbi(cpu, vmid, Tlbi::Vmall),
            Some(pages) => {
                for page in (0..VA_PAGES).filter(|page| pages >> page & 1 != 0) {
                    hw.tlbi(cpu, vmid, Tlbi::Va { va: va(page), level: None });
                }
            }
        }
        hw.dsb(cpu);
        let mut oracle = machine.oracle.borrow_mut();
        for vcpu in 0..self.vm.vcpus.len() {
            oracle.promise_guest(self.vm.index, vcpu, op.space, op.pages.unwrap_or(ALL_PAGES), begin);
        }
    }
}
