//! Values that registers do not accept.

use super::processor::{Guest, Kind, TABLES, Tested, processor, with_guest};
use super::rows::{GP, MSR, UD, XSETBV};
use crate::sched::{CpuIndex, Line, PutBack, Released};
use crate::vm::arch::Clock;
use crate::vm::{Next, mock};
use crate::x86::processor::Vendor;
use crate::x86::vcpu::block::ControlBlock;
use crate::x86::vcpu::block::Field::{Cr3, Cr4, Cstar, Efer, KernelGs, Lstar, Pat};
use crate::x86::vcpu::block::SegmentName;
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

/// Units of 100 ns for which the vCPU has run, as the guest reads it.
fn run_time(guest: &mut Guest<'_, '_>) -> u64 {
    guest.begin(&[0x0f, 0x32]);
    guest.set(RCX, tlfs::msr::VP_RUNTIME.into());
    assert_eq!(guest.exit(MSR, 0, 0), Next::Resume);
    assert_eq!(guest.raised(), None);
    guest.get(RDX) << 32 | guest.get(RAX)
}

#[test]
fn the_run_time_grows_in_turns_alone_and_begins_again_at_a_reset() {
    /// A tenth of a second, in units of 100 ns.
    const TENTH: u64 = 1_000_000;
    with_guest(&[], |guest| {
        let (vm, sched) = (guest.0.vm, &guest.0.host.sched);
        let [row, other] = [0, 1].map(|vcpu: usize| vm.vcpus[vcpu].row);
        let pass = || mock::offer::advance::<Tested>(Tested::hz() / 10);
        // The clock goes on by a few ticks with each reading.
        let is = |time: u64, tenths: u64| (tenths * TENTH..tenths * TENTH + 100).contains(&time);
        assert_eq!(run_time(guest), 0, "the scheduler has not given it a CPU");
        let _ = sched.wake(row, Line::Work, Tested::now());
        pass();
        assert_eq!(sched.next(CpuIndex(0), Tested::now()).map(|turn| turn.vcpu), Some(row));
        assert!(is(run_time(guest), 0), "it waited");
        pass();
        assert!(is(run_time(guest), 1));
        let _ = sched.wake(other, Line::Work, Tested::now());
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
