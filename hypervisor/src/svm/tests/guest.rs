//! A vCPU of the mock processor, as tests use it.

use alloc::boxed::Box;
use hostlink::counters::Counter;
use memslots::Gpa;

use baremetal::random::Random;

use super::processor::{CODE, CpuData, DATA, MockSvm, TABLES, processor};
use crate::devices::state_checks::Reasons;
use crate::svm::audit::auditor::words;
use crate::svm::audit::changed;
use crate::svm::vmcb::{Vmcb, clean};
use crate::vm::arch::Cpus;
use crate::vm::{Context, Next};
use crate::x86::processor::X86;
use crate::x86::vcpu::block::Field::{self, Cr0, Cr3, Cr4, Efer, Rflags, Rip, Rsp};
use crate::x86::vcpu::block::{ControlBlock, Segment, SegmentName};
use crate::x86::vcpu::registers::{RAX, RCX, RDX, Registers};
use crate::x86::vcpu::state::{Activity, VcpuState};
use crate::x86::{CR0_PE, CR4_PAE, EFER_LMA, EFER_LME, enter};

/// Code of all addresses.
const FLAT: u16 = 0x9b | Segment::GRANULAR;

/// A kind of processor, as tests for all of them see it.
pub(crate) trait Kind: X86 + Cpus<CpuData = CpuData> {
    /// Handles an exit, whose code and information are described as by SVM, and which has cut this
    /// event short.
    fn take_exit(context: &mut Context<'_, Self>, exit: [u64; 3], event: u64) -> Next;
    /// Enters the guest, which an exit ends at once, or which the processor refuses.
    fn enter_once(context: &mut Context<'_, Self>) -> bool;
    /// Sets the privilege level.
    fn set_cpl(block: &mut Self::Block, cpl: u8);
    /// Whether reads and writes of this MSR cause exits.
    fn msr_exits(number: u32) -> [bool; 2];
    /// All that there is of a block, as `Debug` shows it.
    fn image(block: &Self::Block) -> String;
    /// Random values in all that guests and exits change.
    fn spoil(block: &mut Self::Block, random: &mut Random);
    /// What of a block no description has.
    const OWN: Reasons;
    /// What of a block a reset leaves.
    const LEFT: Reasons;
    /// What else of it INIT leaves.
    const LEFT_BY_INIT: Reasons;
}

impl Kind for MockSvm {
    fn take_exit(context: &mut Context<'_, Self>, exit: [u64; 3], event: u64) -> Next {
        let vmcb = &mut *context.state.block;
        [vmcb.exit_code, vmcb.exit_info_1, vmcb.exit_info_2] = exit;
        (vmcb.exit_interrupt_info, vmcb.event_injection) = (event, 0);
        // The processor has all of it, and is told what changes (APM volume 2, section 15.15).
        let dirty = !core::mem::replace(&mut vmcb.clean_bits, clean::ALL);
        let before = *words(vmcb);
        enter::after_exit(context);
        let next = crate::svm::table::handle_exit(context);
        let vmcb = &mut *context.state.block;
        assert_eq!(changed(&before, words(vmcb)) & vmcb.clean_bits, 0, "changed, and marked clean");
        vmcb.mark_dirty(dirty);
        next
    }

    fn enter_once(context: &mut Context<'_, Self>) -> bool {
        processor(|processor| processor.stay = Some(Box::new(|_, _| {})));
        enter::enter(context)
    }

    fn set_cpl(vmcb: &mut Vmcb, cpl: u8) {
        vmcb.cpl = cpl;
    }

    fn msr_exits(number: u32) -> [bool; 2] {
        // Two bits each: reads pass, and writes of those that are checked do not.
        let mut map = alloc::vec![0; 0x2000];
        crate::svm::intercepts::fill_msr_map::<Self>(&mut map);
        let (range, bits) = (number as usize >> 31, 2 * (number as usize & 0x1fff));
        let exits = map[0x800 * range + bits / 8] >> (bits % 8) & 3;
        [exits & 1 != 0, exits & 2 != 0]
    }

    fn image(vmcb: &Vmcb) -> String {
        alloc::format!("{vmcb:x?}")
    }

    fn spoil(vmcb: &mut Vmcb, random: &mut Random) {
        // SAFETY: the block is so large, and any bytes are one.
        let image = unsafe { &mut *core::ptr::from_mut(vmcb).cast::<[u8; 4096]>() };
        CHANGED.into_iter().flatten().for_each(|at| image[at] = random.word() as u8);
    }

    const OWN: Reasons = &[
        ("an entry sets it", "block.asid block.tlb_control"),
        ("nothing is cached", "block.clean_bits"),
        ("by what the vCPU waits for", "block.intercept_* block.interrupt_control"),
        ("an exit writes it", "block.exit_* block.next_rip block.fetched_*"),
        ("an entry takes it from the registers", "block.rax"),
        (
            "tables have none",
            "block.gdtr.attributes block.gdtr.selector block.idtr.attributes \
             block.idtr.selector",
        ),
        ("no guest can set it", "block.debug_ctl"),
        ("the machine's", "block.iopm_base block.msrpm_base block.nested_* block.pause_filter_*"),
        ("by the guest's nested tables", "block.inner.*"),
        ("it is not used", "block.virtualization_control"),
    ];
    const LEFT: Reasons = &[
        ("an exit writes it", "block.exit_* block.next_rip block.fetched_*"),
        ("an entry takes it from the registers", "block.rax"),
    ];
    const LEFT_BY_INIT: Reasons = &[
        (
            "the manual",
            "block.star block.lstar block.cstar block.sfmask block.kernel_gs_base \
             block.sysenter_*",
        ),
        ("time goes on", "block.tsc_offset"),
    ];
}

/// Ranges of the control block that change (APM volume 2, appendix B): intercepts, the interrupt
/// that is offered, what an exit reports, the event to inject, and the guest's state but for what
/// is reserved. The offset of the TSC changes by the guest's registers, and with its clock.
const CHANGED: [core::ops::Range<usize>; 11] = [
    0x00..0x18,
    0x60..0x90,
    0xa8..0xb0,
    0xc8..0xe0,
    0x400..0x4a0,
    0x4cb..0x4cc,
    0x4d0..0x4d8,
    0x548..0x580,
    0x5d8..0x5e0,
    0x5f8..0x648,
    0x668..0x670,
];

/// vCPU 0 on a CPU.
pub(crate) struct Guest<'c, 'a, A: Kind = MockSvm>(pub(crate) &'c mut Context<'a, A>);

impl<A: Kind> Guest<'_, '_, A> {
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
        for (field, value) in [
            (Efer, EFER_LME | EFER_LMA),
            (Cr0, 1 << 31 | CR0_PE | 1 << 16),
            (Cr3, TABLES),
            (Cr4, CR4_PAE | 1 << 18),
            (Rflags, 2),
            (Rip, CODE),
            (Rsp, DATA + 0x1000),
        ] {
            self.set_field(field, value);
        }
        let block = &mut *self.0.state.block;
        let code = Segment { selector: 8, attributes: FLAT | Segment::LONG, limit: u32::MAX, base: 0 };
        block.set_segment(SegmentName::Cs, code);
        block.set_event(0);
        A::set_cpl(block, 0);
    }

    /// Protected mode without paging, of 32 or 16 bits, at ring 0.
    pub(crate) fn legacy_mode(&mut self, attributes: u16) {
        for (field, value) in [(Efer, 0), (Cr0, CR0_PE), (Cr4, 1 << 18)] {
            self.set_field(field, value);
        }
        let code = Segment { selector: 8, attributes: FLAT | attributes, limit: u32::MAX, base: 0 };
        self.0.state.block.set_segment(SegmentName::Cs, code);
    }

    pub(crate) fn field(&self, field: Field) -> u64 {
        self.0.state.block.read(field)
    }

    pub(crate) fn set_field(&mut self, field: Field, value: u64) {
        self.0.state.block.write(field, value);
    }

    pub(crate) fn set_cpl(&mut self, cpl: u8) {
        A::set_cpl(&mut self.0.state.block, cpl);
    }

    pub(crate) fn write(&self, gpa: u64, bytes: &[u8]) {
        self.0.vm.space.slots().memory().write(Gpa(gpa), bytes).expect("memory of the guest's");
    }

    pub(crate) fn read(&self, gpa: u64) -> u64 {
        self.0.vm.space.slots().memory().read_u64(Gpa(gpa)).expect("memory of the guest's")
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
        self.exit_in_delivery(0, [code, info_1, info_2])
    }

    /// An exit that has cut this event short.
    pub(crate) fn exit_in_delivery(&mut self, event: u64, exit: [u64; 3]) -> Next {
        A::take_exit(self.0, exit, event)
    }

    /// A WRMSR by the guest; its code stays at RIP.
    pub(crate) fn write_msr(&mut self, number: u32, value: u64) -> Next {
        self.begin(&[0x0f, 0x30]);
        self.set_all(&[(RCX, number.into()), (RAX, value & 0xffff_ffff), (RDX, value >> 32)]);
        self.exit(super::rows::MSR, 1, 0)
    }

    /// An RDMSR by the guest: what EDX and EAX have then. Its code stays at RIP.
    pub(crate) fn read_msr(&mut self, number: u32) -> u64 {
        self.begin(&[0x0f, 0x32]);
        self.set(RCX, number.into());
        assert_eq!(self.exit(super::rows::MSR, 0, 0), Next::Resume);
        self.get(RDX) << 32 | self.get(RAX)
    }

    /// Sets the guest OS id, and enables the hypercall page. Restores the bytes at RIP.
    pub(crate) fn enable_hypercalls(&mut self) {
        let code = self.read(CODE);
        self.write_msr(tlfs::msr::GUEST_OS_ID, 1);
        self.write_msr(tlfs::msr::HYPERCALL, DATA + 0x5001);
        self.begin(&code.to_le_bytes());
    }

    pub(crate) fn count(&self, counter: Counter) -> u64 {
        self.0.counters[counter as usize].load(core::sync::atomic::Ordering::Relaxed)
    }

    pub(crate) fn raised(&self) -> Option<u64> {
        self.0.state.exception.map(|event| event & 0xff)
    }

    /// How far RIP has advanced.
    pub(crate) fn advanced(&self) -> u64 {
        self.field(Rip).wrapping_sub(CODE)
    }
}

impl Guest<'_, '_> {
    pub(crate) fn vmcb(&mut self) -> &mut Vmcb {
        &mut self.0.state.block
    }

    /// Enters the guest, which does `stay`; returns whether it was entered.
    pub(crate) fn enter(&mut self, stay: impl FnMut(&mut Vmcb, &mut Registers) + 'static) -> bool {
        processor(|processor| processor.stay = Some(Box::new(stay)));
        // What the test has changed, the guest or an exit would have.
        let VcpuState { block: vmcb, own, .. } = &mut *self.0.state;
        vmcb.mark_dirty(own.auditor.changed(vmcb));
        enter::enter(self.0)
    }
}
