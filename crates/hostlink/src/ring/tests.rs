//! Rings on the host, and under loom with all interleavings of their two ends.

use super::*;
use core::convert::Infallible;

/// A place with items that tell their number, and whether they are whole.
trait Tested: Place<Item: PartialEq + core::fmt::Debug> + Sync + Sized + 'static {
    fn empty() -> Self;
    fn item(number: u64) -> Self::Item;
    fn load(&self) -> Self::Item;
}

impl Tested for AtomicU8 {
    fn empty() -> Self {
        Self::new(0)
    }

    fn item(number: u64) -> u8 {
        number as u8 + 1
    }

    fn load(&self) -> u8 {
        self.load(Ordering::Relaxed)
    }
}

impl Tested for [AtomicU64; 4] {
    fn empty() -> Self {
        [(); 4].map(|()| AtomicU64::new(0))
    }

    fn item(number: u64) -> [u64; 4] {
        [0, 1, 2, 3].map(|word| 10 * (number + 1) + word)
    }

    fn load(&self) -> [u64; 4] {
        [0, 1, 2, 3].map(|word| self[word].load(Ordering::Relaxed))
    }
}

/// A ring in memory.
struct Memory<P> {
    count: AtomicU64,
    places: Vec<P>,
}

impl<P: Tested> Memory<P> {
    fn new(size: usize) -> Self {
        Self { count: AtomicU64::new(0), places: (0..size).map(|_| P::empty()).collect() }
    }

    fn writer(&self) -> Writer<'_, P> {
        Writer::new(&self.count, &self.places)
    }
}

impl<P: Tested> Source for Memory<P> {
    type Item = P::Item;
    type Error = Infallible;

    fn count(&self) -> Result<u64, Infallible> {
        Ok(self.count.load(Ordering::Acquire)) // Pairs with C.
    }

    fn load(&self, place: u64) -> Result<P::Item, Infallible> {
        Ok(self.places[place as usize].load())
    }
}

/// What can be read now, into a buffer for `most` items.
fn read<P: Tested>(reader: &mut Reader, memory: &Memory<P>, most: usize) -> (u64, Vec<P::Item>) {
    let mut buffer = [P::Item::default(); 64];
    let Ok(Taken { lost, items }) = reader.read(memory, &mut buffer[..most]);
    (lost, items.to_vec())
}

#[cfg(not(loom))]
mod host {
    use super::*;

    fn write(memory: &Memory<AtomicU8>, bytes: &[u8]) {
        bytes.iter().for_each(|byte| memory.writer().push(*byte));
    }

    #[test]
    fn bytes_come_in_order_and_those_overwritten_are_counted() {
        let memory = Memory::new(8);
        let mut reader = Reader::new(8);
        assert_eq!(read(&mut reader, &memory, 64), (0, vec![]));
        write(&memory, b"abc");
        assert_eq!(read(&mut reader, &memory, 2), (0, b"ab".to_vec()));
        write(&memory, b"defgh");
        assert_eq!(read(&mut reader, &memory, 64), (0, b"cdefgh".to_vec()));
        write(&memory, b"0123456789");
        assert_eq!(read(&mut reader, &memory, 64), (3, b"3456789".to_vec()));
        assert_eq!((read(&mut reader, &memory, 64), reader.next), ((0, vec![]), 18));
    }

    #[test]
    fn records_come_in_order_and_those_overwritten_are_counted() {
        type Words = [AtomicU64; 4];
        let memory = Memory::<Words>::new(4);
        let mut reader = Reader::new(4);
        let mut read = || {
            let mut found = Vec::new();
            let Ok(lost) = reader.read_each(&memory, |words| found.push(words));
            (lost, found)
        };
        let write = |numbers: core::ops::Range<u64>| {
            numbers.for_each(|number| memory.writer().push(Words::item(number)));
        };
        assert_eq!(read(), (0, vec![]));
        write(0..3);
        assert_eq!(read(), (0, [0, 1, 2].map(Words::item).to_vec()));
        write(3..13);
        // The place of record 9 is the next to be written, and may be half overwritten.
        assert_eq!(read(), (7, [10, 11, 12].map(Words::item).to_vec()));
        assert_eq!(read(), (0, vec![]));
    }

