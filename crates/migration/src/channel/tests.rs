//! Channels on the host, and their counts under loom with all interleavings.

use super::*;

#[cfg(loom)]
mod model {
    use super::*;
    use loom::cell::UnsafeCell;
    use std::sync::Arc;

    const SIZE: u64 = 2;

    /// Sends three items through two places.
    fn pass(publish: fn(&Counts), take: fn(&Counts)) {
        loom::model(move || {
            let ring = Arc::new((Counts::default(), [0, 1].map(|_| UnsafeCell::new(0_u64))));
            let there = Arc::clone(&ring);
            let writer = loom::thread::spawn(move || {
                let (counts, places) = &*there;
                let mut item = 1;
                while item <= 3 {
                    match counts.room(SIZE) {
                        Ok((put, 1..)) => {
                            places[(put % SIZE) as usize].with_mut(|place| {
                                // SAFETY: the place is free.
                                unsafe { *place = item };
                            });
                            publish(counts);
                            item += 1;
                        }
                        Ok(_) => loom::thread::yield_now(),
                        Err(Broken) => panic!("the reader took what is not there"),
                    }
                }
            });
            let (counts, places) = &*ring;
            let mut next = 1;
            while next <= 3 {
                match counts.filled(SIZE) {
                    Ok((taken, 1..)) => {
                        // SAFETY: the place has been published.
                        let item = places[(taken % SIZE) as usize].with(|place| unsafe { *place });
                        assert_eq!(item, next);
                        take(counts);
                        next += 1;
                    }
                    Ok(_) => loom::thread::yield_now(),
                    Err(Broken) => panic!("the writer put in what has no room"),
                }
            }
            writer.join().expect("ends");
        });
    }

    #[test]
    fn each_item_arrives_once_and_whole() {
        pass(|counts| counts.publish(1), |counts| counts.take(1));
    }

    #[test]
    #[should_panic = "Causality violation"]
    fn items_that_are_published_without_order_are_torn() {
        let publish =
            |counts: &Counts| counts.put.store(counts.put.load(Ordering::Relaxed) + 1, Ordering::Relaxed);
        pass(publish, |counts| counts.take(1));
    }

    #[test]
    #[should_panic = "Causality violation"]
    fn places_that_are_given_back_without_order_are_overwritten() {
        let take =
            |counts: &Counts| counts.taken.store(counts.taken.load(Ordering::Relaxed) + 1, Ordering::Relaxed);
        pass(|counts| counts.publish(1), take);
    }
}

#[cfg(not(loom))]
mod host {
    use super::*;

    const SIZES: Sizes = Sizes { to_tool: 64, to_hypervisor: 16 };

    #[repr(align(4096))]
    struct Memory([u8; 8192]);

    fn channel() -> (End<'static>, End<'static>) {
        let (hypervisor, tool, _) = in_memory();
        (hypervisor, tool)
    }

    /// Both ends of a channel in memory that lives as long as the test, and that memory.
    fn in_memory() -> (End<'static>, End<'static>, *const u8) {
        let memory = Box::leak(Box::new(Memory([0; 8192])));
        let at = memory.0.as_mut_ptr();
        assert!(SIZES.total() as usize <= size_of::<Memory>());
        // SAFETY: leaked, aligned, zero, and used by these two ends only.
        unsafe { (End::of_hypervisor(at, SIZES), End::of_tool(at, SIZES), at) }
    }

    fn put(end: &mut End<'_>, bytes: &[u8]) {
        end.write_all(0, bytes).expect("has room");
        end.publish(bytes.len());
    }

    fn take(end: &mut End<'_>, len: usize) -> Vec<u8> {
        let mut bytes = vec![0; len];
        end.read_all(0, &mut bytes).expect("is there");
        end.take(len);
        bytes
    }

    #[test]
    fn bytes_arrive_in_order_around_the_end() {
        let (mut hypervisor, mut tool) = channel();
        for round in 0..50_u8 {
            let bytes: Vec<u8> = (0..40).map(|at| round.wrapping_mul(40).wrapping_add(at)).collect();
            put(&mut hypervisor, &bytes);
            assert_eq!((hypervisor.room(), tool.filled()), (Ok(24), Ok(40)));
            assert_eq!(take(&mut tool, 40), bytes);
            put(&mut tool, &bytes[..9]);
            assert_eq!(take(&mut hypervisor, 9), bytes[..9]);
        }
    }

    #[test]
    fn both_rings_are_filled_to_the_last_byte_in_pieces_that_are_there() {
        assert_eq!(SIZES.total(), 4096 + 64 + 16);
        let (mut hypervisor, mut tool, at) = in_memory();
        // So that it goes around the end.
        put(&mut hypervisor, &[0; 60]);
        take(&mut tool, 60);
        let bytes: Vec<u8> = (1..=64).collect();
        assert_eq!(hypervisor.write(0, 65, |_| panic!("there is no room")), Err(Broken));
        put(&mut hypervisor, &bytes);
        put(&mut tool, &bytes[..16]);
        assert_eq!((hypervisor.room(), tool.filled()), (Ok(0), Ok(64)));
        assert_eq!((tool.room(), hypervisor.filled()), (Ok(0), Ok(16)));
        // SAFETY: as in `in_memory`; nobody writes now.
        let data = unsafe { core::slice::from_raw_parts(at.add(4096), 64 + 16) };
        assert_eq!(data, [&bytes[4..], &bytes[..4], &bytes[..16]].concat());
        let mut lens = Vec::new();
        tool.read(0, 64, |piece| lens.push(piece.len())).expect("is there");
        tool.read(8, 4, |piece| lens.push(piece.len())).expect("is there");
        assert_eq!(lens, [4, 60, 4]);
        assert_eq!((take(&mut tool, 64), take(&mut hypervisor, 16)), (bytes.clone(), bytes[..16].to_vec()));
    }

    #[test]
    fn m6_counts_that_make_no_sense_break_the_ring() {
        for count in [1, 17, u64::MAX] {
            let (hypervisor, mut tool) = channel();
            // The tool claims to have taken what was never put in.
            tool.take(count as usize);
            assert_eq!(hypervisor.room(), Err(Broken), "{count}");
            // And to have put in more than there is room for.
            tool.publish(count as usize);
            let filled = hypervisor.filled();
            assert_eq!(filled, if count <= 16 { Ok(1) } else { Err(Broken) }, "{count}");
        }
    }

    #[test]
    fn the_clock_is_seen() {
        let (hypervisor, tool) = channel();
        hypervisor.show_clock(7);
        assert_eq!(tool.clock(), 7);
    }
}
