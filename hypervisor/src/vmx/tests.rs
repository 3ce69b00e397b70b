//! Five exits, on the mock processor that SVM's tests have, with VMX's operations.

use alloc::vec;
use alloc::vec::Vec;
use core::num::NonZeroU32;
use hostlink::config::Config;
use hostlink::counters::Counter;
use memslots::Gpa;
use std::cell::RefCell;

use super::capabilities::Capabilities;
use super::controls::Controls;
use super::fields::Named;
use super::processor::{Invvpid, OnVmx, Vmx};
use super::table::{CPUID, EPT_VIOLATION, HALT, INTERRUPT, PORT};
use super::vmcs::Vmcs;
use crate::devices::pc::message::Trigger;
use crate::devices::pc::platform::SerialPort;
use crate::loader::test_kernel;
use crate::svm::tests::processor::{CODE, CpuData, Mock, OnMock, Processor, processor};
use crate::vm::mock::{self, offer};
use crate::vm::{Context, Files, Next, PerCpu};
use crate::x86::offer::OnX86;
use crate::x86::vcpu::block::Field::{Cr0, Rflags, Rip};
use crate::x86::vcpu::block::{ControlBlock, Segment, SegmentName};
use crate::x86::vcpu::event;
use crate::x86::vcpu::registers::{RAX, RBX, Registers};
use crate::x86::vcpu::state::Activity;
use crate::x86::{CR0_PE, RFLAGS_IF, enter};

type MockVmx = OnX86<OnVmx<Mock>>;

impl OnMock for OnVmx<Mock> {}

/// What INVVPID and INVEPT named.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Invalidated {
    Guests(Invvpid),
    Nested(u64),
}

type Stay = fn(&mut Vmcs, &mut Registers);

thread_local! {
    static INVALIDATED: RefCell<Vec<Invalidated>> = const { RefCell::new(Vec::new()) };
    static STAY: RefCell<Option<Stay>> = const { RefCell::new(None) };
}

impl Vmx for MockVmx {
    fn vpids() -> NonZeroU32 {
        NonZeroU32::new(0xffff).expect("a number")
    }

    fn chosen() -> (&'static Capabilities, Controls) {
        const NONE: &Capabilities = &Capabilities::NONE;
        (NONE, Controls::default())
    }

    fn vmread(field: u32) -> u64 {
        panic!("{} is read of no processor", Named(field))
    }

    fn leave(_: &mut Vmcs) {}

    fn hold_interrupts() {}

    fn release_interrupts() {
        offer::take_what_pends::<Self>();
    }

    unsafe fn run(_: &PerCpu<Self>, vmcs: &mut Vmcs, registers: &mut Registers) -> bool {
        STAY.with_borrow(|stay| stay.expect("a test says what the guest does"))(vmcs, registers);
        true
    }

    fn invalidate(named: Invvpid) {
        INVALIDATED.with_borrow_mut(|all| all.push(Invalidated::Guests(named)));
    }

    fn invalidate_nested(root: u64) {
        INVALIDATED.with_borrow_mut(|all| all.push(Invalidated::Nested(root)));
    }
}

