//! What a guest is shown works: on a processor whose CPUID is all ones.

use super::processor::{Guest, TABLES, Tested, processor, with_guest};
use super::rows::{CPUID, XSETBV};
use crate::devices::pc::apic_ids::ApicId;
use crate::x86::cpuid::kept::{Hidden, WORDS, Why, Word};
use crate::x86::cpuid::{self, View, answer};
use crate::x86::processor::Vendor;
use crate::x86::vcpu::block::Field::{Cr3, Cr4, Efer};
use crate::x86::vcpu::msr;
use crate::x86::vcpu::registers::{RAX, RBX, RCX, RDX};

const EFER: u32 = 0xc000_0080;

/// The registers of other leaves, one bit each from EAX on. They describe and enable nothing:
/// vendor, signature, counts; the timer's power state; topology; places of XCR0's components; name,
/// caches, TLBs; the invariant TSC; sizes of addresses.
fn describes(leaf: u32, subleaf: u32) -> u8 {
    match (leaf, subleaf) {
        (0 | 0xb | 0x8000_0000 | 0x8000_0002..=0x8000_0006 | 0x8000_0019, _) | (0xd, 2 | 5..=7) => 0b1111,
        (1 | 0x8000_0001, _) => 0b0011,
        (2 | 4, _) if Tested::IS_INTEL => 0b1111,
        (6, _) => 0b0001,
        (0xd, 0) => 0b0111,
        (0x8000_0007, _) => 0b1000,
        (0x8000_0008, _) => 0b0101,
        _ => 0,
    }
}

fn ask(guest: &mut Guest<'_, '_>, leaf: u32, subleaf: u32) -> [u32; 4] {
    guest.begin(&[0x0f, 0xa2]);
    guest.set_all(&[(RAX, leaf.into()), (RCX, subleaf.into())]);
    guest.exit(CPUID, 0, 0);
    [RAX, RBX, RCX, RDX].map(|register| guest.get(register) as u32)
}

fn set_cr4(guest: &mut Guest<'_, '_>, value: u64) {
    guest.begin(&[0x0f, 0x22, 0xe3]);
    guest.set_field(Cr3, TABLES);
    guest.set(RBX, value);
    guest.exit(0x14, 0, 0);
}

fn works(guest: &mut Guest<'_, '_>, why: Why) -> bool {
    let base = 1 << 5;
    match why {
        Why::Plain => true,
        Why::Control(bits) => {
            set_cr4(guest, base | bits);
            guest.raised().is_none() && guest.field(Cr4) == base | bits
        }
        Why::Efer(bit) => {
            guest.write_msr(EFER, 1 << 8 | 1 << 10 | bit);
            guest.raised().is_none() && guest.field(Efer) & bit != 0
        }
        Why::Extended(components) => {
            guest.begin(&[0x0f, 0x01, 0xd1]);
            guest.set_field(Cr4, guest.field(Cr4) | 1 << 18);
            guest.set_all(&[(RAX, components | 7), (RDX, 0), (RCX, 0)]);
            guest.exit(XSETBV, 0, 0);
            guest.raised().is_none()
                && processor(|processor| processor.xcr0) == components | 7
                && u64::from(ask(guest, 0xd, 0)[0]) & components == components
        }
        Why::Register(numbers) | Why::Own(numbers) => numbers.iter().all(|&number| {
            let value = guest.read_msr(number);
            let is_read = guest.raised().is_none();
            guest.write_msr(number, value);
            msr::passes_through::<Tested>(number) || is_read && guest.raised().is_none()
        }),
    }
}

/// The answer to a vCPU that has all that its own state can show, or nothing of it.
fn shown(leaf: u32, subleaf: u32, (vcpus, id): (u32, u32), has_all: bool) -> [u32; 4] {
    let [apic, osxsave, invariant_tsc] = [has_all; 3];
    let view = View { apic_id: ApicId(id), vcpus, apic, osxsave, invariant_tsc, may_nest: false };
    let answer = answer::<Tested>(leaf, subleaf, view, &Hidden::default());
    [answer.eax, answer.ebx, answer.ecx, answer.edx]
}

