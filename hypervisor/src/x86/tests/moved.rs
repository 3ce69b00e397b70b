//! A vCPU, and what it shares with others, is written, and goes on on another machine.

use baremetal::random::Random;
use hostlink::architecture::Architecture;
use migration::{Archive, Flaw};

use super::processor::{CODE, DATA, Guest, Kind, Tested, processor, with_guest};

use crate::devices::pc::lapic::msr::{SVR, TSC_DEADLINE};
use crate::devices::pc::message::Trigger;
use crate::svm::tests::random::goes_on;
use crate::svm::tests::rows::{CPUID, HLT, MSR};
use crate::vm::arch::{Arch, Clock, State};
use crate::vm::mock;
use crate::x86::cpuid::kept::Word;
use crate::x86::processor::Vendor;
use crate::x86::vcpu::block::ControlBlock;
use crate::x86::vcpu::block::Field::{Cr4, Lstar, Rflags, Rip, TscOffset};
use crate::x86::vcpu::nmi::Nmi;
use crate::x86::vcpu::registers::{RAX, RBX, RCX, RDX};
use crate::x86::vcpu::state::Activity;
use crate::x86::{CR4_PAE, EFER_LME};
use tlfs::msr;

pub(crate) fn describe(guest: &mut Guest<'_, '_>, archive: &mut Archive<'_>) -> Result<(), Flaw> {
    let context = &mut *guest.0;
    Tested::describe_shared(context.vm, archive)?;
    Tested::describe_vcpu(context.vm, context.state, &context.vcpu.inbox, archive)
}

/// The vCPU leaves its CPU meanwhile, because of a stop.
pub(crate) fn off<R>(guest: &mut Guest<'_, '_>, act: impl FnOnce(&mut Guest<'_, '_>) -> R) -> R {
    mock::set_pause(guest.0.vm, true);
    Tested::save_state(guest.0);
    mock::set_pause(guest.0.vm, false);
    let result = act(guest);
    Tested::reload_state(guest.0);
    result
}

pub(crate) fn written(guest: &mut Guest<'_, '_>) -> Vec<u8> {
    off(guest, |guest| {
        let mut bytes = vec![0; 1 << 16];
        let mut archive = Archive::writer(&mut bytes);
        describe(guest, &mut archive).expect("it is written");
        let len = archive.finish().expect("it fits");
        bytes.truncate(len);
        bytes
    })
}

/// Reads a state. The guest's clock goes on at `ticks`.
pub(crate) fn read(guest: &mut Guest<'_, '_>, bytes: &[u8], ticks: u64) -> Result<(), Flaw> {
    let vm = guest.0.vm;
    vm.clock.set(&vm.host.wall, Tested::now(), ticks, 0);
    off(guest, |guest| {
        let mut archive = Archive::reader(bytes);
        describe(guest, &mut archive)?;
        archive.finish().map(|_| ())
    })
}

/// The vCPU looks at its timers, which are not due for ever, and enters the guest. Its exits are
/// handled.
pub(super) fn enters(guest: &mut Guest<'_, '_>, seed: u64) {
    let now = Tested::now();
    Tested::expire_timers(guest.0, now);
    assert!(guest.0.state.next_deadline(now) > now, "seed {seed}");
    for code in [CPUID, HLT, MSR] {
        goes_on(guest, (seed, 0), |guest| Tested::enter_once(guest.0));
        let _next = guest.exit(code, 0, 0);
    }
}

/// Nothing that a stream says stops the hypervisor: it is a flaw, or the guest's own affair.
#[test]
fn m6_a_changed_state_is_a_flaw_or_the_guests_affair() {
    let bytes = with_guest(&[], |guest| {
        guest.enable_hypercalls();
        for (number, value) in [
            (msr::REFERENCE_TSC, DATA + 0x4001),
            (msr::VP_ASSIST_PAGE, DATA + 0x6001),
            (msr::STIMER0_CONFIG, 1 | 1 << 1 | 1 << 12 | 0x62 << 4),
            (msr::STIMER0_COUNT, 10_000),
        ] {
            let _next = guest.write_msr(number, value);
        }
        guest.0.state.lapic.accept_fixed(0x51, Trigger::Level);
        guest.0.state.alarm = 5;
        written(guest)
    });
    let first = mock::number("QUELL_STREAMS_SEED").unwrap_or(1);
    for seed in first..first + mock::number("QUELL_STREAMS_RUNS").unwrap_or(150) {
        let mut random = Random::new(seed);
        let mut changed = bytes.clone();
        for _ in 0..=random.below(3) {
            changed[random.below(bytes.len() as u64) as usize] ^= 1 << random.below(8);
        }
        let end = random.below(bytes.len() as u64) as usize;
        with_guest(&[], |guest| {
            assert_eq!(read(guest, &bytes[..end], 0), Err(Flaw::Short), "seed {seed}: {end}");
            if read(guest, &changed, random.word()).is_ok() {
                enters(guest, seed);
            }
        });
    }
}

