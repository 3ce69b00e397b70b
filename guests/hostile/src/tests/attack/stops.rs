//! Times in which a processor did not run, by how long they were.

use crate::tests::prelude::*;
use hostile::latency::Latencies;

/// Seconds of a phase, and phases unless the orders name another number.
const SECONDS: u64 = 5;
const PHASES: u64 = 6;
const US: u64 = 1_000_000;
/// The lengths by which they are counted, in ms: those that took longer.
const EDGES_MS: [u64; 6] = [1, 2, 5, 10, 20, 40];

static GAPS: Mutex<Latencies> = Mutex::new(Latencies::new());

/// Reads the clock all the time, and says what was between two readings.
pub(super) fn measure(phases: Option<u64>) {
    let mut gaps = GAPS.lock();
    let (length, ms) = (clock::ticks(SECONDS * US), clock::ticks(US / 1000));
    for _ in 0..phases.unwrap_or(PHASES) {
        gaps.clear();
        let begin = clock::now();
        let mut last = begin;
        while last - begin < length {
            let now = clock::now();
            gaps.add(now - last);
            last = now;
        }
        let longer = |edge| -> u32 {
            gaps.counts().filter(|(ticks, _)| *ticks > edge * ms).map(|(_, count)| count).sum()
        };
        let longest = gaps.counts().last().map_or(0, |(ticks, _)| ticks);
        report::say(format_args!(
            "stops in {SECONDS} s, of more than {EDGES_MS:?} ms: {:?}; the longest one: {} us",
            EDGES_MS.map(longer),
            longest * 1000 / ms
        ));
    }
}