fn with_bits<R>(bits: u32, act: impl FnOnce(&mut Guest<'_, '_>) -> R) -> R {
    with_guest(&[], |guest| {
        processor(|processor| {
            processor.bits = Some(bits);
            processor.components = u64::from(bits) << 32 | u64::from(bits) & !0x1f | 7;
        });
        act(guest)
    })
}

#[test]
fn u55_every_feature_that_is_shown_is_listed_and_works() {
    let mut shown = 0;
    with_bits(u32::MAX, |guest| {
        for leaf in (0..=0x20).chain(0x8000_0000..=0x8000_0030).chain([u32::MAX]) {
            let last = if leaf == 0xd { 64 } else { 2 };
            for subleaf in (0..=last).chain([u32::MAX]) {
                let answer = ask(guest, leaf, subleaf);
                for (register, word) in answer.into_iter().enumerate() {
                    let place = (leaf, if matches!(leaf, 7 | 0xd) { subleaf } else { 0 }, register);
                    let Some((_, features)) = WORDS.iter().find(|(at, _)| *at == place) else {
                        let is_description = describes(leaf, subleaf) >> register & 1 != 0;
                        assert!(word == 0 || is_description, "{leaf:#x}.{subleaf}: {answer:x?}");
                        continue;
                    };
                    for bit in (0..32).filter(|bit| word >> bit & 1 != 0) {
                        let feature = features.iter().find(|feature| feature.0 == bit);
                        let &(_, name, why) =
                            feature.unwrap_or_else(|| panic!("{place:x?}: bit {bit} is not listed"));
                        shown += usize::from(subleaf == place.1);
                        assert!(works(guest, why), "{place:x?}: {name} is shown, and does not work");
                    }
                }
            }
        }
    });
    let listed: usize = WORDS.iter().map(|(_, features)| features.len()).sum();
    let others = 1 + usize::from(Tested::IS_INTEL);
    assert_eq!(shown, listed - others, "CMPXCHG16B is wrong here; cores are AMD's");
}

#[test]
fn u55_features_that_are_hidden_cannot_be_enabled() {
    with_bits(u32::MAX, |guest| {
        for bit in 0..64 {
            guest.write_msr(EFER, 1 << 8 | 1 << 10 | 1 << bit);
            let accepted = guest.raised().is_none();
            assert_eq!(accepted, matches!(bit, 0 | 8 | 10 | 11 | 14), "EFER bit {bit}");
        }
    });
}

