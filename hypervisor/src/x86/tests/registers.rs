//! Values that registers do not accept.

use hostlink::counters::Counter;

use super::processor::{DATA, Guest, Kind, TABLES, Tested, processor, with_guest};
use super::rows::{CPUID, GP, MSR, NESTED, UD, VMMCALL, XSETBV};
use crate::devices::pc::message::{Logical, Trigger};
use crate::sched::{CpuIndex, PutBack, QueueClass, Released};
use crate::svm::tests::rows::HLT;
use crate::vm::arch::Clock;
use crate::vm::{Next, mock};
use crate::x86::processor::Vendor;
use crate::x86::vcpu::block::Field::{Cr3, Cr4, Cstar, Efer, KernelGs, Lstar, Pat, Rsp, Sfmask, Star};
use crate::x86::vcpu::block::{ControlBlock, Segment, SegmentName};
use crate::x86::vcpu::checks;
use crate::x86::vcpu::fpu::is_valid_xcr0;
use crate::x86::vcpu::registers::{RAX, RBX, RCX, RDX};

#[test]
fn xcr0_takes_what_the_processor_takes_and_nothing_else() {
    with_guest(&[], |guest| {
        processor(|processor| processor.components = 0xe7);
        for value in (0..512).chain([1 << 62, u64::MAX, 1 << 63 | 1]) {
            for register in [0, 1, u64::MAX] {
                processor(|processor| processor.xcr0 = 1);
                guest.begin(&[0x0f, 0x01, 0xd1]);
                guest.set(RAX, value & 0xffff_ffff);
                guest.set(RDX, value >> 32);
                guest.set(RCX, register);
                guest.exit(XSETBV, 0, 0);
                let sse_for_avx = value & 4 == 0 || value & 2 != 0;
                let avx512 = value >> 5 & 7 == 0 || value >> 5 & 7 == 7 && value & 4 != 0;
                let right = value & 1 != 0 && value & !0xe7 == 0 && sse_for_avx && avx512 && register == 0;
                assert_eq!(is_valid_xcr0(value, 0xe7) && register == 0, right, "{value:#x}");
                assert_eq!(guest.raised(), if right { None } else { GP }, "{value:#x} to {register}");
                assert_eq!(processor(|processor| processor.xcr0), if right { value } else { 1 });
            }
        }
        assert!(!is_valid_xcr0(0xe7, 7) && !is_valid_xcr0(0x207, 0x207), "what is not there, or not shown");
        processor(|processor| processor.components = 7);
        processor(|processor| processor.xcr0 = 1);
    });
    with_guest(&[0x0f, 0x01, 0xd1], |guest| {
        guest.set_field(Cr4, guest.field(Cr4) & !checks::CR4_OSXSAVE);
        guest.set(RAX, 3);
        guest.exit(XSETBV, 0, 0);
        assert_eq!((guest.raised(), processor(|processor| processor.xcr0)), (UD, 1));
    });
}

#[test]
fn cr4_takes_the_bits_that_cpuid_shows() {
    for bit in 0..64 {
        with_guest(&[0x0f, 0x22, 0xe3], |guest| {
            let shown = guest.0.vm.guest.cr4_mask & 1 << bit != 0;
            let value = 1 << 5 | 1u64 << bit;
            guest.set(RBX, value);
            let old = guest.field(Cr4);
            guest.exit(0x14, 0, 0);
            assert_eq!(guest.raised(), if shown { None } else { GP }, "bit {bit}");
            assert_eq!(guest.field(Cr4), if shown { value } else { old });
            assert_eq!(guest.advanced(), if shown { 3 } else { 0 });
        });
    }
    for (cr3, value) in [(TABLES, 1 << 18), (TABLES | 5, 1 << 5 | 1 << 17), (TABLES, u64::MAX)] {
        with_guest(&[0x0f, 0x22, 0xe3], |guest| {
            guest.set_field(Cr3, cr3);
            guest.set(RBX, value);
            guest.exit(0x14, 0, 0);
            assert_eq!(guest.raised(), GP, "CR3 {cr3:#x}, CR4 {value:#x}");
        });
    }
}

/// Numbers of all kinds: each register that is implemented, its neighbours, and the edges of the
/// ranges.
fn numbers() -> Vec<u32> {
    let ranges = [0..0x400, 0x6d0..0x6f0, 0x7f0..0x910, 0x4000_0000..0x4000_0120, 0xc000_0000..0xc000_0110];
    let more = [0xc000_1fff, 0xc000_2000, 0xc001_0000, 0xc001_0015, 0xc001_0114, 0xc001_1029, u32::MAX];
    ranges.into_iter().flatten().chain(more).collect()
}

