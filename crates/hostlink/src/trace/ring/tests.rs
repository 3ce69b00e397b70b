//! A ring on the host, and under loom with all interleavings of its two ends.

use super::*;
use core::convert::Infallible;

/// A ring in memory.
struct Memory {
    count: AtomicU64,
    places: Vec<[AtomicU64; WORDS]>,
}

impl Memory {
    fn new(records: usize) -> Self {
        let place = || [(); WORDS].map(|()| AtomicU64::new(0));
        Self { count: AtomicU64::new(0), places: (0..records).map(|_| place()).collect() }
    }

    fn writer(&self) -> Writer<'_> {
        Writer::new(&self.count, &self.places)
    }
}

impl Source for Memory {
    type Error = Infallible;

    fn count(&self) -> Result<u64, Infallible> {
        Ok(self.count.load(Ordering::Acquire)) // Pairs with C.
    }

    fn word(&self, place: u64, word: usize) -> Result<u64, Infallible> {
        Ok(self.places[place as usize][word].load(Ordering::Relaxed))
    }
}

/// Words that identify a record and reveal a torn one.
fn words_of(record: u64) -> [u64; WORDS] {
    [0, 1, 2, 3].map(|word| 10 * (record + 1) + word)
}

/// The numbers of the records that can be read now; each is whole.
fn read(reader: &mut Reader, memory: &Memory) -> Vec<u64> {
    let mut found = Vec::new();
    let Ok(()) = reader.read(memory, |words| {
        let number = words[0] / 10 - 1;
        assert_eq!(words, words_of(number), "a record in pieces");
        found.push(number);
    });
    found
}

#[cfg(not(loom))]
#[test]
fn records_come_in_order_and_those_overwritten_are_counted() {
    let memory = Memory::new(4);
    let (writer, mut reader) = (memory.writer(), Reader::new(4));
    assert_eq!(read(&mut reader, &memory), []);
    (0..3).for_each(|number| writer.push(words_of(number)));
    assert_eq!(read(&mut reader, &memory), [0, 1, 2]);
    (3..13).for_each(|number| writer.push(words_of(number)));
    // The place of record 9 is the next to be written, and may be half overwritten.
    assert_eq!(read(&mut reader, &memory), [10, 11, 12]);
    assert_eq!(reader.lost(), 7);
    assert_eq!(read(&mut reader, &memory), []);
}

#[cfg(not(loom))]
#[test]
fn bytes_of_a_ring_are_those_of_its_parts() {
    assert_eq!(bytes(4), 64 + 4 * 32);
}

/// The number of records that the model's writer writes.
#[cfg(loom)]
const RECORDS: u64 = 3;

/// A ring of two records, a writer of one more, and a concurrent reader.
#[cfg(loom)]
fn beside(write: fn(&Memory, u64)) {
    let mut model = loom::model::Builder::new();
    model.preemption_bound = Some(3);
    model.check(move || {
        let memory = loom::sync::Arc::new(Memory::new(2));
        let writer = {
            let memory = memory.clone();
            loom::thread::spawn(move || (0..RECORDS).for_each(|number| write(&memory, number)))
        };
        let mut reader = Reader::new(2);
        let mut found = read(&mut reader, &memory);
        writer.join().unwrap();
        found.extend(read(&mut reader, &memory));
        assert!(found.is_sorted() && found.windows(2).all(|two| two[0] != two[1]), "{found:?}");
        assert_eq!(found.len() as u64 + reader.lost(), RECORDS, "{found:?}, {} lost", reader.lost());
    });
}

#[cfg(loom)]
fn right(memory: &Memory, number: u64) {
    let writer = memory.writer();
    writer.next.set(number);
    writer.push(words_of(number));
}

/// The writer's steps with something left out.
#[cfg(loom)]
fn wrong(memory: &Memory, number: u64, is_fenced: bool, count: Ordering) {
    if is_fenced {
        fence(Ordering::Release);
    }
    for (place, word) in memory.places[number as usize % 2].iter().zip(words_of(number)) {
        place.store(word, Ordering::Relaxed);
    }
    memory.count.store(number + 1, count);
}

#[cfg(loom)]
#[test]
fn a_reader_finds_whole_records_and_counts_the_others() {
    beside(right);
}

#[cfg(loom)]
#[test]
#[should_panic(expected = "in pieces")]
fn a_writer_without_its_fence_is_found() {
    beside(|memory, number| wrong(memory, number, false, Ordering::Release));
}

#[cfg(loom)]
#[test]
#[should_panic]
fn a_count_without_release_is_found() {
    beside(|memory, number| wrong(memory, number, true, Ordering::Relaxed));
}