/// What is written by WRMSR, XSETBV or XRSTOR at an entry must not fault there.
#[test]
fn m6_what_would_fault_where_it_is_loaded_is_a_flaw() {
    let with = |break_it: &dyn Fn(&mut Guest<'_, '_>)| {
        with_guest(&[], |guest| {
            off(guest, |guest| {
                break_it(guest);
                let mut bytes = vec![0; 1 << 16];
                describe(guest, &mut Archive::writer(&mut bytes))
            })
        })
    };
    assert_eq!(with(&|guest| guest.set_field(Lstar, 1 << 47)), Err(Flaw::Value("LSTAR")));
    assert_eq!(with(&|guest| guest.set_field(Cr4, 1 << 40)), Err(Flaw::Value("CR4")));
    assert_eq!(with(&|guest| guest.0.state.tsc_aux = 1 << 32), Err(Flaw::Value("TSC_AUX")));
    assert_eq!(with(&|_| {}), Ok(()));
}

#[test]
fn m7_another_processor_is_refused_by_the_name_of_what_it_lacks() {
    let bytes = with_guest(&[], written);
    with_guest(&[], |guest| {
        processor(|processor| processor.bits = Some(0));
        assert_eq!(read(guest, &bytes, 0), Err(Flaw::Differs("SSE3", 0, 1)));
    });
    for (word, name) in [
        ((0, 0, 1), "CPUID 0: the vendor, and the highest leaf"),
        ((1, 0, 0), "CPUID 1: the processor's signature"),
        ((4, 1, 1), "CPUID 2 to 6: the caches"),
        ((0xd, 2, 1), "CPUID 0xd: the places of extended states"),
        ((0x8000_0003, 0, 2), "CPUID 0x80000002 to 0x80000006: the processor's name, caches, TLBs"),
        ((0x8000_0008, 0, 0), "CPUID 0x80000008: widths of addresses"),
    ] {
        with_guest(&[], |guest| {
            processor(|processor| processor.words = vec![(word, 0x2f)]);
            let found = read(guest, &bytes, 0);
            let is_seen = Tested::IS_INTEL || word.0 != 4;
            assert!(!is_seen || matches!(found, Err(Flaw::Differs(its, ..)) if its == name), "{found:?}");
        });
    }
}

/// It goes on as it was, and back again.
#[test]
fn m7_what_a_guest_has_not_seen_is_hidden_where_it_arrives() {
    const SMAP: u64 = 1 << 21;
    const NXE: u64 = 1 << 11;
    const WITHOUT: [(Word, u32); 2] = [((7, 0, 1), !(1 << 20)), ((0x8000_0001, 0, 3), !(1 << 20 | 1 << 26))];
    let bytes = with_guest(&[], |guest| {
        processor(|processor| processor.words = WITHOUT.to_vec());
        written(guest)
    });
    let all = with_guest(&[], |guest| {
        let all = written(guest);
        read(guest, &bytes, 0).expect("all of it is here");
        assert!(written(guest) == bytes, "it goes back");
        let cpuid = |guest: &mut Guest<'_, '_>, leaf: u32| {
            guest.begin(&[0x0f, 0xa2]);
            guest.set_all(&[(RAX, leaf.into()), (RCX, 0)]);
            guest.exit(CPUID, 0, 0);
            [RBX, RDX].map(|register| guest.get(register) >> 20 & 1)
        };
        assert_eq!((cpuid(guest, 7)[0], cpuid(guest, 0x8000_0001)[1]), (0, 0));
        guest.begin(&[0x0f, 0x22, 0xe3]);
        guest.set(RBX, CR4_PAE | SMAP);
        guest.exit(0x14, 0, 0);
        assert_eq!(guest.raised(), Some(13), "SMAP");
        guest.write_msr(0xc000_0080, EFER_LME | NXE);
        assert_eq!(guest.raised(), Some(13), "NXE");
        enters(guest, 0);
        all
    });
    with_guest(&[], |guest| {
        processor(|processor| processor.words = WITHOUT.to_vec());
        assert_eq!(read(guest, &all, 0), Err(Flaw::Differs("SMAP", 0, 1)));
    });
}

