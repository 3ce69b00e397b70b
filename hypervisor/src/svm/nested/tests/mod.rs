//! A guest that is a hypervisor, and its guest, on the mock processor.

mod events;
mod exits;
mod hyperv;
mod init;
mod moved;
mod shadows;
mod storm;
mod tags;

use baremetal::random::Random;
use hostlink::counters::Counter;
use memslots::Gpa;
use std::boxed::Box;
use std::vec::Vec;

use super::block::HIDDEN;
use crate::devices::pc::message::Trigger;
use crate::svm::intercepts::{misc1, misc2};
use crate::svm::table::{self, INVALID};
use crate::svm::tests::entry::flush;
use crate::svm::tests::guest::Guest;
use crate::svm::tests::processor::{DATA, HOLE, TABLES, processor, with_guest, with_guest_of};
use crate::svm::tests::rows::port;
use crate::svm::vmcb::{EFER_SVME, Vmcb, vintr};
use crate::vm::Next;
use crate::vm::arch::State;
use crate::x86::vcpu::block::{ControlBlock, Inner, Segment};
use crate::x86::vcpu::event;
use crate::x86::vcpu::nmi::Nmi;
use crate::x86::vcpu::registers::{RAX, RCX, RDX};
use crate::x86::{EFER_LMA, EFER_LME, RFLAGS_IF, RFLAGS_TF};

pub(super) const EFER: u32 = 0xc000_0080;
pub(super) const VM_CR: u32 = 0xc001_0114;
pub(super) const HOST_SAVE: u32 = 0xc001_0117;
pub(super) const VMCB12: u64 = DATA + 0x1_0000;
pub(super) const MAPS: u64 = DATA + 0x2_0000;
pub(super) const MSR_MAP: u64 = MAPS + 0x4000;
/// L2's code and stack.
pub(super) const INNER_CODE: u64 = DATA + 0x4_0000;
pub(super) const L1_RSP: u64 = DATA + 0x1000;
pub(super) const VMRUN: u64 = 0x80;
pub(super) const VECTOR: u8 = 0x51;

const NESTED: &str = "vcpus=2\nmemory=16777216\nnested=on";

/// L1 with SVM on.
pub(super) fn with_l1<R>(act: impl FnOnce(&mut Guest<'_, '_>) -> R) -> R {
    with_guest_of(NESTED, |guest| {
        guest.write_msr(EFER, EFER_LME | EFER_SVME);
        assert_eq!(guest.raised(), None);
        act(guest)
    })
}

/// A block that VMRUN takes: 64-bit code, and no intercept but the necessary one.
pub(super) fn plain() -> Box<Vmcb> {
    let mut b = Vmcb::boxed();
    b.intercept_misc2 = misc2::VMRUN;
    (b.asid, b.iopm_base, b.msrpm_base) = (1, MAPS, MSR_MAP);
    b.efer = EFER_SVME | EFER_LME | EFER_LMA;
    (b.cr0, b.cr3, b.cr4) = (1 << 31 | 1 << 16 | 1, TABLES, 1 << 5);
    b.cs = Segment { selector: 0x10, attributes: 0x29b, limit: u32::MAX, base: 0 };
    b.ss = Segment { selector: 0x18, attributes: 0x093, limit: u32::MAX, base: 0 };
    (b.rip, b.rsp, b.rflags, b.rax) = (INNER_CODE, INNER_CODE + 0x1000, 2, 0x1122);
    (b.dr6, b.dr7) = (0xffff_0ff0, 0x400);
    b
}

/// An instruction of SVM at RIP, with RAX.
pub(super) fn execute(guest: &mut Guest<'_, '_>, code: u64, byte: u8, rax: u64) -> Next {
    guest.begin(&[0x0f, 0x01, byte]);
    guest.set(RAX, rax);
    guest.exit(code, 0, 0)
}

pub(super) fn vmrun(guest: &mut Guest<'_, '_>, block: &Vmcb) -> Next {
    guest.write(VMCB12, block.bytes());
    execute(guest, VMRUN, 0xd8, VMCB12)
}

/// VMCB12 in L1's memory.
pub(super) fn vmcb12(guest: &Guest<'_, '_>) -> Box<Vmcb> {
    let mut block = Vmcb::boxed();
    guest.0.vm.space.slots().memory().read(Gpa(VMCB12), block.bytes_mut()).expect("is memory");
    block
}

/// Enters L2 once, which does this and exits.
pub(super) fn run(guest: &mut Guest<'_, '_>, act: impl FnMut(&mut Vmcb) + 'static) -> Next {
    let mut act = act;
    assert!(guest.enter(move |vmcb, _| act(vmcb)), "it is entered");
    table::handle_exit(guest.0)
}

