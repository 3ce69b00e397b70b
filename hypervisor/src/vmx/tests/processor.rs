//! The mock processor with VMX, by the names that SVM's tests have for theirs: so tests of what is
//! the same on both are the same.

use alloc::boxed::Box;
use alloc::format;
use alloc::string::String;
use alloc::vec;
use alloc::vec::Vec;
use baremetal::random::Random;
use coherence::CpuId;
use memslots::Gpa;
use stay::tagged::two_flushes::{Invept, Invvpid, Roots};
use std::cell::RefCell;
use std::sync::LazyLock;

pub(crate) use super::mock::written;
use super::mock::{self, Stay};
use super::said::Said;
use crate::devices::state_checks::Reasons;
use crate::svm::tests::guest::Guest as GuestOf;
pub(crate) use crate::svm::tests::guest::Kind;
pub(crate) use crate::svm::tests::processor::{CODE, DATA, HOLE, MEMORY, TABLES, UNMAPPED, processor};
use crate::svm::tests::processor::{Mock, OnMock, TWO_VCPUS, begin_on, board_on, with_guest_on};
use crate::vm::mock::{MockBoard, board_impl};
use crate::vm::{Context, Next, PerCpu};
use crate::vmx::apic::{IRR, ISR, TPR};
use crate::vmx::capabilities::Capabilities;
use crate::vmx::controls::{self, Controls, Word};
use crate::vmx::copies::{Copied, FIELDS};
use crate::vmx::fields::Named;
use crate::vmx::intercepts;
use crate::vmx::processor::{OnVmx, Vmx};
use crate::vmx::refusal::{wrong_event, wrong_field};
use crate::vmx::run::{self, Instructions};
use crate::vmx::soft_state::Register;
use crate::vmx::table::{self, REFUSED};
use crate::vmx::vmcs::Vmcs;
use crate::x86::arch_impl::OnX86;
use crate::x86::enter;
use crate::x86::vcpu::block::Field::Rip;
use crate::x86::vcpu::block::{ControlBlock, Segment, SegmentName};
use crate::x86::vcpu::registers::Registers;
use crate::x86::vcpu::state::VcpuState;

pub(crate) type MockVmx = OnX86<OnVmx<Mock>>;
pub(crate) type Tested = MockVmx;
pub(crate) type Guest<'c, 'a> = GuestOf<'c, 'a, MockVmx>;

impl OnMock for OnVmx<Mock> {}

/// What INVVPID and INVEPT named.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Invalidated {
    Guests(Invvpid),
    Nested(Invept),
}

/// A capability MSR: everything is allowed, and NE and VMXE must be set.
pub(in crate::vmx) fn capability(number: u32) -> u64 {
    match number {
        0x10a => 1 << 6,
        0x480 => 1 << 55 | 1,
        0x486 => 0x8000_0021,
        0x487 | 0x489 => 0xffff_ffff,
        0x488 => 0x2000,
        0x48c => u64::MAX,
        _ => 0xffff_ffff << 32,
    }
}

/// Of the virtual-APIC page.
const PAGE_WORDS: usize = 512;

thread_local! {
    pub(crate) static INVALIDATED: RefCell<Vec<Invalidated>> = const { RefCell::new(Vec::new()) };
    /// The interrupts whose handlers were to run.
    pub(crate) static ACKNOWLEDGED: RefCell<Vec<u8>> = const { RefCell::new(Vec::new()) };
    /// The CPUs that were told of posted interrupts.
    pub(crate) static TOLD: RefCell<Vec<u32>> = const { RefCell::new(Vec::new()) };
    static ROOTS: &'static Roots = Box::leak(Box::default());
}

impl Vmx for MockVmx {
    fn chosen() -> (&'static Capabilities, Controls) {
        static CAPABILITIES: LazyLock<Capabilities> = LazyLock::new(|| Capabilities::read(true, capability));
        (&CAPABILITIES, CAPABILITIES.choose().unwrap_or_else(|lacking| panic!("{lacking}")))
    }

    fn vmread(field: u32) -> u64 {
        <mock::Mock as Instructions>::vmread(field)
    }

    fn read_soft(register: Register) -> u64 {
        <mock::Mock as Instructions>::read_soft(register)
    }

    fn arrive(cpu: &PerCpu<Self>, vmcs: &mut Vmcs) {
        run::arrive::<mock::Mock>(CpuId(cpu.index.0), vmcs);
    }

    fn leave(vmcs: &mut Vmcs) {
        run::leave::<mock::Mock>(vmcs);
    }

    fn release_interrupts(acknowledged: Option<u8>) {
        ACKNOWLEDGED.with_borrow_mut(|all| all.extend(acknowledged));
        board_impl::take_what_pends::<Self>();
    }

    fn tell(cpu: &PerCpu<Self>) {
        TOLD.with_borrow_mut(|told| told.push(cpu.index.0));
    }

