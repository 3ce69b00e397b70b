//! What L2's tags owe.

use coherence::CpuId;
use coherence::asid::AsidAllocator;
use core::num::NonZeroU32;

use super::*;
use crate::svm::vmcb::clean;
use crate::x86::enter;

/// A flush that the vCPU takes while L2 runs is L1's and L2's.
#[test]
fn n9_a_flush_reaches_each_context() {
    with_l1(|guest| {
        vmrun(guest, &plain());
        leaves(guest, [0x60, 0, 0]);
        let owes = |guest: &mut Guest<'_, '_>| {
            let own = &mut guest.0.state.own;
            let inner =
                own.nested.as_deref_mut().and_then(|nested| nested.contexts.of(1)).expect("is known").0;
            [inner.owes_flush(), own.asid.owes_flush()]
        };
        assert!(!owes(guest)[0]);
        flush(guest, &[]);
        assert!(!guest.enter(|_, _| panic!("a flush is due")));
        assert_eq!(owes(guest), [true, true]);
        leaves(guest, [0x60, 0, 0]);
        assert_eq!(owes(guest), [false, true], "each is settled by its own tag");
    });
}

#[test]
fn n10_invlpga_is_about_one_page_of_one_context() {
    let invlpga = |guest: &mut Guest<'_, '_>, asid: u64, address: u64| {
        guest.begin(&[0x0f, 0x01, 0xdf]);
        guest.set_all(&[(RAX, address), (RCX, asid)]);
        guest.exit(0x7a, 0, 0);
        assert_eq!((guest.raised(), guest.advanced()), (None, 3));
        processor(|processor| core::mem::take(&mut processor.dropped))
    };
    with_l1(|guest| {
        let tags: Vec<u32> = [0, 1]
            .map(|inner| {
                let (sender, seen) = std::sync::mpsc::channel();
                if inner == 1 {
                    let mut block = plain();
                    block.intercept_misc1 = misc1::CPUID;
                    vmrun(guest, &block);
                }
                run(guest, move |b| {
                    sender.send(b.asid).expect("is heard");
                    b.exit_code = if inner == 1 { 0x72 } else { 0x60 };
                });
                seen.recv().expect("it has run")
            })
            .to_vec();
        assert_ne!(tags[0], tags[1]);
        assert_eq!(invlpga(guest, 0, 0x5000), [(0x5000, tags[0])]);
        assert_eq!(invlpga(guest, 1, 0x5000), [(0x5000, tags[1])]);
        for (asid, address) in [(2, 0x5000), (0x8000, 0x5000), (1, 1 << 47)] {
            assert_eq!(invlpga(guest, asid, address), [], "{asid:#x}, {address:#x}");
        }
        let owes = guest.0.state.own.nested.as_deref_mut().and_then(|nested| nested.contexts.of(1));
        assert!(!owes.expect("is known").0.owes_flush());
    });
}

/// What each of the next entries has marked clean; L2 goes on, but for the last.
fn cleans(guest: &mut Guest<'_, '_>, exit: u64) -> u32 {
    let (sender, seen) = std::sync::mpsc::channel();
    processor(|processor| {
        processor.stay = Some(Box::new(move |b, _| {
            sender.send(b.clean_bits).expect("is heard");
            b.exit_code = exit;
        }));
    });
    assert!(enter::enter(guest.0));
    table::handle_exit(guest.0);
    seen.recv().expect("it has run")
}

/// That the processor may use what it has of a block is said where that is so alone.
#[test]
fn n4_nothing_is_marked_clean_after_vmrun_an_exit_or_on_another_cpu() {
    with_l1(|guest| {
        let mut block = plain();
        block.intercept_misc1 = misc1::CPUID;
        for _ in 0..2 {
            vmrun(guest, &block);
            assert_eq!(cleans(guest, 0x60), 0, "the block was filled anew");
            let kept = cleans(guest, 0x60);
            assert_ne!(kept & clean::CRX, 0, "it is as it was left");
            assert_eq!(kept & clean::INTERCEPTS, 0, "they are written each time");
            guest.0.workspace.asids = AsidAllocator::new(CpuId(1), NonZeroU32::MAX, true);
            assert_eq!(cleans(guest, 0x72), 0, "on another CPU");
            assert_eq!(cleans(guest, 0x60), 0, "L1's was not the last");
            assert_ne!(cleans(guest, 0x60), 0);
            guest.0.workspace.asids = AsidAllocator::new(CpuId(0), NonZeroU32::MAX, true);
        }
    });
}