    #[test]
    fn readers_have_positions_of_their_own() {
        let memory = Memory::new(8);
        write(&memory, b"abcdef");
        let (mut one, mut other) = (Reader::new(8), Reader { next: 4, ..Reader::new(8) });
        assert_eq!(read(&mut one, &memory, 3), (0, b"abc".to_vec()));
        assert_eq!(read(&mut other, &memory, 64), (0, b"ef".to_vec()));
        write(&memory, b"ghijk");
        assert_eq!(read(&mut one, &memory, 64), (1, b"efghijk".to_vec()));
        assert_eq!(read(&mut other, &memory, 64), (0, b"ghijk".to_vec()));
    }

    #[test]
    fn a_position_that_no_byte_has_yet_waits_for_it() {
        let memory = Memory::new(8);
        write(&memory, b"ab");
        let mut reader = Reader { next: 4, ..Reader::new(8) };
        assert_eq!((read(&mut reader, &memory, 64), reader.next), ((0, vec![]), 4));
        write(&memory, b"cdef");
        assert_eq!(read(&mut reader, &memory, 64), (0, b"ef".to_vec()));
    }

    #[test]
    fn a_byte_that_is_overwritten_while_it_is_read_is_lost() {
        /// Another byte comes whenever one is loaded.
        struct Busy(Memory<AtomicU8>);
        impl Source for Busy {
            type Item = u8;
            type Error = Infallible;
            fn count(&self) -> Result<u64, Infallible> {
                self.0.count()
            }
            fn load(&self, place: u64) -> Result<u8, Infallible> {
                let byte = Source::load(&self.0, place)?;
                self.0.writer().push(byte + 8);
                Ok(byte)
            }
        }
        let busy = Busy(Memory::new(8));
        write(&busy.0, &[0, 1, 2, 3, 4, 5, 6]);
        let mut buffer = [0; 64];
        let Ok(taken) = Reader::new(8).read(&busy, &mut buffer);
        assert_eq!(taken, Taken { lost: 7, items: &[] }, "seven came meanwhile");
    }
}

#[cfg(loom)]
mod model {
    use super::*;

    /// A ring of `size` places, a writer of one item more, and a concurrent reader.
    fn beside<P: Tested + Send>(size: usize, write: fn(&Memory<P>, u64)) {
        let mut model = loom::model::Builder::new();
        model.preemption_bound = Some(3);
        model.check(move || {
            let memory = loom::sync::Arc::new(Memory::new(size));
            let count = size as u64 + 1;
            let writer = {
                let memory = memory.clone();
                loom::thread::spawn(move || (0..count).for_each(|number| write(&memory, number)))
            };
            let mut reader = Reader::new(size as u64);
            let mut next = 0;
            let mut look = || {
                let (lost, items) = read(&mut reader, &memory, 64);
                next += lost;
                for item in items {
                    assert_eq!(item, P::item(next), "another item, or pieces, in place of this one");
                    next += 1;
                }
                assert_eq!(reader.next, next);
            };
            look();
            writer.join().unwrap();
            look();
            assert_eq!(next, count);
        });
    }

    fn right<P: Tested>(memory: &Memory<P>, number: u64) {
        memory.writer().push(P::item(number));
    }

    /// The writer's steps with something left out.
    fn wrong<P: Tested>(memory: &Memory<P>, number: u64, is_fenced: bool, count: Ordering) {
        if is_fenced {
            fence(Ordering::Release);
        }
        memory.places[number as usize % memory.places.len()].store(P::item(number));
        memory.count.store(number + 1, count);
    }

    fn unfenced<P: Tested>(memory: &Memory<P>, number: u64) {
        wrong(memory, number, false, Ordering::Release);
    }

    fn unreleased<P: Tested>(memory: &Memory<P>, number: u64) {
        wrong(memory, number, true, Ordering::Relaxed);
    }

    #[test]
    fn a_reader_finds_the_right_bytes_and_counts_the_others() {
        beside::<AtomicU8>(4, right);
    }

    #[test]
    fn a_reader_finds_whole_records_and_counts_the_others() {
        beside::<[AtomicU64; 4]>(2, right);
    }

    #[test]
    #[should_panic(expected = "another item")]
    fn a_writer_of_bytes_without_its_fence_is_found() {
        beside::<AtomicU8>(4, unfenced);
    }

    #[test]
    #[should_panic(expected = "or pieces")]
    fn a_writer_of_records_without_its_fence_is_found() {
        beside::<[AtomicU64; 4]>(2, unfenced);
    }

    #[test]
    #[should_panic(expected = "another item")]
    fn a_count_of_bytes_without_release_is_found() {
        beside::<AtomicU8>(4, unreleased);
    }

    #[test]
    #[should_panic(expected = "another item")]
    fn a_count_of_records_without_release_is_found() {
        beside::<[AtomicU64; 4]>(2, unreleased);
    }
}
