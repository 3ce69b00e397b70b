//! Flushes by a guest.

use tlfs::CallRegisters;

use super::cpu::Cpu;
use super::flush::encode;
use super::guest::{ALL_PAGES, Exit, PendingCall, Step};
use super::vm::{Architecture, Vcpu, Vm};
use crate::hw::format::Arch;
use crate::hw::instruction::Tlbi;
use crate::layout::{VA_PAGES, input_page, table, va};
use crate::program::FlushOp;

impl Cpu<'_> {
    /// Drops the vCPU's own translations: of a page, or all by reloading the root.
    pub(super) fn flush_own<F: Architecture>(
        &mut self,
        vm: &Vm<'_, F>,
        number: usize,
        vcpu: &Vcpu,
        page: Option<usize>,
    ) -> Step {
        let mut hw = self.machine.hw.borrow_mut();
        match (self.machine.config.arch, page) {
            (Arch::Amd64, Some(page)) => hw.invalidate_own(self.number, va(page)),
            (Arch::Amd64, None) => hw.reload_guest_root(self.number, table::root(vcpu.space)),
            (Arch::Arm64, page) => {
                // HCR_EL2.FB determines whether they are broadcasts (A21).
                let (va, level) = (va(page.unwrap_or(0)), None);
                let what = match (page.is_some(), self.machine.config.arm.forces_broadcast) {
                    (true, true) => Tlbi::Va { va, level },
                    (true, false) => Tlbi::VaLocal { va, level },
                    (false, true) => Tlbi::Vmall,
                    (false, false) => Tlbi::VmallLocal,
                };
                hw.tlbi(self.number, self.machine.stage2.loaded(self.number), what);
                hw.dsb(self.number);
            }
        }
        let (time, pages) = (hw.memory.now(), page.map_or(ALL_PAGES, |page| 1 << page));
        self.machine.oracle.borrow_mut().promise_guest(vm.index, number, Some(vcpu.space), pages, time);
        Step::Next
    }

    pub(super) fn switch<F: Architecture>(
        &mut self,
        vm: &Vm<'_, F>,
        number: usize,
        vcpu: &mut Vcpu,
        space: usize,
    ) -> Step {
        vcpu.space = space;
        let mut hw = self.machine.hw.borrow_mut();
        hw.load_guest_root(self.number, table::root(space));
        if self.machine.config.arch == Arch::Amd64 && !self.machine.config.pcid {
            // Without PCIDs nothing of either space remains.
            let time = hw.memory.now();
            self.machine.oracle.borrow_mut().promise_guest(vm.index, number, None, ALL_PAGES, time);
        }
        Step::Next
    }

    /// Flushes translations of several vCPUs: by hypercall, or by broadcast where available.
    pub(super) fn flush<F: Architecture>(
        &mut self,
        vm: &Vm<'_, F>,
        number: usize,
        vcpu: &mut Vcpu,
        op: FlushOp,
    ) -> Step {
        if self.machine.config.arch == Arch::Arm64 {
            self.broadcast(vm, op);
            return Step::Next;
        }
        let call = match &mut vcpu.call {
            Some(call) => call,
            empty => {
                let calls = encode(&op, self.machine.config.first_vp);
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
            call.begin.get_or_insert(self.machine.now());
            return Step::Exit(Exit::Hypercall(CallRegisters {
                control,
                input: registers[0],
                output: registers[1],
            }));
        }
        let input = input_page(number);
        if let Some(&word) = words.get(call.written) {
            let gpa = input + call.written as u64 * 8;
            let step = self.store_direct(vm, number, vcpu, gpa, word);
            return match (step, &mut vcpu.call) {
                (Step::Next, Some(call)) => {
                    call.written += 1;
                    Step::Again
                }
                (step, _) => step,
            };
        }
        call.begin.get_or_insert(self.machine.now());
        Step::Exit(Exit::Hypercall(CallRegisters { control, input, output: 0 }))
    }

    /// TLBI by the guest, for all of its vCPUs.
    pub(super) fn broadcast<F: Architecture>(&mut self, vm: &Vm<'_, F>, op: FlushOp) {
        let vmid = self.machine.stage2.loaded(self.number);
        let mut hw = self.machine.hw.borrow_mut();
        let begin = hw.memory.now();
        match op.pages {
            None => hw.tlbi(self.number, vmid, Tlbi::Vmall),
            Some(pages) => {
                for page in (0..VA_PAGES).filter(|page| pages >> page & 1 != 0) {
                    hw.tlbi(self.number, vmid, Tlbi::Va { va: va(page), level: None });
                }
            }
        }
        hw.dsb(self.number);
        let mut oracle = self.machine.oracle.borrow_mut();
        for vcpu in 0..vm.vcpus.len() {
            oracle.promise_guest(vm.index, vcpu, op.space, op.pages.unwrap_or(ALL_PAGES), begin);
        }
    }
}