/// The same with this exit.
pub(super) fn leaves(guest: &mut Guest<'_, '_>, exit: [u64; 3]) -> Next {
    run(guest, move |vmcb| {
        [vmcb.exit_code, vmcb.exit_info_1, vmcb.exit_info_2] = exit;
        vmcb.exit_interrupt_info = 0;
    })
}

pub(super) fn is_inside(guest: &Guest<'_, '_>) -> bool {
    guest.0.state.own.is_inside()
}

#[test]
fn svm_is_there_for_guests_that_may_have_guests_alone() {
    let cpuid = |guest: &mut Guest<'_, '_>, leaf: u64| {
        guest.begin(&[0x0f, 0xa2]);
        guest.set_all(&[(RAX, leaf), (RCX, 0)]);
        guest.exit(0x72, 0, 0);
        [RAX, 3, RCX, RDX].map(|register| guest.get(register))
    };
    with_guest(&[], |guest| {
        assert_eq!(cpuid(guest, 0x8000_0001)[2] & 4, 0);
        assert_eq!(cpuid(guest, 0x8000_000a), [0; 4]);
        for number in [VM_CR, HOST_SAVE] {
            guest.read_msr(number);
            assert_eq!(guest.raised(), Some(event::VECTOR_GP));
        }
        guest.write_msr(EFER, EFER_LME | EFER_SVME);
        assert_eq!(guest.raised(), Some(event::VECTOR_GP));
    });
    with_l1(|guest| {
        assert_eq!(cpuid(guest, 0x8000_0001)[2] & 4, 4);
        // Revision, ASIDs, nested paging and flush by ASID; the processor has no next RIP.
        assert_eq!(cpuid(guest, 0x8000_000a), [1, 0x8000, 0, 1 | 1 << 6]);
        assert_eq!((guest.read_msr(EFER) & EFER_SVME, guest.read_msr(VM_CR)), (EFER_SVME, 0));
        let mut writes = |number, value| {
            guest.write_msr(number, value);
            (guest.raised().is_none(), guest.read_msr(number))
        };
        assert_eq!(writes(HOST_SAVE, 0x5000), (true, 0x5000));
        assert_eq!(writes(HOST_SAVE, 0x5008), (false, 0x5000), "aligned");
        assert_eq!(writes(HOST_SAVE, 1 << 40), (false, 0x5000), "as wide as the processor's");
        assert_eq!(writes(VM_CR, 1 << 4), (false, 0), "not while it is on");
        assert!(writes(EFER, EFER_LME).0);
        assert_eq!(writes(VM_CR, 3 << 3), (true, 3 << 3));
        assert_eq!(writes(VM_CR, 0), (true, 3 << 3), "it is locked");
        assert!(!writes(EFER, EFER_LME | EFER_SVME).0);
    });
}

#[test]
fn svms_instructions_need_svm_and_an_address() {
    const WITH_ADDRESS: [(u64, u8); 3] = [(VMRUN, 0xd8), (0x82, 0xda), (0x83, 0xdb)];
    let all = WITH_ADDRESS.into_iter().chain([(0x84, 0xdc), (0x85, 0xdd), (0x7a, 0xdf)]);
    with_l1(|guest| {
        for (code, byte) in WITH_ADDRESS {
            for address in [VMCB12 + 8, 1 << 40, HOLE] {
                execute(guest, code, byte, address);
                assert_eq!((guest.raised(), guest.advanced()), (Some(event::VECTOR_GP), 0), "{code:#x}");
            }
        }
        guest.write_msr(EFER, EFER_LME);
        for (code, byte) in all {
            execute(guest, code, byte, VMCB12);
            assert_eq!((guest.raised(), guest.advanced()), (Some(event::VECTOR_UD), 0), "{code:#x}");
        }
    });
}

type Change = fn(&mut Vmcb);