#[test]
fn an_msr_is_answered_or_refused_whatever_its_number_and_value() {
    with_guest(&[], |guest| {
        for number in numbers() {
            guest.begin(&[0x0f, 0x32]);
            guest.set(RCX, u64::from(number) | 0xabcd << 32);
            guest.set_all(&[(RAX, 5), (RDX, 6)]);
            assert_eq!(guest.exit(MSR, 0, 0), Next::Resume);
            match guest.raised() {
                None => assert_eq!((guest.advanced(), guest.get(RAX) >> 32, guest.get(RDX) >> 32), (2, 0, 0)),
                fault => assert_eq!((fault, guest.advanced(), guest.get(RAX), guest.get(RDX)), (GP, 0, 5, 6)),
            }
            for value in [0, 1, 0xff, 0x6001, u64::from(u32::MAX), 1 << 63, u64::MAX] {
                if number == tlfs::msr::RESET || number == tlfs::msr::CRASH_CTL {
                    continue;
                }
                let next = guest.write_msr(number, value);
                assert!(matches!(next, Next::Resume | Next::Timers), "{number:#x} = {value:#x}: {next:?}");
                let expected = if guest.raised().is_some() { (GP, 0) } else { (None, 2) };
                assert_eq!((guest.raised(), guest.advanced()), expected, "{number:#x} = {value:#x}");
            }
        }
    });
}

#[test]
fn registers_that_vmrun_reads_take_no_value_that_it_refuses() {
    with_guest(&[], |guest| {
        for (number, value) in [
            (0xc000_0080, 1 << 12), // EFER.SVME
            (0xc000_0080, 1 << 1),  // reserved
            (0xc000_0080, 0),       // LME while paging is on
            (0xc000_0080, u64::MAX),
            (0x277, 2), // an undefined memory type
            (0x277, 8 << 56),
        ] {
            let before = (guest.field(Efer), guest.field(Pat));
            guest.write_msr(number, value);
            assert_eq!((guest.raised(), guest.advanced()), (GP, 0), "{number:#x} = {value:#x}");
            assert_eq!((guest.field(Efer), guest.field(Pat)), before);
        }
        guest.write_msr(0xc000_0080, 1 << 8 | 1 << 10 | 1 << 11);
        let own = <Tested as Vendor>::Block::EFER_OWN;
        assert_eq!((guest.raised(), guest.field(Efer) & 1 << 12), (None, own), "SVME stays");
        guest.begin(&[0x0f, 0x30]);
        guest.legacy_mode(0);
        guest.set_all(&[(RCX, 0xc000_0080), (RAX, 1 << 8), (RDX, 0)]);
        guest.exit(MSR, 1, 0);
        assert_eq!((guest.raised(), guest.field(Efer) & !own), (None, 1 << 8), "paging is off");
        for (number, field, value) in [(0xc000_0081, Star, u64::MAX), (0xc000_0084, Sfmask, 0xffff_ffff)] {
            guest.write_msr(number, value);
            assert_eq!((guest.raised(), guest.field(field)), (None, value));
        }
        guest.write_msr(0xc000_0084, 1 << 32);
        assert_eq!((guest.raised(), guest.field(Sfmask)), (GP, 0xffff_ffff));
        guest.begin(&[0x0f, 0x22, 0xe4]);
        guest.set_field(Rsp, 0xa0);
        guest.exit(0x14, 0, 0);
        assert_eq!((guest.raised(), guest.field(Cr4)), (None, 0xa0), "mov cr4, rsp");
    });
}

#[test]
fn u58_addresses_that_are_not_canonical_are_refused() {
    const CHECKED: [u32; 5] = [0xc000_0082, 0xc000_0083, 0xc000_0100, 0xc000_0101, 0xc000_0102];
    let last = (1 << 47) - 1;
    with_guest(&[], |guest| {
        for number in CHECKED {
            let value = |guest: &mut Guest<'_, '_>| {
                let base = |name| guest.0.state.block.segment(name).base;
                let bases = [base(SegmentName::Fs), base(SegmentName::Gs)];
                [guest.field(Lstar), guest.field(Cstar), bases[0], bases[1], guest.field(KernelGs)]
            };
            for address in [0, last, !last, u64::MAX, 0xffff_ffff_8100_0000] {
                guest.write_msr(number, address);
                assert_eq!(guest.raised(), None, "{number:#x} = {address:#x}");
                let set = value(guest).into_iter().zip(CHECKED).find(|(_, other)| *other == number);
                assert_eq!(set.map(|(value, _)| value), Some(address), "{number:#x}");
            }
            for address in [last + 1, !last - 1, 1 << 63, 1 << 56, u64::MAX >> 1] {
                let before = value(guest);
                guest.write_msr(number, address);
                assert_eq!((guest.raised(), guest.advanced()), (GP, 0), "{number:#x} = {address:#x}");
                assert_eq!(value(guest), before);
            }
        }
    });
    for number in 0xc000_0080..0xc000_0110_u32 {
        let expected = match number {
            _ if CHECKED.contains(&number) => [false, true],
            0xc000_0081 | 0xc000_0084 => [false, Tested::IS_INTEL],
            0xc000_0103 => [false; 2],
            _ => [true; 2],
        };
        assert_eq!(Tested::msr_exits(number), expected, "{number:#x}");
    }
}

