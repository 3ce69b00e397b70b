//! What L1 tells by the enlightenments of Hyper-V: flushes of nested tables by hypercall, a map of
//! MSRs that is not read again, and L2's flushes that are left to us.

use super::shadows::{
    ABSENT, BACKING, FAULT, IN_ACCESS, NESTED, PAGE, TEXT, entry, fault, leads, set, told, with_tables,
};
use super::*;
use tlfs::msr::VP_ASSIST_PAGE;

const R8: usize = 8;
/// L1's pages: the assist page of its vCPU, and that of its guest.
const ASSIST: u64 = DATA + 0x9000;
const PARTITION: u64 = DATA + 0xa000;
const DIRECT: u64 = 1 << 0;
const MSR_MAP_IS_TOLD: u64 = 1 << 1;
const TABLES_ARE_TOLD: u64 = 1 << 2;
const HYPERCALL: u64 = 0x81;
const FAST: u64 = 1 << 16;

/// A hypercall of L1's. Returns its status.
fn call(guest: &mut Guest<'_, '_>, control: u64, [input, output]: [u64; 2]) -> u64 {
    guest.begin(&[0x0f, 0x01, 0xd9]);
    guest.enable_hypercalls();
    guest.set_all(&[(RCX, control), (RDX, input), (R8, output)]);
    guest.exit(HYPERCALL, 0, 0);
    assert_eq!(guest.raised(), None);
    guest.get(RAX)
}

/// VMRUN with this TLB_CONTROL, and an entry. Returns whether the tag is flushed, and whether the
/// page is in the shadow.
fn enter(guest: &mut Guest<'_, '_>, block: &mut Vmcb, control: u8) -> (bool, bool) {
    block.tlb_control = control;
    vmrun(guest, block);
    let (slot, _, _) = guest.0.state.own.inner().expect("L2 runs");
    let owes = slot.owes_flush();
    leaves(guest, [0x60, 0, 0]);
    (owes, leads(guest, PAGE).is_some())
}

#[test]
fn n18_calls_alone_empty_the_shadow_of_a_guest_that_tells() {
    for tells in [true, false] {
        with_tables(|guest, mut block| {
            block.inner[0] = if tells { TABLES_ARE_TOLD } else { 0 };
            let fill = |guest: &mut Guest<'_, '_>| {
                fault(guest, IN_ACCESS | 4, PAGE);
                leaves(guest, [INVALID, 0, 0]);
            };
            enter(guest, &mut block, 0);
            fill(guest);
            assert_eq!(enter(guest, &mut block, 0), (false, true));
            leaves(guest, [INVALID, 0, 0]);
            for control in [3, 1] {
                let (owes, is_there) = enter(guest, &mut block, control);
                assert_eq!((owes, is_there), (true, tells), "TLB_CONTROL {control}");
                fill(guest);
            }
            block.asid = 2;
            assert_eq!(enter(guest, &mut block, 0), (true, tells), "another ASID");
            fill(guest);
            // By an address space that nobody uses, too: more is flushed than is named.
            for (control, input) in [(0xaf | FAST, [NESTED, 0]), (0xb0 | 1 << 32 | FAST, [0x7000, 0])] {
                let done = if control & 0xff == 0xb0 { 1 << 32 } else { 0 };
                assert_eq!(call(guest, control, input), done, "HV_STATUS_SUCCESS");
                assert!(!guest.enter(|_, _| panic!("a flush is due")));
                let (owes, is_there) = enter(guest, &mut block, 0);
                assert_eq!((owes, is_there), (true, false));
                fill(guest);
            }
            assert_eq!(guest.count(Counter::InnerCalls), 2);
            assert_eq!(call(guest, 0xaf | FAST, [NESTED, 1]), 3, "INVALID_HYPERCALL_INPUT");
            assert_eq!(enter(guest, &mut block, 0), (false, true));
        });
    }
    with_guest(&[], |guest| {
        assert_eq!(call(guest, 0xaf | FAST, [NESTED, 0]), 2, "INVALID_HYPERCALL_CODE");
    });
}