/// Section 15.5.1, and what it does not name.
#[test]
fn n20_vmrun_takes_what_is_consistent() {
    let bad: [(&str, Change); 19] = [
        ("EFER.SVME is 0", |b| b.efer &= !EFER_SVME),
        ("CR0.NW without CD", |b| b.cr0 |= 1 << 29),
        ("the upper half of CR0", |b| b.cr0 |= 1 << 32),
        ("CR3 beyond the width", |b| b.cr3 = 1 << 40),
        ("CR4's reserved bits", |b| b.cr4 |= 1 << 63),
        ("EFER's reserved bits", |b| b.efer |= 1 << 63),
        ("the upper half of DR6", |b| b.dr6 |= 1 << 32),
        ("the upper half of DR7", |b| b.dr7 |= 1 << 32),
        ("long mode without PAE", |b| b.cr4 &= !(1 << 5)),
        ("long mode without PE", |b| b.cr0 &= !1),
        ("code of 64 and of 32 bits", |b| b.cs.attributes |= Segment::DEFAULT_32),
        ("VMRUN is not intercepted", |b| b.intercept_misc2 = 0),
        ("the map of ports ends beyond the width", |b| b.iopm_base = (1 << 40) - 0x2000),
        ("the map of MSRs ends beyond the width", |b| b.msrpm_base = (1 << 40) - 0x1000),
        ("an event of a reserved type", |b| b.event_injection = event::VALID | 1 << 8),
        ("NMI as an exception", |b| b.event_injection = event::VALID | event::TYPE_EXCEPTION | 2),
        ("ASID 0", |b| b.asid = 0),
        ("a root of nested tables beyond the width", |b| (b.nested_control, b.nested_cr3) = (1, 1 << 40)),
        ("a type of memory that there is not", |b| (b.nested_control, b.pat) = (1, 2 << 8)),
    ];
    let good: [(&str, Change); 8] = [
        ("NW with CD", |b| b.cr0 |= 3 << 29),
        ("any TLB_CONTROL", |b| b.tlb_control = 0xff),
        ("maps that end at the width", |b| {
            (b.iopm_base, b.msrpm_base) = ((1 << 40) - 0x3000, (1 << 40) - 0x2000)
        }),
        ("unaligned maps", |b| (b.iopm_base, b.msrpm_base) = ((1 << 40) - 0x2001, (1 << 40) - 0x1001)),
        ("an exception", |b| b.event_injection = event::VALID | event::TYPE_EXCEPTION | 31),
        ("an event that is not valid", |b| b.event_injection = 0x7ff),
        ("nested paging", |b| (b.nested_control, b.nested_cr3, b.pat) = (1, TABLES, 0x0007_0406_0007_0406)),
        ("what only nested paging looks at", |b| (b.nested_cr3, b.pat) = (1 << 40, 2)),
    ];
    let cases = bad.into_iter().map(|case| (case, false)).chain(good.into_iter().map(|case| (case, true)));
    for ((name, change), is_good) in cases {
        with_l1(|guest| {
            let mut block = plain();
            block.event_injection = event::VALID | event::TYPE_EXCEPTION | 6;
            change(&mut block);
            assert_eq!(vmrun(guest, &block), Next::Resume, "{name}");
            assert_eq!(is_inside(guest), is_good, "{name}");
            assert_eq!(guest.0.state.own.holds_events(), !is_good, "{name}");
            if !is_good {
                let left = vmcb12(guest);
                assert_eq!((left.exit_code, left.event_injection & event::VALID), (INVALID, 0), "{name}");
                assert_eq!((guest.get(RAX), guest.advanced(), guest.raised()), (VMCB12, 3, None), "{name}");
            }
        });
    }
}

#[test]
fn n1_vmrun_reads_its_block_once_and_an_exit_gives_it_back() {
    with_l1(|guest| {
        guest.vmcb().fs.base = 0x77;
        guest.vmcb().dr7 = 0x455;
        let mut block = plain();
        block.intercept_misc1 = misc1::CPUID;
        (block.cr2, block.fs.base, block.star, block.tsc_offset) = (0x1234, 0x55, 0x66, 1000);
        let offset = guest.vmcb().tsc_offset;
        vmrun(guest, &block);
        assert_eq!(guest.get(RAX), block.rax);
        let l2 = &*guest.vmcb();
        assert_eq!((l2.rip, l2.rsp, l2.cr2, l2.cs), (block.rip, block.rsp, 0x1234, block.cs));
        assert_eq!((l2.fs.base, l2.star), (0x77, 0), "those that VMLOAD loads stay");
        assert_eq!(l2.tsc_offset, offset.wrapping_add(1000));
        assert_eq!(guest.0.state.tsc_offset(), offset, "the local APIC's clock is L1's");
        // Another vCPU of L1 changes it: that counts at the next VMRUN.
        guest.write(VMCB12, &[0; 0x60]);
        let next = run(guest, |b| {
            [b.exit_code, b.exit_info_1, b.exit_info_2] = [0x72, 7, 8];
            (b.rip, b.rsp, b.cr2, b.rax, b.cpl) = (INNER_CODE + 2, 0x9000, 0x4321, 0x3344, 3);
            (b.kernel_gs_base, b.dr6, b.cr3) = (0x99, 0xffff_0ff1, 0x5000);
        });
        assert_eq!((next, is_inside(guest)), (Next::Resume, false));
        let left = vmcb12(guest);
        assert_eq!([left.exit_code, left.exit_info_1, left.exit_info_2], [0x72, 7, 8]);
        assert_eq!((left.rip, left.rsp, left.rax, left.cpl), (INNER_CODE + 2, 0x9000, 0x3344, 3));
        assert_eq!((left.cr2, left.dr6, left.cr3), (0x4321, 0xffff_0ff1, 0x5000));
        assert_eq!((left.tsc_offset, left.asid, left.fs.base, left.kernel_gs_base), (0, 0, 0x55, 0));
        let l1 = &*guest.vmcb();
        assert_eq!((l1.cr3, l1.rsp, l1.cpl, l1.dr7, l1.tsc_offset), (TABLES, L1_RSP, 0, 0x400, offset));
        assert_eq!((l1.fs.base, l1.kernel_gs_base), (0x77, 0x99));
        assert_eq!((guest.get(RAX), guest.advanced()), (VMCB12, 3));
        assert!(guest.0.state.own.holds_events());
        assert_eq!(guest.count(Counter::InnerRuns) + guest.count(Counter::InnerExits), 2);
    });
}

