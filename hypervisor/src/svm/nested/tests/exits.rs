//! Exits that are L1's, and its maps of ports and MSRs.

use super::*;

#[test]
fn l1_gets_the_exits_that_it_asks_for_and_no_others() {
    // Instructions that both intercept, and what is served without L1.
    for (code, bytes) in
        [(0x72, &[0x0f, 0xa2][..]), (0x78, &[0xf4]), (0x77, &[0xf3, 0x90]), (0x89, &[0x0f, 9])]
    {
        for is_wanted in [false, true] {
            with_l1(|guest| {
                let mut block = plain();
                if is_wanted {
                    let word =
                        if code < 0x80 { &mut block.intercept_misc1 } else { &mut block.intercept_misc2 };
                    *word |= 1 << (code % 32);
                }
                guest.write(INNER_CODE, bytes);
                vmrun(guest, &block);
                leaves(guest, [code, 0, 0]);
                assert_eq!(is_inside(guest), !is_wanted, "{code:#x}");
                if is_wanted {
                    assert_eq!((vmcb12(guest).exit_code, vmcb12(guest).rip), (code, INNER_CODE));
                } else {
                    assert_eq!(guest.vmcb().rip, INNER_CODE + bytes.len() as u64, "{code:#x}");
                }
            });
        }
    }
    for (code, raised) in [(0x81, Some(event::VECTOR_UD)), (0x86, Some(event::VECTOR_UD)), (0x60, None)] {
        with_l1(|guest| {
            vmrun(guest, &plain());
            leaves(guest, [code, 0, 0]);
            assert_eq!((is_inside(guest), guest.raised()), (true, raised), "{code:#x}");
        });
    }
    with_l1(|guest| {
        vmrun(guest, &plain());
        assert_eq!(leaves(guest, [0x7f, 0, 0]), Next::Shutdown);
        guest.begin(&[]);
    });
    with_l1(|guest| {
        vmrun(guest, &plain());
        leaves(guest, [INVALID, 0, 0]);
        assert_eq!((is_inside(guest), vmcb12(guest).exit_code), (false, INVALID));
    });
}

/// L2's calls are L1's to serve, or #UD, however many L1 may make itself.
#[test]
fn n24_no_hypercall_of_l2s_is_served_as_l1s() {
    for is_wanted in [false, true] {
        with_l1(|guest| {
            guest.enable_hypercalls();
            let mut block = plain();
            block.intercept_misc2 |= if is_wanted { misc2::VMMCALL } else { 0 };
            vmrun(guest, &block);
            // A flush of everything.
            guest.set_all(&[(RAX, 7), (RCX, 2), (RDX, DATA)]);
            run(guest, |b| (b.exit_code, b.rax) = (0x81, 7));
            assert_eq!(guest.count(Counter::FlushWholeAsked) + guest.count(Counter::FlushLists), 0);
            assert_eq!(is_inside(guest), !is_wanted);
            if is_wanted {
                assert_eq!((vmcb12(guest).exit_code, vmcb12(guest).rax), (0x81, 7));
            } else {
                assert_eq!((guest.raised(), guest.get(RAX)), (Some(event::VECTOR_UD), 7));
            }
        });
    }
}

#[test]
#[should_panic(expected = "machine check while")]
fn a_machine_check_is_the_machines_whatever_l1_asks_for() {
    with_l1(|guest| {
        let mut block = plain();
        block.intercept_exceptions = u32::MAX;
        vmrun(guest, &block);
        leaves(guest, [0x52, 0, 0]);
    });
}

/// The map of ports has three bits more than there are ports; that of MSRs has three ranges.
#[test]
fn n5_maps_are_read_by_bits_and_what_is_outside_exits() {
    let ports =
        [(0x80, 1, 0x80, true), (0x7e, 4, 0x80, true), (0x81, 1, 0x80, false), (0x7c, 4, 0x80, false)];
    let last = [(0xffff, 2, 0x1_0000, true), (0xffff, 1, 0x1_0000, false), (0xfffd, 4, 0x1_0000, true)];
    for (number, bytes, set, is_wanted) in ports.into_iter().chain(last) {
        with_l1(|guest| {
            let mut block = plain();
            block.intercept_misc1 = misc1::IOIO;
            guest.write(MAPS + set / 8, &[1 << (set % 8)]);
            guest.write(INNER_CODE, &[0xe6, 0x80]);
            vmrun(guest, &block);
            leaves(guest, [0x7b, port(number, bytes, false), INNER_CODE + 2]);
            assert_eq!(is_inside(guest), !is_wanted, "{bytes} bytes at {number:#x}, bit {set:#x}");
        });
    }
    let msrs: [(u32, bool, usize, u8, bool); 7] = [
        (0x10, false, 4, 1, true),
        (0x10, true, 4, 1, false),
        (0x10, true, 4, 2, true),
        (EFER, false, 0x820, 1, true),
        (EFER, false, 0x820, 2, false),
        (0xc001_0015, false, 0x1005, 1 << 2, true),
        (0x2000, false, 0, 0, true),
    ];
    for (number, is_write, byte, bits, is_wanted) in msrs {
        with_l1(|guest| {
            let mut block = plain();
            block.intercept_misc1 = misc1::MSR;
            guest.write(MSR_MAP + byte as u64, &[bits]);
            guest.write(INNER_CODE, &[0x0f, if is_write { 0x30 } else { 0x32 }]);
            vmrun(guest, &block);
            guest.set_all(&[(RCX, number.into()), (RAX, 0), (RDX, 0)]);
            leaves(guest, [0x7c, is_write.into(), 0]);
            assert_eq!(is_inside(guest), !is_wanted, "{number:#x}");
        });
    }
    // What passes by ours exits if L1 wants it: STAR, and reads of LSTAR.
    with_l1(|guest| {
        let mut block = plain();
        block.intercept_misc1 = misc1::MSR;
        guest.write(MSR_MAP + 0x820, &[2 << 2 | 1 << 4]);
        let exits = |guest: &Guest<'_, '_>| {
            let map = &guest.0.state.own.nested.as_ref().expect("may nest").msr_map;
            let word = map.words()[0x820 / 8].load(core::sync::atomic::Ordering::Relaxed);
            [word >> 2 & 3, word >> 4 & 3]
        };
        vmrun(guest, &block);
        assert_eq!(exits(guest), [2, 3]);
        leaves(guest, [INVALID, 0, 0]);
        block.intercept_misc1 = 0;
        vmrun(guest, &block);
        assert_eq!(exits(guest), [0, 2], "writes of addresses are ours");
    });
}
