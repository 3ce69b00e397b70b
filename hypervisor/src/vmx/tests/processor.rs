//! The mock processor with VMX, by the names that SVM's tests have for theirs: so tests of what is
//! the same on both are the same.

use alloc::boxed::Box;
use alloc::collections::BTreeMap;
use alloc::vec;
use alloc::vec::Vec;
use memslots::Gpa;
use stay::tagged::two_flushes::{Invept, Invvpid, Roots};
use std::cell::RefCell;
use std::sync::LazyLock;

use crate::svm::tests::guest::Guest as GuestOf;
pub(crate) use crate::svm::tests::guest::Kind;
pub(crate) use crate::svm::tests::processor::{CODE, DATA, HOLE, MEMORY, TABLES, UNMAPPED, processor};
use crate::svm::tests::processor::{Mock, OnMock, begin_on, board_on, with_guest_on};
use crate::vm::mock::offer;
use crate::vm::{Context, Next, PerCpu};
use crate::vmx::capabilities::Capabilities;
use crate::vmx::controls::{self, Controls, Word};
use crate::vmx::fields::{self, Named};
use crate::vmx::outside::Register;
use crate::vmx::processor::{OnVmx, Vmx};
use crate::vmx::vmcs::Vmcs;
use crate::vmx::{intercepts, table};
use crate::x86::enter;
use crate::x86::offer::OnX86;
use crate::x86::vcpu::block::Field::Rip;
use crate::x86::vcpu::block::{ControlBlock, Segment, SegmentName};
use crate::x86::vcpu::event::ERROR_VALID;
use crate::x86::vcpu::registers::Registers;

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
pub(super) fn capability(number: u32) -> u64 {
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

type Stay = Box<dyn FnMut(&mut Vmcs, &mut Registers)>;

thread_local! {
    pub(crate) static INVALIDATED: RefCell<Vec<Invalidated>> = const { RefCell::new(Vec::new()) };
    /// The fields of the VMCS.
    static WRITTEN: RefCell<BTreeMap<u32, u64>> = const { RefCell::new(BTreeMap::new()) };
    static STAY: RefCell<Option<Stay>> = const { RefCell::new(None) };
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
        panic!("{} is read of no processor", Named(field))
    }

    fn read_outside(register: Register) -> u64 {
        panic!("{register:?} is read of no processor")
    }

    fn arrive(_: &PerCpu<Self>, _: &mut Vmcs) {}

    fn leave(_: &mut Vmcs) {}

    fn hold_interrupts() {}

    fn release_interrupts(acknowledged: Option<u8>) {
        ACKNOWLEDGED.with_borrow_mut(|all| all.extend(acknowledged));
        offer::take_what_pends::<Self>();
    }

    fn tell(cpu: &PerCpu<Self>) {
        TOLD.with_borrow_mut(|told| told.push(cpu.index));
    }

    unsafe fn run(_: &PerCpu<Self>, vmcs: &mut Vmcs, registers: &mut Registers) -> bool {
        let mut stay = STAY.take().expect("a test says what the guest does");
        WRITTEN.with_borrow_mut(|written| {
            // An exit makes it invalid.
            written.insert(fields::ENTRY_EVENT.raw(), 0);
            vmcs.write_changes(|field, value| {
                let _old = written.insert(field, value);
            });
        });
        (vmcs.vectoring, vmcs.code) = (0, 1);
        stay(vmcs, registers);
        true
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

/// What the VMCS has.
pub(crate) fn written(field: u32) -> u64 {
    WRITTEN.with_borrow(|written| written.get(&field).copied().expect("it is written before the first entry"))
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
    fn take_exit(context: &mut Context<'_, Self>, code: u64, info_1: u64, info_2: u64) -> Next {
        let written = context.vm.space.slots().memory().read_u64(Gpa(CODE)).expect("code") >> 16;
        let next = info_2.wrapping_sub(context.state.block.read(Rip));
        let (reason, length, qualification) = translated(code, info_1, next, written as u8);
        let vmcs = &mut *context.state.block;
        vmcs.guest_physical = info_2;
        exit_with(context, reason, length, qualification)
    }

    fn set_cpl(vmcs: &mut Vmcs, cpl: u8) {
        let attributes = 0xc93 | u16::from(cpl) << 5;
        let segment = Segment { selector: 0x10 | u16::from(cpl), attributes, limit: u32::MAX, base: 0 };
        vmcs.set_segment(SegmentName::Ss, segment);
    }

    fn set_cut_short(vmcs: &mut Vmcs, event: u64) {
        vmcs.vectoring = event;
    }

    fn msr_exits(number: u32) -> [bool; 2] {
        let mut map = vec![0; 0x1000];
        intercepts::fill_msr_map::<Self>(&mut map);
        let byte = 0x400 * (number as usize >> 31) + (number as usize & 0x1fff) / 8;
        [byte, byte + 0x800].map(|byte| map[byte] >> (number % 8) & 1 != 0)
    }
}

/// Handles an exit with this code, as the table has it.
pub(crate) fn exit_with(
    context: &mut Context<'_, MockVmx>,
    code: u64,
    length: u64,
    qualification: u64,
) -> Next {
    let vmcs = &mut *context.state.block;
    if (table::EXCEPTION..table::EXCEPTION + 0x100).contains(&code) {
        vmcs.interruption = vmcs.interruption & !0xff | code & 0xff;
    }
    vmcs.code = code;
    (vmcs.length, vmcs.qualification) = (length, qualification);
    table::handle_exit(context)
}

impl Guest<'_, '_> {
    /// An exit with this code, because of an instruction of this length.
    pub(crate) fn leave(&mut self, code: u64, length: u64, qualification: u64) -> Next {
        exit_with(self.0, code, length, qualification)
    }

    /// Enters the guest, which does `stay`; returns whether it was entered.
    pub(crate) fn enter(&mut self, stay: impl FnMut(&mut Vmcs, &mut Registers) + 'static) -> bool {
        STAY.set(Some(Box::new(stay)));
        enter::enter(self.0)
    }

    /// Enters the guest, which an interrupt of the machine ends at once; what the entry delivered.
    pub(crate) fn delivered(&mut self) -> u64 {
        assert!(self.enter(|_, _| {}));
        let event = written(fields::ENTRY_EVENT.raw());
        if event & ERROR_VALID == 0 { event } else { event | written(fields::ENTRY_ERROR_CODE.raw()) << 32 }
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
    board_on::<OnVmx<Mock>>(config).with_vcpu(0, |context| begin_on(context, &[], act))
}

/// Gives vCPU 0 of a new machine to `act`, in 64-bit mode at ring 0, with `code` at RIP.
pub(crate) fn with_guest<R>(code: &[u8], act: impl FnOnce(&mut Guest<'_, '_>) -> R) -> R {
    with_guest_on(code, act)
}