    unsafe fn run(cpu: &PerCpu<Self>, vmcs: &mut Vmcs, registers: &mut Registers) -> bool {
        let refused = wrong_event(vmcs).or_else(|| wrong_field::<Self>(vmcs));
        mock::mock(|mock| mock.refused = refused);
        mock::run(cpu.index.0, vmcs, registers)
    }

    fn invalidate(named: Invvpid) {
        INVALIDATED.with_borrow_mut(|all| all.push(Invalidated::Guests(named)));
    }

    fn invalidate_nested(named: Invept) {
        INVALIDATED.with_borrow_mut(|all| all.push(Invalidated::Nested(named)));
    }

    /// Those of the only CPU of this thread's test.
    fn roots(_: &PerCpu<Self>) -> &Roots {
        ROOTS.with(|roots| *roots)
    }
}

/// Reason, length and qualification of the exit that SVM describes so.
fn translated(code: u64, info_1: u64, next: u64, written: u8) -> (u64, u64, u64) {
    let is = |bit: u32| info_1 >> bit & 1;
    match code {
        0x14 => (28, 3, 4 | u64::from(written & 7) << 8),
        0x72 => (10, 2, 0),
        0x78 => (12, 1, 0),
        0x7b => {
            let size = (info_1 >> 4).wrapping_sub(1) & 7;
            (30, next, info_1 & 0xffff_0000 | size | is(0) << 3 | is(2) << 4 | is(3) << 5)
        }
        0x7c => (31 + is(0), 2, 0),
        0x81 => (18, 3, 0),
        0x8d => (55, 3, 0),
        0x400 => {
            let is_itself = is(33) ^ 1;
            (48, 0, (1 - is(1)) | is(1) << 1 | is(4) << 2 | 1 << 7 | is_itself << 8)
        }
        _ => panic!("{code:#x} has no counterpart"),
    }
}

impl Kind for MockVmx {
    fn take_exit(context: &mut Context<'_, Self>, [code, info_1, info_2]: [u64; 3], event: u64) -> Next {
        let written = context.vm.space.slots().memory().read_u64(Gpa(CODE)).expect("code") >> 16;
        let next = info_2.wrapping_sub(context.state.block.read(Rip));
        let (reason, length, qualification) = translated(code, info_1, next, written as u8);
        exit_with(context, Said { physical: info_2, event, ..Said::of(reason, length, qualification) })
    }

    fn enter_once(context: &mut Context<'_, Self>) -> bool {
        let has_entered = enter::enter(context);
        mock::mock(|mock| mock.refused = None);
        has_entered
    }

    fn set_cpl(vmcs: &mut Vmcs, cpl: u8) {
        let attributes = 0xc93 | u16::from(cpl) << 5;
        let segment = Segment { selector: 0x10 | u16::from(cpl), attributes, limit: u32::MAX, base: 0 };
        vmcs.set_segment(SegmentName::Ss, segment);
    }

    fn image(vmcs: &Vmcs) -> String {
        let named = FIELDS.into_iter().zip(vmcs.copies).filter(|(field, _)| *field != 0);
        let named: Vec<_> = named.map(|(field, copy)| format!("{}: {copy:x}", Named(field))).collect();
        let page: Vec<_> = (0..PAGE_WORDS).map(|word| vmcs.apic.read(word)).collect();
        let others = format!("{vmcs:x?}").replace(&format!("{:x?}", vmcs.copies), "above");
        format!("Block {{ {}, page: {page:x?}, vmcs: {others} }}", named.join(", "))
    }

    fn spoil(vmcs: &mut Vmcs, random: &mut Random) {
        for register in [Copied::Interruptibility, Copied::Activity, Copied::PendingDebug] {
            vmcs.set_copy(register, random.word());
        }
        vmcs.set_pointers(core::array::from_fn(|_| random.word()));
        (vmcs.event, vmcs.offered, vmcs.vectoring) = (random.word(), random.word(), random.word());
        // TPR, ISR and IRR: a register of 32 bits every 16 bytes.
        let places = [TPR].into_iter().chain((ISR..ISR + 16).step_by(2)).chain((IRR..IRR + 16).step_by(2));
        places.for_each(|place| vmcs.apic.write(place, random.word() & 0xffff_ffff));
        vmcs.set_threshold(random.word() as u8);
        vmcs.set_interrupt_window(random.one_in(2));
        vmcs.set_nmi_window(random.one_in(2));
    }