/// A vCPU in protected mode without paging, at ring 0.
fn with_guest<R>(act: impl FnOnce(&mut Context<'_, MockVmx>) -> R) -> R {
    processor(|processor| *processor = Processor::new());
    let config = Config::parse("vcpus=1\nmemory=16777216").expect("a configuration");
    let files = Files { kernel: Vec::leak(test_kernel()), initrd: None, config };
    let board = mock::MockBoard::<MockVmx>::create_from([CpuData::default()], 32 << 20, files);
    board.unwrap_or_else(|why| panic!("{why}")).with_vcpu(0, |context| {
        let state = &mut *context.state;
        state.activity = Activity::Running;
        state.block.write(Cr0, CR0_PE);
        state.block.write(Rip, CODE);
        let flat = Segment { selector: 8, attributes: 0xc9b, limit: u32::MAX, base: 0 };
        state.block.set_segment(SegmentName::Cs, flat);
        act(context)
    })
}

/// Enters the guest, which does `stay`, and handles the exit.
fn stay(context: &mut Context<'_, MockVmx>, stay: Stay) -> Next {
    STAY.set(Some(stay));
    assert!(enter::enter(context));
    crate::vm::arch::Arch::handle_exit(context)
}

#[test]
fn five_exits_are_handled_as_on_svm() {
    with_guest(|context| {
        let next = stay(context, |vmcs, _| vmcs.reason = INTERRUPT);
        assert_eq!((next, context.state.block.read(Rip)), (Next::Resume, CODE));

        let next = stay(context, |vmcs, registers| {
            registers.0[RAX] = 0;
            (vmcs.reason, vmcs.length) = (CPUID, 2);
        });
        assert_eq!((next, context.state.block.read(Rip)), (Next::Resume, CODE + 2));
        assert_eq!(context.state.registers.0[RBX], 0x6874_7541, "the mock processor's name");

        // OUT 0x3f8, AL.
        let next = stay(context, |vmcs, registers| {
            registers.0[RAX] = b'x'.into();
            (vmcs.reason, vmcs.length, vmcs.qualification) = (PORT, 1, 0x3f8 << 16);
        });
        assert_eq!((next, context.state.block.read(Rip)), (Next::Resume, CODE + 3));
        let sent = processor(|processor| core::mem::take(&mut processor.sent));
        assert_eq!(sent, vec![(SerialPort::Com1, b'x')]);

        // A store to memory that is not mapped yet.
        let next = stay(context, |vmcs, _| {
            (vmcs.reason, vmcs.length) = (EPT_VIOLATION, 0);
            (vmcs.qualification, vmcs.guest_physical) = (1 << 1 | 1 << 7 | 1 << 8, 0x40_0000);
        });
        assert_eq!((next, context.state.block.read(Rip)), (Next::Resume, CODE + 3));
        assert!(context.vm.space.slots().memory().read_u64(Gpa(0x40_0000)).is_ok());
        let mapped = &context.counters[Counter::ExitNested as usize];
        assert_eq!(mapped.load(core::sync::atomic::Ordering::Relaxed), 1);

        let next = stay(context, |vmcs, _| (vmcs.reason, vmcs.length) = (HALT, 1));
        assert_eq!((next, context.state.activity), (Next::Halt, Activity::Halted));
    });
}

#[test]
fn an_entry_delivers_the_interrupt_that_the_guest_can_take() {
    with_guest(|context| {
        let _nothing = context.state.lapic.write_page(0xfee0_00f0, 0x1ff, 0);
        context.state.lapic.accept_fixed(0x55, Trigger::Edge);
        let next = stay(context, |vmcs, _| {
            assert_eq!(vmcs.delivered() & event::VALID, 0, "interrupts are off");
            vmcs.write(Rflags, RFLAGS_IF | 2);
            vmcs.reason = INTERRUPT;
        });
        assert_eq!(next, Next::Resume);
        stay(context, |vmcs, _| {
            assert_eq!(vmcs.delivered(), event::VALID | event::TYPE_INTERRUPT | 0x55);
            vmcs.reason = INTERRUPT;
        });
        assert_eq!(context.state.lapic.highest_isr(), Some(0x55));
    });
}

#[test]
fn a_flush_that_the_tag_owes_is_two_instructions() {
    with_guest(|context| {
        stay(context, |vmcs, _| vmcs.reason = INTERRUPT);
        INVALIDATED.take();
        context.state.own.owe_flush();
        stay(context, |vmcs, _| vmcs.reason = INTERRUPT);
        let (vpid, root) = (context.state.block.vpid(), context.state.block.nested_root());
        assert_eq!(INVALIDATED.take(), [Invalidated::Guests(Invvpid::Vpid(vpid)), Invalidated::Nested(root)]);
        stay(context, |vmcs, _| vmcs.reason = INTERRUPT);
        assert_eq!(INVALIDATED.take(), [], "it owes nothing any more");
    });
}
