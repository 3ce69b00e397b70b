//! The interval timer, against the TSC.

use super::prelude::*;

const COUNTER_0: u16 = 0x40;
const COUNTER_2: u16 = 0x42;
const CONTROL: u16 = 0x43;
const SYSTEM: u16 = 0x61;
const HZ: u64 = 1_193_182;
const GATE: u8 = 1;
const OUTPUT: u8 = 1 << 5;
/// Ticks by which two clocks that are read one after the other may differ, both rounded.
const SLACK: u64 = 3;

fn read(port: u16) -> u8 {
    // SAFETY: it only changes which byte is read next, as the test expects.
    unsafe { Port::new(port).read() }
}

fn write(port: u16, value: u8) {
    // SAFETY: only the test uses the timer, and it does not interrupt.
    unsafe { Port::new(port).write(value) };
}

fn ticks(tsc: u64) -> u64 {
    (u128::from(tsc) * u128::from(HZ) / u128::from(clock::ticks(1_000_000))) as u64
}

/// Starts a counter; returns the TSC before and after that.
fn start(port: u16, word: u8, count: u16) -> (u64, u64) {
    let [low, high] = count.to_le_bytes();
    write(CONTROL, word);
    write(port, low);
    let before = clock::now();
    write(port, high);
    (before, clock::now())
}

/// A counter's count, both bytes latched at once; and the TSC before and after that.
fn latched(port: u16, latch: u8) -> (u16, u64, u64) {
    let before = clock::now();
    write(CONTROL, latch);
    let behind = clock::now();
    (u16::from_le_bytes([read(port), read(port)]), before, behind)
}

/// Measurements by the third counter's output and by counts agree with the TSC.
pub(super) fn interval_timer() -> Verdict {
    // 10 ms.
    const COUNT: u16 = 11_932;
    write(SYSTEM, GATE);
    let (begun, running) = start(COUNTER_2, 0xb0, COUNT);
    let mut early = None;
    let mut late = None;
    let rises = clock::wait_until(PATIENCE_MS, || {
        let before = clock::now();
        let is_high = read(SYSTEM) & OUTPUT != 0;
        let behind = clock::now();
        // The maximum and the minimum number of ticks that must have passed by now.
        let (most, least) = (ticks(behind - begun), ticks(before.saturating_sub(running)));
        if is_high && most + SLACK < u64::from(COUNT) {
            early = Some(most);
        }
        if !is_high && least > u64::from(COUNT) + SLACK {
            late = Some(least);
        }
        is_high || late.is_some()
    });
    ensure!(rises, "the output does not rise in {PATIENCE_MS} ms");
    ensure!(early.is_none() && late.is_none(), "{COUNT} ticks end {early:?} early, or {late:?} late");
    for (port, word, latch) in [(COUNTER_0, 0x34, 0), (COUNTER_2, 0xb4, 0x80)] {
        let (begun, running) = start(port, word, 0);
        for _ in 0..100 {
            let (count, before, behind) = latched(port, latch);
            let least = ticks(before.saturating_sub(running)).saturating_sub(SLACK);
            let most = ticks(behind - begun) + SLACK;
            // The counter wraps around: checks whether any number of rounds fits.
            let passed = u64::from(0u16.wrapping_sub(count));
            let past_least = passed.wrapping_sub(least) & 0xffff;
            ensure!(past_least <= most - least, "{port:#x} has counted {passed}, not {least} to {most}");
        }
    }
    // The gate closes, and the count is kept.
    let _ = start(COUNTER_2, 0xb0, 0);
    write(SYSTEM, 0);
    let (held, ..) = latched(COUNTER_2, 0x80);
    clock::wait_until(1, || false);
    let (still, ..) = latched(COUNTER_2, 0x80);
    ensure!(held == still, "with its gate closed the counter goes on from {held} to {still}");
    Ok(())
}
