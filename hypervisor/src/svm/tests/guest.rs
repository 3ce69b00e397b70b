//! A vCPU of the mock processor, as tests use it.

use alloc::boxed::Box;
use hostlink::counters::Counter;
use memslots::Gpa;

use super::processor::{CODE, DATA, MockSvm, TABLES, processor};
use crate::svm::vmcb::{EFER_SVME, Vmcb};
use crate::vm::{Context, Next};
use crate::x86::vcpu::block::Segment;
use crate::x86::vcpu::registers::Registers;
use crate::x86::vcpu::state::Activity;
use crate::x86::{CR0_PE, CR4_PAE, EFER_LMA, EFER_LME, enter};

/// vCPU 0 on a CPU.
pub(crate) struct Guest<'c, 'a>(pub(crate) &'c mut Context<'a, MockSvm>);

impl Guest<'_, '_> {
    /// Everything as at the beginning of a test.
    pub(crate) fn begin(&mut self, code: &[u8]) {
        self.0.state.activity = Activity::Running;
        self.0.state.exception = None;
        self.write(TABLES, &((TABLES + 0x1000) | 7).to_le_bytes());
        self.write(TABLES + 0x1000, &((TABLES + 0x2000) | 7).to_le_bytes());
        for index in 0..512 {
            self.write(TABLES + 0x2000 + 8 * index, &(index << 21 | 0xe7).to_le_bytes());
        }
        self.long_mode();
        self.write(CODE, code);
    }

    /// 64-bit mode at ring 0.
    pub(crate) fn long_mode(&mut self) {
        let vmcb = &mut *self.0.state.block;
        vmcb.efer = EFER_SVME | EFER_LME | EFER_LMA;
        vmcb.cr0 = 1 << 31 | CR0_PE | 1 << 16;
        vmcb.cr3 = TABLES;
        vmcb.cr4 = CR4_PAE | 1 << 18;
        vmcb.cs = Segment { selector: 8, attributes: 0x29b | Segment::LONG, limit: u32::MAX, base: 0 };
        vmcb.cpl = 0;
        vmcb.rflags = 2;
        vmcb.rip = CODE;
        vmcb.rsp = DATA + 0x1000;
        vmcb.event_injection = 0;
        vmcb.exit_interrupt_info = 0;
    }

    /// Protected mode without paging, of 32 or 16 bits, at ring 0.
    pub(crate) fn legacy_mode(&mut self, attributes: u16) {
        let vmcb = &mut *self.0.state.block;
        vmcb.efer = EFER_SVME;
        vmcb.cr0 = CR0_PE;
        vmcb.cr4 = 1 << 18;
        vmcb.cs = Segment { selector: 8, attributes: 0x9b | attributes, limit: u32::MAX, base: 0 };
    }

    pub(crate) fn write(&self, gpa: u64, bytes: &[u8]) {
        self.0.vm.space.slots().memory().write(Gpa(gpa), bytes).expect("memory of the guest's");
    }

    pub(crate) fn read(&self, gpa: u64) -> u64 {
        self.0.vm.space.slots().memory().read_u64(Gpa(gpa)).expect("memory of the guest's")
    }

    pub(crate) fn vmcb(&mut self) -> &mut Vmcb {
        &mut self.0.state.block
    }

    pub(crate) fn set(&mut self, register: usize, value: u64) {
        self.0.state.registers.0[register] = value;
    }

    pub(crate) fn set_all(&mut self, registers: &[(usize, u64)]) {
        for &(register, value) in registers {
            self.set(register, value);
        }
    }

    pub(crate) fn get(&self, register: usize) -> u64 {
        self.0.state.registers.0[register]
    }

    pub(crate) fn exit(&mut self, code: u64, info_1: u64, info_2: u64) -> Next {
        let vmcb = &mut *self.0.state.block;
        (vmcb.exit_code, vmcb.exit_info_1, vmcb.exit_info_2) = (code, info_1, info_2);
        crate::svm::table::handle_exit(self.0)
    }

    pub(crate) fn count(&self, counter: Counter) -> u64 {
        self.0.counters[counter as usize].load(core::sync::atomic::Ordering::Relaxed)
    }

    pub(crate) fn raised(&self) -> Option<u64> {
        self.0.state.exception.map(|event| event & 0xff)
    }

    /// How far RIP has advanced.
    pub(crate) fn advanced(&self) -> u64 {
        self.0.state.block.rip.wrapping_sub(CODE)
    }

    /// Enters the guest, which does `stay`; returns whether it was entered.
    pub(crate) fn enter(&mut self, stay: impl FnMut(&mut Vmcb, &mut Registers) + 'static) -> bool {
        processor(|processor| processor.stay = Some(Box::new(stay)));
        enter::enter(self.0)
    }
}
