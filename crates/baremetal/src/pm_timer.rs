//! Rates of other counters, by ACPI's power management timer.

/// Its frequency (ACPI 6.5, section 4.8.2.4), and the bits that every such timer has.
const HZ: u64 = 3_579_545;
const BITS: u32 = 0xff_ffff;
/// Length of a measurement: 20 ms.
const TICKS: u32 = (HZ / 50) as u32;
/// Readings of which the closest counts.
const READINGS: usize = 32;
/// Reads of the timer before it is declared dead.
const TRIES: u32 = 1 << 24;

/// What `N` counters, which count up, have counted in some time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Measured<const N: usize> {
    /// Ticks of the timer in that time.
    elapsed: u32,
    /// What each of the others has counted.
    pub passed: [u64; N],
}

impl<const N: usize> Measured<N> {
    /// Counts per second of each counter.
    pub fn hz(&self) -> [u64; N] {
        self.passed.map(|passed| (u128::from(passed) * u128::from(HZ) / u128::from(self.elapsed)) as u64)
    }
}

/// What the counters and the timer read at one time.
#[derive(Clone, Copy)]
struct Reading<const N: usize> {
    timer: u32,
    counters: [u64; N],
}

/// Measures counters, which `read_counters` reads; `read_timer` reads the timer's port. `None` if
/// the timer or one of the counters does not count, or the timer has come around.
pub fn measure<const N: usize>(
    mut read_timer: impl FnMut() -> u32,
    mut read_counters: impl FnMut() -> [u64; N],
) -> Option<Measured<N>> {
    let start = closest(&mut read_timer, &mut read_counters)?;
    let elapsed_at = |timer: u32| timer.wrapping_sub(start.timer) & BITS;
    (0..TRIES).find(|_| elapsed_at(read_timer()) >= TICKS)?;
    let end = closest(&mut read_timer, &mut read_counters)?;
    let mut passed = end.counters;
    passed.iter_mut().zip(start.counters).for_each(|(passed, start)| *passed = passed.wrapping_sub(start));
    let elapsed = elapsed_at(end.timer);
    // Less than that: it has come around meanwhile.
    let is_measured = elapsed >= TICKS && passed.iter().all(|&passed| passed != 0);
    is_measured.then_some(Measured { elapsed, passed })
}

/// The closest of several readings, by the first counter: where the processor is a program, that
/// may stand still between any two.
fn closest<const N: usize>(
    read_timer: &mut impl FnMut() -> u32,
    read_counters: &mut impl FnMut() -> [u64; N],
) -> Option<Reading<N>> {
    let readings = (0..READINGS).map(|_| {
        let (counters, timer, after) = (read_counters(), read_timer(), read_counters());
        let within = after.first().zip(counters.first()).map(|(after, before)| after.wrapping_sub(*before));
        (within, Reading { timer, counters })
    });
    readings.min_by_key(|(within, _)| *within).map(|(_, reading)| reading)
}

#[cfg(test)]
mod tests {
    use super::*;
    use core::cell::Cell;

    /// Nanoseconds per read of a counter, and of the timer.
    const READ_NS: u64 = 100;

    /// Measures counters of these rates; before the n-th read of the timer the processor stands
    /// still for `pause(n)` nanoseconds. The timer begins shortly before its end.
    fn measured(timer_hz: u64, hz: [u64; 2], pause: impl Fn(u64) -> u64) -> Option<Measured<2>> {
        let (now, reads) = (Cell::new(0_u64), Cell::new(0));
        let counted = |hz: u64| (u128::from(now.get()) * u128::from(hz) / 1_000_000_000) as u64;
        let timer = || {
            reads.set(reads.get() + 1);
            now.set(now.get() + READ_NS + pause(reads.get()));
            // Of its 32 bits the upper 8 are not everywhere there.
            0x00ff_fff0_u32.wrapping_add(counted(timer_hz) as u32) & BITS | (reads.get() as u32) << 24
        };
        let counters = || {
            now.set(now.get() + READ_NS);
            hz.map(counted).map(|count| (u64::MAX - 5).wrapping_add(count))
        };
        measure(timer, counters)
    }

    #[test]
    fn rates_are_right_to_a_thousandth_though_the_processor_stands_still_at_times() {
        let rates = [2_419_200_000, 62_500_000];
        for every in [u64::MAX, 1000, 33, 2] {
            let pause = |read| if read % every == 0 { 300_000 } else { 0 };
            let found = measured(HZ, rates, pause).expect("all count");
            for (hz, found) in rates.into_iter().zip(found.hz()) {
                assert!(found.abs_diff(hz) < hz / 1000, "{every}: {found}");
            }
            assert!(found.elapsed >= TICKS && found.elapsed < 2 * TICKS, "20 ms: {}", found.elapsed);
        }
    }

    #[test]
    fn what_does_not_count_is_no_measurement() {
        assert_eq!(measured(HZ, [0, 1_000_000], |_| 0), None);
        assert_eq!(measured(HZ, [1_000_000, 0], |_| 0), None);
        // Between the 20 ms and the last readings it comes around, which takes 4.687 s.
        let all = Cell::new(0);
        let count = |read| {
            all.set(read);
            0
        };
        assert!(measured(HZ, [1_000_000; 2], count).is_some());
        let behind = all.get() - READINGS as u64 + 1;
        let pause = |read| if read == behind { 4_675_000_000 } else { 0 };
        assert_eq!(measured(HZ, [1_000_000; 2], pause), None);
        let reads = Cell::new(0_u32);
        let timer = || {
            reads.set(reads.get() + 1);
            7
        };
        assert_eq!(measure(timer, || [reads.get().into()]), None, "the timer stands still");
        assert!(reads.get() <= TRIES + READINGS as u32);
    }
}
