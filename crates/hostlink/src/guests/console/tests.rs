//! A ring on the host, and under loom with all interleavings of its two ends.

use super::*;
use core::convert::Infallible;
use std::vec::Vec;

/// A ring in memory.
struct Memory {
    written: AtomicU64,
    places: Vec<AtomicU8>,
}

impl Memory {
    fn new(size: usize) -> Self {
        Self { written: AtomicU64::new(0), places: (0..size).map(|_| AtomicU8::new(0)).collect() }
    }

    fn writer(&self) -> Writer<'_> {
        Writer::new(&self.written, &self.places)
    }
}

impl Source for Memory {
    type Error = Infallible;

    fn written(&self) -> Result<u64, Infallible> {
        Ok(self.written.load(Ordering::Acquire)) // Pairs with C.
    }

    fn byte(&self, place: u64) -> Result<u8, Infallible> {
        Ok(self.places[place as usize].load(Ordering::Relaxed))
    }
}

/// What can be read now, into a buffer of `most` bytes.
fn read(reader: &mut Reader, memory: &Memory, most: usize) -> (u64, Vec<u8>) {
    let mut buffer = [0; 64];
    let Ok(Taken { lost, bytes }) = reader.read(memory, &mut buffer[..most]);
    (lost, bytes.to_vec())
}

#[cfg(not(loom))]
#[test]
fn bytes_come_in_order_and_those_overwritten_are_counted() {
    let memory = Memory::new(8);
    let (writer, mut reader) = (memory.writer(), Reader::new(8));
    assert_eq!(read(&mut reader, &memory, 64), (0, vec![]));
    writer.write(b"abc");
    assert_eq!(read(&mut reader, &memory, 2), (0, b"ab".to_vec()));
    writer.write(b"defgh");
    assert_eq!(read(&mut reader, &memory, 64), (0, b"cdefgh".to_vec()));
    writer.write(b"0123456789");
    assert_eq!(read(&mut reader, &memory, 64), (3, b"3456789".to_vec()));
    assert_eq!((read(&mut reader, &memory, 64), reader.next()), ((0, vec![]), 18));
}

#[cfg(not(loom))]
#[test]
fn readers_have_positions_of_their_own() {
    let memory = Memory::new(8);
    memory.writer().write(b"abcdef");
    let (mut one, mut other) = (Reader::new(8), Reader::new(8).from(4));
    assert_eq!(read(&mut one, &memory, 3), (0, b"abc".to_vec()));
    assert_eq!(read(&mut other, &memory, 64), (0, b"ef".to_vec()));
    memory.writer().write(b"ghijk");
    assert_eq!(read(&mut one, &memory, 64), (1, b"efghijk".to_vec()));
    assert_eq!(read(&mut other, &memory, 64), (0, b"ghijk".to_vec()));
}

#[cfg(not(loom))]
#[test]
fn a_position_that_no_byte_has_yet_waits_for_it() {
    let memory = Memory::new(8);
    memory.writer().write(b"ab");
    let mut reader = Reader::new(8).from(4);
    assert_eq!((read(&mut reader, &memory, 64), reader.next()), ((0, vec![]), 4));
    memory.writer().write(b"cdef");
    assert_eq!(read(&mut reader, &memory, 64), (0, b"ef".to_vec()));
}

#[cfg(not(loom))]
#[test]
fn a_byte_that_is_overwritten_while_it_is_read_is_lost() {
    /// Another byte comes whenever one is loaded.
    struct Busy(Memory);
    impl Source for Busy {
        type Error = Infallible;
        fn written(&self) -> Result<u64, Infallible> {
            self.0.written()
        }
        fn byte(&self, place: u64) -> Result<u8, Infallible> {
            let byte = self.0.byte(place)?;
            self.0.writer().push(byte + 8);
            Ok(byte)
        }
    }
    let busy = Busy(Memory::new(8));
    busy.0.writer().write(&[0, 1, 2, 3, 4, 5, 6]);
    let mut buffer = [0; 64];
    let Ok(taken) = Reader::new(8).read(&busy, &mut buffer);
    assert_eq!(taken, Taken { lost: 7, bytes: &[] }, "seven came meanwhile");
}

/// The number of bytes that the model's writer writes.
#[cfg(loom)]
const BYTES: u64 = 5;

/// A ring of four bytes, a writer of one more, and a concurrent reader. Byte `n` is `n + 1`.
#[cfg(loom)]
fn beside(write: fn(&Memory, u64)) {
    let mut model = loom::model::Builder::new();
    model.preemption_bound = Some(3);
    model.check(move || {
        let memory = loom::sync::Arc::new(Memory::new(4));
        let writer = {
            let memory = memory.clone();
            loom::thread::spawn(move || (0..BYTES).for_each(|number| write(&memory, number)))
        };
        let mut reader = Reader::new(4);
        let mut next = 0;
        let mut look = || {
            let (lost, bytes) = read(&mut reader, &memory, 64);
            next += lost;
            for byte in bytes {
                assert_eq!(u64::from(byte), next + 1, "another byte in place of this one");
                next += 1;
            }
            assert_eq!(reader.next(), next);
        };
        look();
        writer.join().unwrap();
        look();
        assert_eq!(next, BYTES);
    });
}

#[cfg(loom)]
#[test]
fn a_reader_finds_the_right_bytes_and_counts_the_others() {
    beside(|memory, number| memory.writer().push(number as u8 + 1));
}

/// The writer's steps with something left out.
#[cfg(loom)]
fn wrong(memory: &Memory, number: u64, is_fenced: bool, count: Ordering) {
    if is_fenced {
        fence(Ordering::Release);
    }
    memory.places[number as usize % 4].store(number as u8 + 1, Ordering::Relaxed);
    memory.written.store(number + 1, count);
}

#[cfg(loom)]
#[test]
#[should_panic(expected = "another byte")]
fn a_writer_without_its_fence_is_found() {
    beside(|memory, number| wrong(memory, number, false, Ordering::Release));
}

#[cfg(loom)]
#[test]
#[should_panic(expected = "another byte")]
fn a_count_without_release_is_found() {
    beside(|memory, number| wrong(memory, number, true, Ordering::Relaxed));
}