/// Without a value of the guest's. Writes of what only configures are lost.
#[test]
fn each_register_reads_as_what_it_is_after_a_reset() {
    let both =
        [(0x8b, 0x0830_107c), (0x1d9, 0), (0x3b, 0), (0x277, 0x0007_0406_0007_0406), (0xc000_0080, 0x500)];
    let intels = [(0x3a, 1), (0x1a0, 0x1801)];
    let amds = [(0xc001_0010, 0), (0xc001_0015, 1 << 24), (0xc001_001f, 0), (0xc001_1020, 0)]
        .into_iter()
        .chain([(0xc001_1022, 0), (0xc001_1029, 2), (0xc001_102a, 0)])
        .chain((0xc001_0000..=0xc001_0007).map(|counter| (counter, 0)));
    let all = both.into_iter().chain(intels).map(|register| (register, true));
    with_guest(&[], |guest| {
        for ((number, value), is_intels) in all.chain(amds.map(|register| (register, false))) {
            let is_there = both.contains(&(number, value)) || is_intels == Tested::IS_INTEL;
            for round in 0..2 {
                let found = guest.read_msr(number);
                assert_eq!(guest.raised(), if is_there { None } else { GP }, "{number:#x}");
                assert!(!is_there || found == value, "{number:#x} {round}: {found:#x}");
                if !matches!(number, 0x3b | 0x277 | 0xc000_0080) {
                    guest.write_msr(number, !value);
                    let is_refused = !is_there || number == 0x3a;
                    assert_eq!(guest.raised().is_some(), is_refused, "{number:#x}");
                }
            }
        }
    });
}

#[test]
fn others_than_the_kernel_are_refused_at_every_level() {
    for cpl in 0..4 {
        for (code, bytes, is_anybodys) in
            [(MSR, &[0x0f, 0x32][..], false), (HLT, &[0xf4], false), (CPUID, &[0x0f, 0xa2], true)]
        {
            with_guest(bytes, |guest| {
                guest.set_cpl(cpl);
                guest.set(RCX, 0x277);
                guest.exit(code, 0, 0);
                assert_eq!(
                    guest.raised(),
                    if cpl == 0 || is_anybodys { None } else { GP },
                    "{code:#x} {cpl}"
                );
            });
        }
    }
}

/// To one, to all but itself, to all, and to nobody: by the page's register, the x2APIC's, the
/// hypervisor interface's, and by a hypercall.
#[test]
fn interrupts_to_others_are_counted_by_their_targets() {
    const ICR: u64 = 0xfee0_0300;
    let of_interface = |value: u64| (value & 0xf_ffff) | value >> 32 << 56;
    for (command, targets) in
        [(1 << 32 | 0x51, 1), (0xc_0051, 1), (0x8_0051, 2), (9 << 32 | 0x51, 0), (1 << 32 | 0x4051, 1)]
    {
        with_guest(&[], |guest| {
            let counted = |guest: &mut Guest<'_, '_>, act: &dyn Fn(&mut Guest<'_, '_>)| {
                let before = guest.count(Counter::IrqIpi);
                act(guest);
                assert_eq!(guest.raised(), None);
                guest.count(Counter::IrqIpi) - before
            };
            let by_page = counted(guest, &|guest| {
                for (at, value) in [(ICR + 0x10, command >> 32 << 24), (ICR, command & 0xffff_ffff)] {
                    guest.begin(&[0x89, 0x03]);
                    guest.legacy_mode(Segment::DEFAULT_32);
                    guest.set_all(&[(RBX, at), (RAX, value)]);
                    guest.exit(NESTED, 1 << 1, at);
                }
            });
            let by_interface = counted(guest, &|guest| {
                guest.write_msr(tlfs::msr::ICR, of_interface(command));
            });
            let command_of_page = guest.0.state.lapic.read_page(ICR, 0);
            assert_eq!(u64::from(command_of_page) & 0xf_efff, command & 0xf_efff);
            assert_eq!(guest.read_msr(tlfs::msr::ICR) & !(1 << 12), of_interface(command));
            guest.write_msr(0x1b, 0xfee0_0d00);
            let by_x2apic = counted(guest, &|guest| {
                guest.write_msr(0x830, command);
            });
            assert_eq!([by_page, by_interface, by_x2apic], [targets; 3], "{command:#x}");
            let by_another = counted(guest, &|guest| {
                guest.write_msr(0x3b, command);
            });
            assert_eq!((by_another, guest.0.state.tsc_adjust), (0, command));
            guest.write_msr(0x1b, 0xfee0_0100);
            assert_eq!((guest.raised(), guest.0.vcpu.inbox.logical()), (None, Logical::Off));
        });
    }
    with_guest(&[], |guest| {
        guest.enable_hypercalls();
        guest.begin(&[0x0f, 0x01, 0xd9]);
        // Fast: the vector, and a mask with one that is not there.
        guest.set_all(&[(RCX, 1 << 16 | 0xb), (RDX, 0x51), (8, 0b111)]);
        guest.exit(VMMCALL, 0, 0);
        assert_eq!((guest.get(RAX), guest.count(Counter::IrqIpi)), (0, 2));
    });
}

