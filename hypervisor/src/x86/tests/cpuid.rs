//! What a guest is shown works: on a processor whose CPUID is all ones.

use super::processor::{Guest, TABLES, Tested, processor, with_guest};
use super::rows::{CPUID, MSR, XSETBV};
use crate::devices::pc::apic_ids::ApicId;
use crate::x86::cpuid::kept::{Hidden, WORDS, Why, Word};
use crate::x86::cpuid::{View, answer};
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
            guest.begin(&[0x0f, 0x32]);
            guest.set(RCX, number.into());
            guest.exit(MSR, 0, 0);
            let value = guest.get(RDX) << 32 | guest.get(RAX);
            let is_read = guest.raised().is_none();
            guest.write_msr(number, value);
            msr::passes_through::<Tested>(number) || is_read && guest.raised().is_none()
        }),
    }
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
    with_bits(0, |guest| {
        for ((leaf, subleaf, register), features) in WORDS {
            let word = ask(guest, leaf, subleaf)[register];
            let own = features.iter().filter(|feature| matches!(feature.2, Why::Own(_)));
            let own = own.fold(0, |mask, feature| mask | 1 << feature.0);
            assert_eq!(word & !own, 0, "{leaf:#x}.{subleaf}");
        }
        for bit in 0..64 {
            guest.write_msr(EFER, 1 << 8 | 1 << 10 | 1 << bit);
            let (is_fixed, fault) = (matches!(bit, 8 | 10), guest.raised().is_some());
            assert!(is_fixed || fault, "EFER bit {bit}");
        }
    });
    with_bits(u32::MAX, |guest| {
        for bit in 0..64 {
            guest.write_msr(EFER, 1 << 8 | 1 << 10 | 1 << bit);
            let accepted = guest.raised().is_none();
            assert_eq!(accepted, matches!(bit, 0 | 8 | 10 | 11 | 14), "EFER bit {bit}");
        }
    });
}

/// A guest goes on where there is another number of CPUs.
#[test]
fn m7_what_describes_the_guests_processors_is_not_the_machines() {
    const DESCRIBES: [(u32, usize, u32); 8] = [
        (1, 1, 0xffff << 16),
        (1, 3, 1 << 28),
        (0xb, 0, u32::MAX),
        (0xb, 1, u32::MAX),
        (0x8000_0001, 2, 1 << 1),
        (0x8000_0008, 2, u32::MAX),
        (0x8000_001e, 1, u32::MAX),
        (0x1f, 1, u32::MAX),
    ];
    for vcpus in [1, 2, 3, 255] {
        let view =
            View { apic_id: ApicId(vcpus - 1), vcpus, apic: true, osxsave: false, invariant_tsc: false };
        let seen = [0, u32::MAX].map(|bits| {
            with_bits(bits, |_| {
                DESCRIBES.map(|(leaf, register, of)| {
                    let answer = answer::<Tested>(leaf, u32::from(leaf == 0xb), view, &Hidden::default());
                    [answer.eax, answer.ebx, answer.ecx, answer.edx][register] & of
                })
            })
        });
        assert_eq!(seen[0], seen[1], "{vcpus}");
        assert_eq!(seen[0][1] != 0, vcpus > 1, "several processors");
        assert_eq!(seen[0][4] != 0, vcpus > 1 && !Tested::IS_INTEL, "they are cores");
    }
    // An Intel's cache says so, too: those of a core, and of all.
    if Tested::IS_INTEL {
        let caches = with_bits(u32::MAX, |_| {
            [1, 2, 200].map(|vcpus| {
                let view =
                    View { apic_id: ApicId(0), vcpus, apic: true, osxsave: false, invariant_tsc: false };
                answer::<Tested>(4, 3, view, &Hidden::default()).eax >> 14
            })
        });
        assert_eq!(caches, [0, 1 | 1 << 12, 255 | 63 << 12]);
    }
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

#[test]
fn u55_a_local_apic_that_is_off_is_not_shown() {
    with_bits(u32::MAX, |guest| {
        for (base, shown) in [(0xfee0_0900, 1), (0xfee0_0100, 0)] {
            guest.write_msr(0x1b, base);
            assert_eq!(guest.raised(), None);
            for leaf in [1, 0x8000_0001] {
                assert_eq!(ask(guest, leaf, 0)[3] >> 9 & 1, shown, "{leaf:#x}");
            }
        }
    });
}