/// SDM volume 2, CPUID; APM volume 3, appendix E. What describes the guest's processors is not the
/// machine's: a guest goes on where there is another number of CPUs.
#[test]
fn m7_each_register_that_describes_is_the_machines_or_the_guests() {
    const BITS: u32 = 0xa5c3_96e9;
    const ALL: [u32; 4] = [BITS; 4];
    /// Components of extended states: size and place, which end at 0x340, 0x380, 0x600 and 0x610.
    const STATES: [(u32, [u32; 2]); 4] =
        [(2, [0x100, 0x240]), (5, [0x40, 0x340]), (6, [0x200, 0x400]), (7, [0x10, 0x600])];
    let (ours, amds) = if Tested::IS_INTEL { (ALL, 0) } else { ([0; 4], u32::MAX) };
    // Number and id; count and id in leaf 1, cores, what shares a cache, and the width of an id.
    for (vcpus, id, counts, cores, sharing, width) in [
        (1, 0, 0x0001, 0, 0, 0),
        (2, 1, 0x0102, 0x1001, 1 << 14 | 1 << 26, 1),
        (3, 2, 0x0203, 0x2002, 3 << 14 | 3 << 26, 2),
        (255, 0xfe, 0xfeff, 0x80fe, 0xff << 14 | 0x3f << 26, 8),
        (300, 0x123, 0x23ff, 0x90ff, 0x1ff << 14 | 0x3f << 26, 9),
        (5000, 5, 0x05ff, 0xd0ff, 0xfff << 14 | 0x3f << 26, 13),
    ] {
        let cache = if Tested::IS_INTEL { [0x16e9 | sharing, BITS, BITS, BITS] } else { [0; 4] };
        let expected = [
            (0, 0, [0xd, 0x6874_7541, 0x444d_4163, 0x6974_6e65]),
            (1, 0, [BITS, counts << 16 | 0x9600, 0, 0]),
            (2, 0, ours),
            (4, 3, cache),
            (6, 0, [1 << 2, 0, 0, 0]),
            (0xb, 0, [0, 1, 0x100, id]),
            (0xb, 1, [width, vcpus, 0x201, id]),
            (0xb, 2, [0, 0, 2, id]),
            (0xb, 0x103, [0, 0, 3, id]),
            (0xd, 0, [0xe7, BITS, 0x610, 0]),
            (0xd, 2, [0x100, 0x240, BITS, BITS]),
            (0xd, 5, [0x40, 0x340, BITS, BITS]),
            (0x8000_0000, 0, [0x8000_001e, 0, 0, 0]),
            (0x8000_0001, 0, [BITS, BITS, 0, 0]),
            (0x8000_0002, 0, ALL),
            (0x8000_0006, 0, ALL),
            (0x8000_0007, 0, [0, 0, 0, 1 << 8]),
            (0x8000_0008, 0, [0x96e9, 0, cores & amds, 0]),
            (0x8000_0019, 0, ALL),
        ];
        with_bits(BITS, |_| {
            let words = STATES.iter().flat_map(|&(subleaf, [size, place])| {
                [((0xd, subleaf, 0), size), ((0xd, subleaf, 1), place)]
            });
            processor(|processor| processor.words = words.collect());
            for (leaf, subleaf, words) in expected {
                let found = shown(leaf, subleaf, (vcpus, id), true);
                for register in (0..4).filter(|register| describes(leaf, subleaf) >> register & 1 != 0) {
                    assert_eq!(found[register], words[register], "{vcpus}: {leaf:#x}.{subleaf} {register}");
                }
            }
            let sizes = [3, 7, 0x27, 0x67, 0xe7].map(cpuid::image_size::<Tested>);
            assert_eq!(sizes, [0x240, 0x340, 0x380, 0x600, 0x610]);
        });
    }
    // Caches of the first two levels are a core's own.
    for (level, is_shared) in [(0, false), (1, false), (2, false), (3, true), (4, true)] {
        let found = with_bits(level << 5 | 0x11, |_| shown(4, 0, (2, 0), true)[0] >> 14 & 0xfff);
        assert_eq!(found, u32::from(is_shared && Tested::IS_INTEL), "level {level}");
    }
}

/// What a guest is shown of a processor that has nothing is the hypervisor's own.
#[test]
fn u55_what_the_processor_need_not_have_is_always_shown() {
    let cores = if Tested::IS_INTEL { 0 } else { 1 << 1 };
    let own = [1 << 27, 1 << 28 | 1 << 9, 0, 0, 0, 0, cores, 1 << 9, 0, 0];
    let always = [1 << 21 | 1 << 24 | 1 << 31, 0, 1 << 1, 0, 0, 0, 0, 0, 0, 0];
    for (vcpus, word) in [(2, u32::MAX), (1, 0)] {
        with_bits(0, |_| {
            let answers = WORDS
                .map(|((leaf, subleaf, register), _)| shown(leaf, subleaf, (vcpus, 0), vcpus > 1)[register]);
            let expected: Vec<_> = own.iter().zip(always).map(|(own, always)| own & word | always).collect();
            assert_eq!(answers, *expected, "{vcpus}");
        });
    }
}

/// With a CPUID of these bits but for these registers.
fn with_words<R>(bits: u32, words: &[(Word, u32)], look: impl FnOnce() -> R) -> R {
    with_bits(bits, |_| {
        processor(|processor| processor.words = words.to_vec());
        look()
    })
}