#[test]
fn the_interfaces_registers_are_the_local_apics_and_its_pages_the_guests() {
    with_guest(&[], |guest| {
        guest.write_msr(tlfs::msr::TPR, 0x53);
        assert_eq!((guest.0.state.lapic.tpr(), guest.raised()), (0x53, None));
        assert_eq!(guest.read_msr(tlfs::msr::TPR), 0x53);
        guest.write_msr(tlfs::msr::TPR, 0);
        guest.0.state.lapic.accept_fixed(0x61, Trigger::Edge);
        guest.0.state.lapic.begin_service(0x61);
        guest.write_msr(tlfs::msr::EOI, 0);
        assert_eq!(guest.0.state.lapic.highest_isr(), None);
        let page = DATA + 0x5000;
        let words = |guest: &Guest<'_, '_>| [0, 8, 0x18, 0xff8].map(|at| guest.read(page + at));
        let own = [0x1111, 0x2222, 0x3333, 0x4444];
        for (at, word) in [0, 8, 0x18, 0xff8_u64].into_iter().zip(own) {
            guest.write(page + at, &u64::to_le_bytes(word));
        }
        guest.enable_hypercalls();
        let [a, b, c] = Tested::HYPERCALL;
        assert_eq!(words(guest), [u32::from_le_bytes([a, b, c, 0xc3]).into(), 0, 0, 0]);
        guest.write_msr(tlfs::msr::HYPERCALL, 0);
        assert_eq!(words(guest), own);
        guest.write_msr(tlfs::msr::REFERENCE_TSC, page | 1);
        let clock = guest.0.vm.guest.partition.clock().page();
        assert_eq!(words(guest), [1, clock.scale, 0, 0], "sequence, scale");
        guest.write_msr(tlfs::msr::REFERENCE_TSC, 0);
        assert_eq!(words(guest), own);
    });
}

/// Units of 100 ns for which the vCPU has run, as the guest reads it.
fn run_time(guest: &mut Guest<'_, '_>) -> u64 {
    let time = guest.read_msr(tlfs::msr::VP_RUNTIME);
    assert_eq!(guest.raised(), None);
    time
}

#[test]
fn the_run_time_grows_in_turns_alone_and_begins_again_at_a_reset() {
    /// A tenth of a second, in units of 100 ns.
    const TENTH: u64 = 1_000_000;
    with_guest(&[], |guest| {
        let (vm, sched) = (guest.0.vm, &guest.0.host.sched);
        let [row, other] = [0, 1].map(|vcpu: usize| vm.vcpus[vcpu].row);
        let pass = || mock::board_impl::advance::<Tested>(Tested::hz() / 10);
        // The clock goes on by a few ticks with each reading.
        let is = |time: u64, tenths: u64| (tenths * TENTH..tenths * TENTH + 100).contains(&time);
        assert_eq!(run_time(guest), 0, "the scheduler has not given it a CPU");
        let _ = sched.wake(row, QueueClass::Work, Tested::now());
        pass();
        assert_eq!(sched.next(CpuIndex(0), Tested::now()).map(|turn| turn.vcpu), Some(row));
        assert!(is(run_time(guest), 0), "it waited");
        pass();
        assert!(is(run_time(guest), 1));
        let _ = sched.wake(other, QueueClass::Work, Tested::now());
        let _ = sched.switch(CpuIndex(0), Tested::now(), PutBack::Preempted, Released::made());
        pass();
        assert!(is(run_time(guest), 1), "another one runs");
        let _ = sched.block(CpuIndex(0), Tested::now(), u64::MAX, || Some(Released::made()));
        pass();
        assert!(is(run_time(guest), 2), "it goes on");
        assert_eq!(guest.write_msr(tlfs::msr::VP_RUNTIME, 0), Next::Resume);
        assert_eq!(guest.raised(), GP);
        assert!(is(run_time(guest), 2), "a refused write changes nothing");
        vm.reset_devices();
        assert!(is(run_time(guest), 0));
        pass();
        assert!(is(run_time(guest), 1));
    });
}
