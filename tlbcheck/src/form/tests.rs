//! The forms are decoded as intended.

use super::*;
use std::vec::Vec;
use tlfs::{
    Call, CallRegisters, FlushCall, FlushScope, InputError, InputPage, InputSource, Profile, XMM_WORDS,
    decode,
};

/// An address, and the contents of memory there or of registers.
struct Source<'a>(&'a [u64]);

impl InputSource for Source<'_> {
    fn read(&self, _: u64, into: &mut [u8]) -> Result<(), InputError> {
        let bytes: Vec<u8> = self.0.iter().flat_map(|word| word.to_le_bytes()).collect();
        into.copy_from_slice(&bytes[..into.len()]);
        Ok(())
    }

    fn xmm_words(&self) -> [u64; XMM_WORDS] {
        core::array::from_fn(|index| self.0.get(index + 2).copied().unwrap_or(0))
    }
}

fn decoded(flush: &Flush<'_>, check: impl FnOnce(&FlushCall<'_>)) {
    let mut words = [0; PAGE_WORDS];
    let (control, count) = flush.encode(&mut words).expect("there is such a call");
    let (input, output) = match flush.via {
        Via::Memory => (0, 0),
        Via::Xmm => (words[0], words[1]),
    };
    let registers = CallRegisters { control: control.into_bits(), input, output };
    let mut page = InputPage::new();
    let call = decode(registers, &Source(&words[..count]), &mut page, &Profile::FULL);
    let Ok(Call::Flush(call)) = call else { panic!("{flush:?}: {call:?}") };
    assert_eq!(call.completed(), flush.success());
    assert_eq!(call.address_space, flush.space);
    check(&call);
}

fn flush<'a>(kind: Kind, via: Via, targets: Targets<'a>, elements: &'a [u64]) -> Flush<'a> {
    Flush { kind, via, targets, space: 0x1234_5000, flags: FlushFlags::new(), elements }
}

#[test]
fn every_form_names_its_targets_and_its_list() {
    let (valid, bank) = sparse_of(130);
    assert_eq!((valid, bank), (1 << 2, [1 << 2]));
    for kind in Kind::ALL {
        for via in [Via::Memory, Via::Xmm] {
            let sets: &[Targets<'_>] = match kind.is_ex() {
                true => {
                    &[Targets::AllFormat(&[]), Targets::AllFormat(&[1, 2]), Targets::Sparse(valid, &bank)]
                }
                false => &[],
            };
            for targets in [Targets::AllFlag, Targets::Mask(1 << 5)].iter().chain(sets) {
                decoded(&flush(kind, via, *targets, &[0x7000, 0x9001]), |call| {
                    let all = matches!(targets, Targets::AllFlag | Targets::AllFormat(_));
                    assert_eq!(call.targets == tlfs::Targets::All, all, "{kind:?} {targets:?}");
                    let is_sparse = matches!(targets, Targets::Sparse(..));
                    assert_eq!(call.targets.contains(130), all || is_sparse);
                    assert_eq!(call.targets.contains(5), all || !is_sparse);
                    match call.scope {
                        FlushScope::Everything => assert!(!kind.is_list()),
                        FlushScope::List(list) => assert_eq!(list.words(), [0x7000, 0x9001]),
                    }
                });
            }
        }
    }
}

#[test]
fn h4_the_longest_list_fits_and_one_more_does_not() {
    let elements = [0x1000; PAGE_WORDS];
    let all = [(Via::Memory, Kind::List, 509), (Via::Memory, Kind::ListEx, 507)];
    for (via, kind, expected) in
        all.into_iter().chain([(Via::Xmm, Kind::List, 11), (Via::Xmm, Kind::ListEx, 9)])
    {
        assert_eq!(kind.elements_max(via, 1), expected);
        let mut words = [0; PAGE_WORDS];
        let with = |count| flush(kind, via, Targets::Mask(1), &elements[..count]);
        let (control, _) = with(expected).encode(&mut words).expect("it fits");
        assert_eq!(usize::from(control.rep_count()), expected);
        assert_eq!(with(expected + 1).encode(&mut words), None);
    }
}

#[test]
fn a_mask_names_no_set() {
    let mut words = [0; PAGE_WORDS];
    for targets in [Targets::AllFormat(&[]), Targets::Sparse(1, &[1])] {
        assert_eq!(flush(Kind::Space, Via::Memory, targets, &[]).encode(&mut words), None);
    }
}

#[test]
fn h22_elements_cover_what_they_are_to_cover() {
    for (element, additional, address, start, pages) in [
        (Element::Plain, 4095, 0x1234_5678, 0x1234_5000, 4096),
        (Element::Extended4K, 2047, 0x1234_5678, 0x1234_5000, 2048),
        (Element::Extended2M, 2, 0x1234_5678, 0x1220_0000, 3 * 512),
        (Element::Extended1G, 1, 0x1234_5678, 0, 2 << 18),
    ] {
        let list = [element.word(address, additional)];
        let call =
            Flush { flags: element.flags(), ..flush(Kind::List, Via::Memory, Targets::Mask(1), &list) };
        decoded(&call, |call| {
            let FlushScope::List(list) = call.scope else { panic!("no list") };
            let range = list.ranges().next().expect("it is canonical");
            assert_eq!((range.start, range.pages), (start, pages), "{element:?}");
        });
    }
}