#[test]
fn what_vmrun_leaves_vmload_and_vmsave_move() {
    with_l1(|guest| {
        let mut block = plain();
        HIDDEN.into_iter().flatten().for_each(|at| block.bytes_mut()[at] = at as u8 & 0x7f);
        block.lstar = 1 << 47;
        guest.write(VMCB12, block.bytes());
        assert_eq!(execute(guest, 0x82, 0xda, VMCB12), Next::Resume);
        assert_eq!((guest.raised(), guest.advanced()), (None, 3));
        assert_eq!((guest.vmcb().gs.limit, guest.vmcb().star), (block.gs.limit, block.star));
        assert_eq!(guest.vmcb().lstar, u64::MAX << 47, "sign-extended");
        guest.vmcb().tr.selector = 0x4321;
        guest.write(VMCB12, Vmcb::boxed().bytes());
        execute(guest, 0x83, 0xdb, VMCB12);
        let saved = vmcb12(guest);
        assert_eq!((saved.tr.selector, saved.gs.limit, saved.rip), (0x4321, block.gs.limit, 0));
    });
}

fn knows_none(guest: &mut Guest<'_, '_>) -> bool {
    guest.0.state.own.nested.as_deref_mut().expect("may nest").contexts.of(1).is_none()
}

#[test]
fn a_reset_unlocks_svm_and_init_does_not() {
    with_l1(|guest| {
        guest.write_msr(EFER, EFER_LME);
        guest.write_msr(VM_CR, 3 << 3);
        guest.write_msr(HOST_SAVE, 0x5000);
        guest.0.state.set_init_state();
        assert_eq!((guest.read_msr(VM_CR), guest.read_msr(HOST_SAVE)), (3 << 3, 0x5000));
        guest.0.state.reset(&guest.0.vcpu.inbox);
        assert_eq!((guest.read_msr(VM_CR), guest.read_msr(HOST_SAVE)), (0, 0));
    });
}

#[test]
fn n7_init_and_the_end_of_svm_leave_l2() {
    with_l1(|guest| {
        vmrun(guest, &plain());
        leaves(guest, [0x60, 0, 0]);
        guest.0.state.set_init_state();
        assert!(guest.0.state.own.is_plain() && guest.0.state.own.efer() == 0);
        assert_eq!(guest.vmcb().rip, 0xfff0);
        assert!(knows_none(guest));
    });
    with_l1(|guest| {
        vmrun(guest, &plain());
        leaves(guest, [INVALID, 0, 0]);
        assert!(guest.0.state.own.holds_events() && !knows_none(guest));
        guest.write_msr(EFER, EFER_LME);
        assert!(guest.0.state.own.is_plain() && knows_none(guest), "GIF is 1 again");
    });
    with_l1(|guest| {
        // L1 steps: the #DB comes after the exit.
        guest.write(VMCB12, plain().bytes());
        guest.begin(&[0x0f, 0x01, 0xd8]);
        guest.vmcb().rflags |= RFLAGS_TF;
        guest.set(RAX, VMCB12);
        guest.exit(VMRUN, 0, 0);
        assert_eq!(guest.raised(), None);
        leaves(guest, [INVALID, 0, 0]);
        assert_eq!(guest.raised(), Some(event::VECTOR_DB));
    });
}

#[test]
fn n22_an_exit_that_cannot_be_written_shuts_l1_down_alone() {
    with_l1(|guest| {
        vmrun(guest, &plain());
        let nested = guest.0.state.own.nested.as_deref_mut().expect("may nest");
        nested.inside.as_mut().expect("is inside").at = Gpa(HOLE);
        assert_eq!(leaves(guest, [INVALID, 0, 0]), Next::Shutdown);
        assert!(!is_inside(guest));
        guest.begin(&[]);
    });
}