#[test]
fn what_the_machine_has_is_said_by_the_bit_for_it() {
    for (word, bit, has) in [
        ((1, 0, 2), 21, cpuid::host_has_x2apic::<Tested> as fn() -> bool),
        ((1, 0, 2), 24, cpuid::host_has_tsc_deadline::<Tested>),
        ((7, 0, 1), 0, cpuid::shows_fsgsbase::<Tested>),
        ((0x8000_0001, 0, 3), 26, cpuid::host_has_1g_pages::<Tested>),
        ((0x8000_0001, 0, 3), 27, cpuid::host_has_rdtscp::<Tested>),
        ((0x8000_0007, 0, 3), 8, cpuid::host_has_invariant_tsc::<Tested>),
    ] {
        let found = [(0, 1 << bit), (u32::MAX, !(1 << bit))]
            .map(|(others, value)| with_words(others, &[(word, value)], has));
        assert_eq!(found, [true, false], "{word:x?} {bit}");
    }
    // QEMU's emulation says who it is: TCGTCGTCGTCG.
    let tcg = [((1, 0, 2), 1 << 31)].into_iter().chain(
        [0x5447_4354, 0x4354_4743, 0x4743_5447]
            .into_iter()
            .zip(1..)
            .map(|(word, at)| ((0x4000_0000, 0, at), word)),
    );
    let tcg: Vec<_> = tcg.collect();
    assert!(with_words(0, &tcg, cpuid::host_has_invariant_tsc::<Tested>));
    for missing in 0..4 {
        let mut words = tcg.clone();
        words[missing].1 = 0;
        assert!(!with_words(0, &words, cpuid::host_has_invariant_tsc::<Tested>), "{missing}");
    }
    // Leaf 7 and leaf 0xb are there if the highest leaf is as high.
    for (highest, has) in [(6, false), (7, true)] {
        let words = [((0, 0, 0), highest)];
        assert_eq!(with_words(u32::MAX, &words, cpuid::shows_fsgsbase::<Tested>), has);
    }
    for (features, highest, id) in [(1 << 21, 0xb, 0x1234), (1 << 21, 0xa, 0x77), (!(1 << 21), 0xb, 0x77)] {
        let words =
            [((1, 0, 2), features), ((0, 0, 0), highest), ((1, 0, 1), 0x77ff_ffff), ((0xb, 0, 3), 0x1234)];
        assert_eq!(with_words(0, &words, cpuid::host_apic_id::<Tested>), id.into(), "{highest:#x}");
    }
    let width = [((0x8000_0008, 0, 0), 0x3029)];
    assert_eq!(with_words(0, &width, cpuid::physical_address_bits::<Tested>), 0x29);
    // CR4: MCE and PCE need no feature.
    let masks = || (cpuid::guest_cr4_mask::<Tested>(), cpuid::guest_efer_mask::<Tested>());
    assert_eq!(with_words(0, &[], masks), (0x140, 0));
    assert_eq!(with_words(u32::MAX, &[], masks), (0x37_0fff, 0x4901));
}

#[test]
fn u55_what_a_vcpu_has_enabled_is_shown() {
    with_guest(&[], |guest| {
        for value in [1, 0] {
            guest.write_msr(tlfs::msr::TSC_INVARIANT_CONTROL, value);
            assert_eq!((guest.raised(), ask(guest, 0x8000_0007, 0)), (None, [0, 0, 0, (value as u32) << 8]));
            guest.set_field(Cr4, 1 << 5 | value << 18);
            guest.set_all(&[(RAX, 1), (RCX, 0)]);
            guest.exit(CPUID, 0, 0);
            assert_eq!(guest.get(RCX) >> 27 & 1, value, "OSXSAVE");
            guest.write_msr(0x1b, 0xfee0_0100 | value << 11);
            let apic = [1, 0x8000_0001].map(|leaf| u64::from(ask(guest, leaf, 0)[3] >> 9 & 1));
            assert_eq!((guest.raised(), apic), (None, [value; 2]));
        }
    });
}

/// What features have in common stays while one of them is shown.
#[test]
fn m7_what_enables_a_hidden_feature_is_hidden_with_it() {
    let all = WORDS.map(|(_, features)| features.iter().fold(0, |word, feature| word | 1 << feature.0));
    let without = |word: Word, bit: u32| {
        let mut words = all;
        let index = WORDS.iter().position(|(at, _)| *at == word).expect("a word");
        words[index] &= !(1 << bit);
        Hidden::between(all, words)
    };
    let (smep, avx) = (without((7, 0, 1), 7), without((1, 0, 2), 28));
    assert_eq!((smep.is_some, smep.cr4, smep.efer, smep.components), (true, 1 << 20, 0, 0));
    assert_eq!((avx.is_some, avx.cr4, avx.components), (true, 0, 0), "AVX2 is shown");
    let none = Hidden::between(all, Default::default());
    assert_eq!((none.components, none.efer & (1 << 11)), (0xe4, 1 << 11));
    assert_eq!(Hidden::between(all, all), Hidden::default());
}