/// By XRSTOR: APM volume 2, section 11.5. A processor may have misaligned SSE.
#[test]
fn m7_extended_states_are_such_as_can_be_loaded() {
    let header = Err(Flaw::Value("an XSAVE header"));
    for (at, value, bits, expected) in [
        (24, 0x2_1f80_u32, u32::MAX, Ok(())),
        (24, 0x2_1f80, !(1 << 7), Err(Flaw::Value("MXCSR"))),
        (24, 0x1_1f80, u32::MAX, Err(Flaw::Value("MXCSR"))),
        (508, u32::MAX, u32::MAX, Ok(())),
        (512, u32::MAX, u32::MAX, Ok(())),
        (520, 1, u32::MAX, header),
        (572, 1 << 31, u32::MAX, header),
        (576, u32::MAX, u32::MAX, Ok(())),
    ] {
        let found = with_guest(&[], |guest| {
            processor(|processor| {
                processor.bits = Some(bits);
                processor.fpu[at..at + 4].copy_from_slice(&value.to_le_bytes());
            });
            off(guest, |guest| {
                let mut bytes = vec![0; 1 << 16];
                describe(guest, &mut Archive::writer(&mut bytes))
            })
        });
        assert_eq!(found, expected, "{at}: {value:#x}");
    }
}

#[test]
fn m7_a_guest_of_another_kind_of_processor_is_refused() {
    let svm = crate::svm::tests::processor::with_guest(&[], crate::svm::tests::moved::written);
    let vmx = crate::vmx::tests::processor::with_guest(&[], crate::vmx::tests::moved::written);
    for (bytes, kind) in [(svm, Architecture::Amd64), (vmx, Architecture::Intel64)] {
        let is = with_guest(&[], |guest| read(guest, &bytes, 0));
        let [here, there] = [Tested::ARCHITECTURE, kind].map(|kind| kind as u64);
        let other = Flaw::Differs("the kind of processor", here, there);
        assert_eq!(is, if here == there { Ok(()) } else { Err(other) });
    }
}

#[test]
fn m5_what_pends_is_delivered_on_the_other_machine() {
    let bytes = with_guest(&[], |guest| {
        guest.set(RAX, 0x1234);
        guest.set_field(Rip, CODE + 7);
        guest.0.state.lapic.accept_fixed(0x51, Trigger::Edge);
        let _ = guest.0.vcpu.inbox.post_fixed(0x52, Trigger::Edge);
        let _ = guest.0.vcpu.inbox.post_nmi();
        guest.0.state.nmi = Nmi::BLOCKED;
        guest.0.state.activity = Activity::Halted;
        processor(|processor| {
            processor.fpu[24..28].copy_from_slice(&0x1fa0_u32.to_le_bytes());
            (processor.fpu[512], processor.fpu[600], processor.xcr0) = (3, 0x55, 3);
        });
        written(guest)
    });
    with_guest(&[], |guest| {
        read(guest, &bytes, 0).expect("is read");
        processor(|processor| {
            let found = (&processor.fpu[24..28], processor.fpu[512], processor.fpu[600], processor.xcr0);
            assert_eq!(found, (&[0xa0, 0x1f, 0, 0][..], 3, 0x55, 3));
        });
        let state = &mut *guest.0.state;
        assert_eq!((state.registers.0[RAX], state.block.read(Rip)), (0x1234, CODE + 7));
        assert_eq!(state.nmi & (Nmi::BLOCKED | Nmi::PENDING), Nmi::BLOCKED | Nmi::PENDING);
        assert_eq!((state.activity, state.lapic.pending()), (Activity::Halted, Some(0x52)));
        state.nmi = Nmi::default();
        state.block.write(Rflags, 0x202);
        state.update_activity();
        assert!(state.is_running());
        for vector in [0x52, 0x51] {
            assert_eq!(guest.0.state.lapic.pending(), Some(vector));
            guest.0.state.lapic.begin_service(vector);
            let _ = guest.0.state.lapic.eoi();
        }
    });
}

