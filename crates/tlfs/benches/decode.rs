//! Cost of decoding a call on the host's processor: at most 1.5 µs for a full list with every
//! element looked at, at most 25 ns for a flush of everything.

use std::hint::black_box;

use criterion::{Criterion, criterion_group, criterion_main};
use quell_tlfs::encode::{FlushCalls, FlushRequest, Interface, ListLimit, VaRange};
use quell_tlfs::{
    Call, CallRegisters, FlushScope, InputError, InputPage, InputSource, PAGE_WORDS, Profile, Targets,
    XMM_WORDS, decode,
};
use zerocopy::IntoBytes;

/// A page of guest memory at address 0.
struct Memory([u64; PAGE_WORDS]);

impl InputSource for Memory {
    fn read(&self, gpa: u64, into: &mut [u8]) -> Result<(), InputError> {
        let from = self.0.as_bytes().get(gpa as usize..).and_then(|bytes| bytes.get(..into.len()));
        into.copy_from_slice(from.ok_or(InputError::NotMemory)?);
        Ok(())
    }

    fn xmm_words(&self) -> [u64; XMM_WORDS] {
        [0x5000; XMM_WORDS]
    }
}

/// Decodes a call and looks at every page range that it names.
fn pages(control: u64, memory: &Memory, page: &mut InputPage, profile: &Profile) -> u64 {
    let registers = CallRegisters { control: black_box(control), input: 0, output: 0 };
    match decode(registers, memory, page, profile) {
        Ok(Call::Flush(flush)) => match flush.scope {
            FlushScope::List(list) => list.ranges().map(|range| range.pages ^ range.start).sum(),
            FlushScope::Everything => flush.address_space,
        },
        other => panic!("{other:?}"),
    }
}

fn decoding(c: &mut Criterion) {
    let mut words = [0; PAGE_WORDS];
    words[2] = 0b1111;
    words[3..]
        .iter_mut()
        .enumerate()
        .for_each(|(index, word)| *word = 0x7f00_0000_0000 + ((index as u64) << 24 | 7));
    let mut memory = Memory(words);
    let mut page = InputPage::new();
    let (plain, full) =
        (Profile::default(), Profile { xmm_input: true, extended_ranges: true, ..Profile::default() });
    let list = |count: u64| 3 | count << 32;
    c.bench_function("space", |b| b.iter(|| pages(2, &memory, &mut page, &plain)));
    c.bench_function("list-1", |b| b.iter(|| pages(list(1), &memory, &mut page, &plain)));
    c.bench_function("list-509", |b| b.iter(|| pages(list(509), &memory, &mut page, &plain)));
    c.bench_function("list-11-xmm", |b| b.iter(|| pages(list(11) | 1 << 16, &memory, &mut page, &full)));
    memory.0[1] = 8;
    memory.0[3..].iter_mut().for_each(|word| *word |= 1 << 11);
    c.bench_function("list-509-extended", |b| b.iter(|| pages(list(509), &memory, &mut page, &full)));
}

fn encoding(c: &mut Criterion) {
    let request = FlushRequest { targets: Targets::All, address_space: Some(0x1000), non_global_only: false };
    let ranges = (0..509u64).map(|index| VaRange::new(index << 24, (index << 24) + 0x7fff));
    let mut page = [0; PAGE_WORDS];
    c.bench_function("encode-list-509", |b| {
        b.iter(|| {
            let limit = ListLimit::default();
            let mut calls = FlushCalls::list(request, Interface::default(), black_box(ranges.clone()), limit);
            calls.next_into(black_box(&mut page))
        });
    });
}

criterion_group!(benches, decoding, encoding);
criterion_main!(benches);
