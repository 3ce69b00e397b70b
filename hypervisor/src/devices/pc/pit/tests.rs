use super::*;

/// The time when this many ticks from `start` on are over.
const fn after(start: u64, ticks: u64) -> u64 {
    start + (ticks * 1_000_000_000).div_ceil(HZ)
}

const START: u64 = 1_795_383_836_000_000_000;

/// Counter 2 in this mode from `START` on, with the gate open.
fn started(mode: u8, count: u16) -> Pit {
    let mut pit = Pit::default();
    pit.write(SYSTEM, 1, START);
    pit.write(CONTROL, 0xb0 | mode << 1, START);
    let [low, high] = count.to_le_bytes();
    pit.write(0x42, low, START);
    pit.write(0x42, high, START);
    pit
}

fn count(pit: &mut Pit, now: u64) -> u16 {
    pit.write(CONTROL, 0x80, now);
    u16::from_le_bytes([pit.read(0x42, now), pit.read(0x42, now)])
}

fn output(pit: &mut Pit, now: u64) -> bool {
    pit.read(SYSTEM, now) & SYSTEM_OUTPUT != 0
}

/// The way in which kernels and memory testers use it to measure.
#[test]
fn u26_the_third_counters_output_rises_when_it_is_time() {
    let mut pit = started(0, 11_932);
    for (ticks, left) in [(0, 11_932), (1, 11_931), (11_931, 1)] {
        assert_eq!(count(&mut pit, after(START, ticks)), left);
        assert!(!output(&mut pit, after(START, ticks)), "after {ticks}");
    }
    let end = after(START, 11_932);
    assert!((10_000_000..10_001_000).contains(&(end - START)), "10 ms");
    assert!(!output(&mut pit, end - 1) && output(&mut pit, end));
    assert_eq!(count(&mut pit, after(START, 11_933)), 0xffff, "it goes on, round and round");
    assert!(output(&mut pit, after(START, 1 << 20)), "and stays");
}

#[test]
fn u26_a_closed_gate_holds_the_count() {
    let mut pit = started(0, 1000);
    pit.write(SYSTEM, 0, after(START, 400));
    assert_eq!(count(&mut pit, after(START, 9999)), 600);
    assert!(!output(&mut pit, after(START, 9999)));
    pit.write(SYSTEM, 1, after(START, 10_000));
    assert_eq!(count(&mut pit, after(START, 10_100)), 500);
    assert!(output(&mut pit, after(START, 10_601)));
    // Written while the gate is closed.
    pit.write(SYSTEM, 2, START);
    pit.write(CONTROL, 0xb0, START);
    pit.write(0x42, 10, START);
    pit.write(0x42, 0, START);
    assert_eq!((count(&mut pit, after(START, 100)), pit.read(SYSTEM, START) & 0xf), (10, 2));
}

#[test]
fn u26_outputs_of_all_modes() {
    let outputs = |mode: u8, at: [u64; 6]| {
        let mut pit = started(mode, 4);
        if matches!(mode, 1 | 5) {
            assert!(output(&mut pit, after(START, 100)), "mode {mode} waits for its gate");
            pit.write(SYSTEM, 0, START);
            pit.write(SYSTEM, 1, START);
        }
        at.map(|ticks| output(&mut pit, after(START, ticks)))
    };
    let (low, high) = (false, true);
    assert_eq!(outputs(0, [0, 3, 4, 5, 8, 99]), [low, low, high, high, high, high]);
    assert_eq!(outputs(1, [0, 3, 4, 5, 8, 99]), [low, low, high, high, high, high]);
    assert_eq!(outputs(2, [0, 2, 3, 4, 7, 8]), [high, high, low, high, low, high]);
    assert_eq!(outputs(6, [0, 2, 3, 4, 7, 8]), [high, high, low, high, low, high]);
    assert_eq!(outputs(3, [0, 1, 2, 3, 4, 6]), [high, high, low, low, high, low]);
    assert_eq!(outputs(4, [0, 3, 4, 5, 8, 99]), [high, high, low, high, high, high]);
    assert_eq!(outputs(5, [0, 3, 4, 5, 8, 99]), [high, high, low, high, high, high]);
}