#[test]
fn m4_timers_that_were_due_fire_once_and_time_never_steps_back() {
    let deadline = 1 << 40;
    let mut rdtsc = 0;
    let (bytes, reference, ticks) = with_guest(&[], |guest| {
        guest.write_msr(0x3b, 5000);
        // TSC deadline, vector 0x61; a periodic synthetic timer each 1 ms, vector 0x62.
        let _ = guest.0.state.lapic.write_page(0xfee0_0320, 0x4_0061, 0);
        guest.write_msr(TSC_DEADLINE, deadline);
        guest.write_msr(msr::STIMER0_CONFIG, 1 | 1 << 1 | 1 << 12 | 0x62 << 4);
        guest.write_msr(msr::STIMER0_COUNT, 10_000);
        let partition = &guest.0.vm.guest.partition;
        let now = Tested::now();
        rdtsc = now.wrapping_add(guest.field(TscOffset));
        let page = partition.clock().page();
        assert_eq!(page.scale, partition.clock().page().scale);
        (written(guest), partition.clock().time_at(now), now)
    });
    with_guest(&[], |guest| {
        // The machine's clock is far ahead; the guest stood still for some time.
        mock::board_impl::advance::<Tested>(1 << 30);
        read(guest, &bytes, ticks + 50_000).expect("is read");
        let now = Tested::now();
        let tsc = now.wrapping_add(guest.field(TscOffset));
        assert!((rdtsc + 50_000..rdtsc + 51_000).contains(&tsc), "{tsc} after {rdtsc}");
        let vm = guest.0.vm;
        let clock = vm.guest.partition.clock();
        let time = clock.time_at(vm.clock.at(now));
        assert!(time >= reference, "{time} after {reference}");
        // Nothing is due yet, or the periodic timer is.
        let due = guest.0.state.next_deadline(now);
        assert!(due < u64::MAX);
        mock::board_impl::advance::<Tested>(1 << 41);
        let now = Tested::now();
        assert!(guest.0.state.next_deadline(now) <= now);
        Tested::expire_timers(guest.0, now);
        let fired = |guest: &Guest<'_, '_>| guest.0.state.lapic.highest_irr();
        assert_eq!(fired(guest), Some(0x62));
        for vector in [0x62, 0x61] {
            assert_eq!(guest.0.state.lapic.pending(), Some(vector));
            guest.0.state.lapic.begin_service(vector);
            let _ = guest.0.state.lapic.eoi();
        }
        assert_eq!(fired(guest), None, "once for all periods that were missed");
        let next = guest.0.state.next_deadline(now);
        assert!(next > now && next < u64::MAX);
        // A reset keeps the clock.
        guest.0.state.reset(&guest.0.vcpu.inbox);
        assert_eq!(guest.field(TscOffset), vm.clock.base());
    });
}

/// The page and the register never differ: the guest's memory comes with it, and so does the clock
/// that the page was made of.
#[test]
fn m4_the_tsc_page_is_right_on_the_other_machine() {
    const PAGE: u64 = DATA + 0x4000;
    let (bytes, [scale, offset]) = with_guest(&[], |guest| {
        guest.write_msr(msr::REFERENCE_TSC, PAGE | 1);
        (written(guest), [8, 16].map(|at| guest.read(PAGE + at)))
    });
    with_guest(&[], |guest| {
        mock::board_impl::advance::<Tested>(123_456_789);
        read(guest, &bytes, 7 << 40).expect("is read");
        let vm = guest.0.vm;
        let page = vm.guest.partition.clock().page();
        assert_eq!((page.scale, page.offset.cast_unsigned()), (scale, offset));
        for _ in 0..100 {
            let before = Tested::now();
            let value = guest.0.state.hyperv.read_msr(&vm.guest.partition, msr::TIME_REF_COUNT, before);
            let tsc = before.wrapping_add(guest.field(TscOffset));
            let by_page = ((u128::from(tsc) * u128::from(scale)) >> 64) as u64;
            let by_page = by_page.wrapping_add(offset);
            assert_eq!(value, Ok(crate::x86::hyperv::MsrRead::Value(by_page)));
        }
        // What the page covered comes back.
        guest.write_msr(msr::REFERENCE_TSC, 0);
        assert_eq!(guest.read(PAGE + 8), 0);
    });
}

#[test]
fn m5_an_end_of_interrupt_in_memory_is_settled_before_the_guest_is_written() {
    const PAGE: u64 = DATA + 0x6000;
    let bytes = with_guest(&[], |guest| {
        guest.write_msr(msr::VP_ASSIST_PAGE, PAGE | 1);
        guest.0.state.lapic.accept_fixed(0x41, Trigger::Edge);
        guest.0.state.lapic.begin_service(0x41);
        assert!(guest.enter(|_, _| {}));
        assert_eq!(guest.read(PAGE) & 1, 0, "an offer ends with the stay");
        written(guest)
    });
    with_guest(&[], |guest| {
        read(guest, &bytes, 0).expect("is read");
        assert!(guest.enter(|_, _| {}));
        assert_eq!(guest.0.state.lapic.highest_isr(), Some(0x41));
        let _ = guest.write_msr(SVR, 0);
    });
}