    const OWN: Reasons = &[
        ("a vCPU that halts does so in the hypervisor", "block.ACTIVITY"),
        (
            "the machine's",
            "block.EPT_POINTER block.vmcs.changed_by_exits block.vmcs.controls.apic \
             block.vmcs.controls.p* block.vmcs.controls.words.3 block.vmcs.host \
             block.vmcs.list block.vmcs.maps block.vmcs.masks block.vmcs.own* \
             block.vmcs.soft.from_processor block.vmcs.region block.vmcs.vmread",
        ),
        ("the local APIC gets it back", "block.INTERRUPT_STATUS block.page block.vmcs.apic"),
        ("where it runs", "block.vmcs.active block.vmcs.host_stack block.vmcs.is_new block.vmcs.soft.loaded"),
        ("each by its name", "block.vmcs.copies"),
        ("an entry writes it", "block.vmcs.dirty*"),
        ("an exit sets it", "block.vmcs.stale"),
        (
            "an exit writes it",
            "block.vmcs.code block.vmcs.qualification block.vmcs.guest_physical \
             block.vmcs.length block.vmcs.interruption block.vmcs.vectoring",
        ),
        (
            "by what the vCPU waits for",
            "block.vmcs.controls.words.0 block.vmcs.controls.words.1 \
             block.vmcs.controls.words.2 block.vmcs.threshold block.vmcs.offered",
        ),
        ("nobody has used those of the receiver", "block.vmcs.nested_debt"),
    ];
    const LEFT: Reasons = &[
        ("whoever begins PAE paging loads them", "block.vmcs.pointers"),
        ("an exit writes it", "block.vmcs.vectoring"),
    ];
    const LEFT_BY_INIT: Reasons = &[
        ("the manual", "block.GUEST_SYSENTER_*"),
        ("time goes on", "block.TSC_OFFSET"),
        ("STAR: the manual", "block.vmcs.soft.values.2"),
        ("LSTAR: the manual", "block.vmcs.soft.values.3"),
        ("CSTAR: the manual", "block.vmcs.soft.values.4"),
        ("SFMASK: the manual", "block.vmcs.soft.values.5"),
        ("KERNEL_GS_BASE: the manual", "block.vmcs.soft.values.6"),
    ];

    fn msr_exits(number: u32) -> [bool; 2] {
        let mut map = vec![0; 0x1000];
        intercepts::fill_msr_map::<Self>(&mut map);
        let byte = 0x400 * (number as usize >> 31) + (number as usize & 0x1fff) / 8;
        [byte, byte + 0x800].map(|byte| map[byte] >> (number % 8) & 1 != 0)
    }
}

/// Handles an exit of a guest whose state is that of the block.
fn exit_with(context: &mut Context<'_, MockVmx>, said: Said) -> Next {
    mock::expect(move |stay, _| stay.said = said);
    mock::mock(|mock| mock.fails = said.code == REFUSED);
    let VcpuState { block: vmcs, registers, .. } = &mut *context.state;
    // It has got what an entry before has delivered.
    (vmcs.event, vmcs.offered) = (0, 0);
    let has_run = mock::run(context.cpu.index.0, vmcs, registers);
    mock::mock(|mock| mock.fails = false);
    vmcs.leave(has_run);
    enter::after_exit(context);
    table::handle_exit(context)
}

impl Guest<'_, '_> {
    /// An exit with this code, because of an instruction of this length.
    pub(crate) fn leave(&mut self, code: u64, length: u64, qualification: u64) -> Next {
        self.leave_with(Said::of(code, length, qualification))
    }

    /// An exit that says more.
    pub(crate) fn leave_with(&mut self, said: Said) -> Next {
        exit_with(self.0, said)
    }

    /// Enters the guest, which does `stay`; returns whether it was entered.
    pub(crate) fn enter(&mut self, stay: impl FnMut(&mut Stay, &mut Registers) + 'static) -> bool {
        mock::expect(stay);
        let has_entered = enter::enter(self.0);
        assert_eq!(mock::mock(|mock| mock.refused.take()), None, "the processor refuses the entry");
        has_entered
    }

    /// Handles the exit that has ended the stay.
    pub(crate) fn handle(&mut self) -> Next {
        table::handle_exit(self.0)
    }

    /// Enters the guest, which an interrupt of the machine ends at once; what the entry delivered.
    pub(crate) fn delivered(&mut self) -> u64 {
        assert!(self.enter(|_, _| {}));
        mock::last_delivered()
    }

    /// Whether it exits as soon as it can take an interrupt, and an NMI.
    pub(crate) fn windows(&mut self) -> [bool; 2] {
        [controls::INTERRUPT_WINDOW, controls::NMI_WINDOW].map(|bit| self.vmcs().control(Word::Primary, bit))
    }

    pub(crate) fn vmcs(&mut self) -> &mut Vmcs {
        &mut self.0.state.block
    }
}

/// Gives vCPU 0 of a machine with this configuration to `act`.
pub(crate) fn with_guest_of<R>(config: &'static str, act: impl FnOnce(&mut Guest<'_, '_>) -> R) -> R {
    mock::begin();
    board_on::<OnVmx<Mock>>(config).with_vcpu(0, |context| begin_on(context, &[], act))
}

/// A board with a machine of two vCPUs.
pub(crate) fn board() -> &'static MockBoard<MockVmx> {
    board_on::<OnVmx<Mock>>(TWO_VCPUS)
}

/// Gives vCPU 0 of a new machine to `act`, in 64-bit mode at ring 0, with `code` at RIP.
pub(crate) fn with_guest<R>(code: &[u8], act: impl FnOnce(&mut Guest<'_, '_>) -> R) -> R {
    mock::begin();
    with_guest_on(code, act)
}