#[test]
fn u26_counts_of_periodic_modes_stay_within_the_period() {
    let mut rate = started(2, 5);
    let counts: Vec<u16> = (0..7).map(|ticks| count(&mut rate, after(START, ticks))).collect();
    assert_eq!(counts, [5, 4, 3, 2, 1, 5, 4]);
    let mut square = started(3, 6);
    let counts: Vec<u16> = (0..7).map(|ticks| count(&mut square, after(START, ticks))).collect();
    assert_eq!(counts, [6, 4, 2, 6, 4, 2, 6]);
    let mut most = started(2, 0);
    assert_eq!(count(&mut most, START), 0, "which stands for 65536");
    assert_eq!(count(&mut most, after(START, 1)), 0xffff);
}

#[test]
fn u26_bytes_are_read_and_written_as_the_control_word_says() {
    let mut pit = started(0, 0x1234);
    assert_eq!((pit.read(0x42, START), pit.read(0x42, START)), (0x34, 0x12), "without a latch");
    pit.write(CONTROL, 0x80, START);
    pit.write(CONTROL, 0x80, after(START, 5));
    let late = after(START, 0x34);
    assert_eq!((pit.read(0x42, late), pit.read(0x42, late)), (0x34, 0x12), "the first latch holds");
    assert_eq!(pit.read(0x42, late), 0, "and is gone when it is read");
    pit.write(CONTROL, 0x90, START);
    pit.write(0x42, 0x12, START);
    assert_eq!((pit.read(0x42, START), pit.read(0x42, START)), (0x12, 0x12), "the low byte alone");
    pit.write(CONTROL, 0xa0, START);
    pit.write(0x42, 0x12, START);
    assert_eq!((pit.read(0x42, START), pit.read(0x42, START)), (0x12, 0x12), "the high byte alone");
    assert_eq!(count(&mut started(0, 0x1200), START), 0x1200);
    assert_eq!(pit.read(CONTROL, START), 0xff);
}

#[test]
fn u26_decimal_counts() {
    let mut pit = Pit::default();
    for (port, value) in [(SYSTEM, 1), (CONTROL, 0xb1), (0x42, 0x00), (0x42, 0x10)] {
        pit.write(port, value, START);
    }
    assert_eq!((count(&mut pit, START), count(&mut pit, after(START, 1))), (0x1000, 0x0999));
    assert_eq!(count(&mut pit, after(START, 1001)), 0x9999);
    assert!(output(&mut pit, after(START, 1001)));
}

#[test]
fn u26_read_back_latches_status_and_count() {
    let mut pit = started(2, 0x1234);
    pit.write(CONTROL, 0xc8, START);
    assert_eq!(pit.read(0x42, START), 0xb4, "high, counting, both bytes, mode 2");
    assert_eq!((pit.read(0x42, START), pit.read(0x42, START)), (0x34, 0x12));
    pit.write(CONTROL, 0xb0, START);
    pit.write(CONTROL, 0xe8, START);
    assert_eq!(pit.read(0x42, START), 0x70, "low, no count yet, both bytes, mode 0");
    // The other counters, from the start: mode 3, all of 65536.
    pit.write(CONTROL, 0xc6, START);
    assert_eq!((pit.read(0x40, START) & 0x7f, pit.read(0x41, START) & 0x7f), (0x36, 0x36));
}

#[test]
fn u26_refresh_changes_all_the_time() {
    let mut pit = Pit::default();
    let seen = |pit: &mut Pit, now| pit.read(SYSTEM, now) & SYSTEM_REFRESH;
    assert_ne!(seen(&mut pit, START), seen(&mut pit, START + REFRESH_NS));
    pit.write(SYSTEM, 0xff, START);
    assert_eq!(pit.read(SYSTEM, START) & 0xcf, 0x0f, "no error is shown");
}

#[test]
fn u26_no_write_and_no_time_is_too_much() {
    for word in 0..=u8::MAX {
        for count in [0, 1, 0xff] {
            for now in [0, START, u64::MAX] {
                let mut pit = Pit::default();
                pit.write(SYSTEM, word, now);
                pit.write(CONTROL, word, now);
                for port in 0x40..=0x43 {
                    pit.write(port, count, now / 2);
                    pit.write(port, count, now / 2);
                }
                for port in (0x40..=0x43).chain([SYSTEM]) {
                    let _ = pit.read(port, now);
                    let _ = pit.read(port, 0);
                }
            }
        }
    }
}