/// The map is read again unless L1 says that it is as it was, and that is of the last run.
#[test]
fn n5_a_map_of_msrs_is_read_again_unless_it_is_told_to_be_the_same() {
    const STAR: u32 = 0xc000_0081;
    // SYSCALL's MSRs pass, and are in the second range.
    let byte = MSR_MAP + 0x800 + u64::from(STAR & 0x1fff) / 4;
    let clean = 1_u32 << 31;
    let with = |guest: &mut Guest<'_, '_>, controls, clean_bits, map: u8, at: u64| {
        guest.write(byte, &[map]);
        let mut block = plain();
        (block.inner[0], block.clean_bits, block.intercept_misc1) = (controls, clean_bits, misc1::MSR);
        guest.write(at, block.bytes());
        execute(guest, VMRUN, 0xd8, at);
        let nested = guest.0.state.own.nested.as_deref_mut().expect("may nest");
        let offset = (byte - MSR_MAP) as usize;
        let word = nested.msr_map.words()[offset / 8].load(std::sync::atomic::Ordering::Relaxed);
        leaves(guest, [INVALID, 0, 0]);
        word >> (offset % 8 * 8) & 0xc != 0
    };
    with_l1(|guest| {
        guest.write(MSR_MAP, &[0; 0x2000]);
        assert!(!with(guest, MSR_MAP_IS_TOLD, 0, 0, VMCB12));
        assert!(!with(guest, MSR_MAP_IS_TOLD, clean, 0xc, VMCB12), "L1 says that it has not changed");
        assert!(with(guest, 0, clean, 0xc, VMCB12), "the bit is of nothing that L1 tells");
        assert!(!with(guest, MSR_MAP_IS_TOLD, 0, 0, VMCB12));
        assert!(with(guest, MSR_MAP_IS_TOLD, clean, 0xc, VMCB12 + 0x1000), "another block");
        assert!(!with(guest, MSR_MAP_IS_TOLD, clean, 0, VMCB12), "and back");
    });
}

/// Whether the other vCPU, which does not run, has a flush to take.
fn is_due_elsewhere(guest: &Guest<'_, '_>) -> bool {
    guest.0.vm.targets[1].owner().expect("nobody runs it").take_flush().is_some()
}

type Changed = fn(&mut Guest<'_, '_>, &mut Vmcb);

/// L2 calls, and L1 has asked for nothing of it. Returns its status if it was served.
fn l2_calls(guest: &mut Guest<'_, '_>, control: u64, input: u64) -> Option<u64> {
    guest.set_all(&[(RCX, control), (RDX, input), (R8, 1)]);
    guest.vmcb().rip = TEXT;
    leaves(guest, [HYPERCALL, 0, 0]);
    (is_inside(guest) && guest.vmcb().rip == TEXT + 3).then(|| guest.get(RAX))
}

/// L2 runs, and L1 leaves flushes to us but for what `change` changes.
fn with_direct(change: impl FnOnce(&mut Guest<'_, '_>, &mut Vmcb), act: impl FnOnce(&mut Guest<'_, '_>)) {
    with_tables(|guest, mut block| {
        guest.write_msr(VP_ASSIST_PAGE, ASSIST | 1);
        guest.write(ASSIST, &[0; 0x30]);
        guest.write(ASSIST + 32, &[1]);
        guest.write(PARTITION, &[0; 8]);
        guest.write(INNER_CODE, &[0x0f, 0x01, 0xd9]);
        set(guest, BACKING, 0);
        set(guest, BACKING + 8, 2);
        set(guest, BACKING + 16, 1);
        // The highest VP that a set can name; L1 has two vCPUs.
        block.inner = [DIRECT | 0xffff_ffff << 32, !0, PARTITION, 0];
        change(guest, &mut block);
        vmrun(guest, &block);
        act(guest);
    });
}

#[test]
fn n25_a_direct_flush_reaches_every_context_of_each_vcpu() {
    // By memory, through both levels: a flush of all, and one of a list of ranges; by registers.
    for control in [2, 3 | 1 << 32, 0x13, 0x14 | 1 << 32, 2 | FAST] {
        with_direct(
            |_, _| {},
            |guest| {
                leaves(guest, [0x60, 0, 0]);
                let done = control >> 32 << 32;
                assert_eq!(l2_calls(guest, control, PAGE), Some(done), "{control:#x}");
                assert!(is_due_elsewhere(guest), "{control:#x}");
                assert!(!guest.enter(|_, _| panic!("a flush is due")));
                let nested = guest.0.state.own.nested.as_deref_mut().expect("may nest");
                let owes = nested.contexts.of(1).expect("is known").0.owes_flush();
                assert!(owes && guest.0.state.own.asid.owes_flush());
            },
        );
    }
    // What is no flush, and what L1 does not leave to us, is L1's.
    let no: [(&str, u64, Changed); 7] = [
        ("another call", 8 | FAST, |_, _| {}),
        ("of nested tables", 0xaf | FAST, |_, _| {}),
        ("not in VMCB12", 2, |_, block| block.inner[0] &= !DIRECT),
        ("no page for the guest", 2, |_, block| block.inner[2] = 0),
        ("not in the assist page", 2, |guest, _| guest.write(ASSIST + 32, &[2])),
        ("no assist page", 2, |guest, _| {
            guest.write_msr(VP_ASSIST_PAGE, 0);
        }),
        ("a user", 2, |_, block| block.cpl = 3),
    ];
    for (name, control, change) in no {
        with_direct(change, |guest| {
            assert_eq!(l2_calls(guest, control, PAGE), None, "{name}");
            assert_eq!((told(guest), guest.raised()), (None, Some(event::VECTOR_UD)), "{name}");
        });
        with_direct(
            |guest, block| {
                change(guest, block);
                block.intercept_misc2 |= 1 << 1;
            },
            |guest| {
                l2_calls(guest, control, PAGE);
                assert_eq!(told(guest), Some([HYPERCALL, 0, 0]), "{name}");
            },
        );
    }
}

#[test]
fn n25_a_direct_flush_is_judged_by_l2s_input() {
    with_direct(
        |_, _| {},
        |guest| {
            assert_eq!(l2_calls(guest, 2 | 1 << 63, PAGE), Some(3), "INVALID_HYPERCALL_INPUT");
            assert_eq!(l2_calls(guest, 2, PAGE + 4), Some(4), "INVALID_ALIGNMENT");
            set(guest, BACKING + 8, 1 << 60);
            assert_eq!(l2_calls(guest, 2, PAGE), Some(5), "INVALID_PARAMETER");
            assert!(!is_due_elsewhere(guest));
        },
    );
    // What L1's tables do not map is L1's to map; L2 makes the call again.
    with_direct(
        |_, _| {},
        |guest| {
            assert_eq!(l2_calls(guest, 2, ABSENT), None);
            assert!(guest.enter(|_, _| {}), "L1 goes on");
            assert_eq!((told(guest), vmcb12(guest).rip), (Some([FAULT, IN_ACCESS | 4, ABSENT]), TEXT));
        },
    );
    with_direct(
        |guest, _| set(guest, entry(ABSENT), HOLE | 7),
        |guest| {
            assert_eq!(l2_calls(guest, 2, ABSENT), None, "it is not memory");
            assert_eq!((told(guest), guest.raised()), (None, Some(event::VECTOR_GP)));
        },
    );
    // L1 holds the lock: it is told, behind the call.
    with_direct(
        |guest, _| guest.write(PARTITION, &[1]),
        |guest| {
            assert_eq!(l2_calls(guest, 2, PAGE), None);
            let left = vmcb12(guest);
            assert_eq!(told(guest), Some([0xf000_0000, 1, 0]));
            assert_eq!((left.rip, left.rax), (TEXT + 3, 0));
        },
    );
}
