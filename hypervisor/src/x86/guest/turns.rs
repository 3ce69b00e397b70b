//! The switch `flush_turns`: with each reset the guest is told the other way to flush, by IPI
//! first. Its workload says on the second serial port, by lines of JSON, when it begins and ends.
//! What was counted between is compared when it has run [`TURN_RUNS`] times each way: the run of
//! median length of each.

use arrayvec::{ArrayString, ArrayVec};
use core::fmt;
use core::sync::atomic::{AtomicBool, Ordering};
use hostlink::config::TURN_RUNS;
use hostlink::counters::Counter;
use spin::Mutex;
use tlfs::cpuid::{LEAF_HINTS, hint};

use super::Vm;
use crate::x86::cpuid;
use crate::x86::processor::X86;

/// The longest line of a workload that is understood.
const LINE_MAX: usize = 512;

/// The figures of the last line: name, key, and whether it is a time.
const FIGURES: [(&str, &str, bool); 5] = [
    ("rounds of all threads", "rounds_total", false),
    ("real", "real", true),
    ("user", "user", true),
    ("sys", "sys", true),
    ("guest's TLB IPIs", "tlb_ipis", false),
];

/// The counters that are always shown, behind those of exits that have occurred.
const TAIL: [(&str, Counter); 8] = [
    ("IPIs sent by the guest", Counter::IrqIpi),
    ("flushes deferred to entry", Counter::FlushDeferred),
    ("flushes merged", Counter::FlushMerged),
    ("kicks for flushes", Counter::FlushKicks),
    ("kicks for events", Counter::KickEvent),
    ("ranges flushed", Counter::FlushRanges),
    ("whole-tag flushes", Counter::FlushWhole),
    ("vCPUs preempted", Counter::SchedPreempted),
];

/// Each counter, of all vCPUs together.
pub type Counts = [u64; Counter::COUNT];

/// What one run has come to: the figures, and the counters in the meantime.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Side {
    figures: [u64; FIGURES.len()],
    counts: Counts,
}

#[derive(Debug, Default)]
struct Heard {
    line: ArrayVec<u8, LINE_MAX>,
    begin: Option<Counts>,
    sides: [ArrayVec<Side, TURN_RUNS>; 2],
}

/// The way to flush that is next, and what was heard of both.
#[derive(Debug, Default)]
pub struct Turns {
    by_hypercall: AtomicBool,
    heard: Mutex<Heard>,
}

impl Turns {
    /// The guest resets.
    pub fn next(&self) {
        self.by_hypercall.fetch_xor(true, Ordering::Relaxed);
        self.heard.lock().begin = None;
    }

    /// What a leaf of CPUID recommends in this turn, in EAX.
    pub fn hints(&self, leaf: u32) -> u32 {
        let is_said = leaf == LEAF_HINTS && self.by_hypercall.load(Ordering::Relaxed);
        if is_said { hint::REMOTE_FLUSH } else { 0 }
    }

    /// The guest has sent a byte. Returns both sides when the last run is over.
    fn hear(&self, byte: u8, counts: impl FnOnce() -> Counts) -> Option<[Side; 2]> {
        let mut heard = self.heard.lock();
        if byte != b'\n' {
            // The end of an overlong line is dropped.
            let _ = heard.line.try_push(byte);
            return None;
        }
        let line = core::mem::take(&mut heard.line);
        let line = core::str::from_utf8(&line).ok()?;
        match field(line, "event")? {
            "\"begin\"" => heard.begin = Some(counts()),
            "\"end\"" => {
                let (begin, end) = (heard.begin.take()?, counts());
                let figure = |(_, key, is_time)| field(line, key).map_or(0, |text| number(text, is_time));
                let mut grown = begin.into_iter().zip(end).map(|(before, now)| now.wrapping_sub(before));
                let side = Side {
                    figures: FIGURES.map(figure),
                    counts: core::array::from_fn(|_| grown.next().unwrap_or(0)),
                };
                let way = usize::from(self.by_hypercall.load(Ordering::Relaxed));
                heard.sides.get_mut(way)?.try_push(side).ok()?;
                if heard.sides.iter().all(|runs| runs.is_full()) {
                    let [ipi, hypercall] = &mut heard.sides;
                    return Some([median(ipi)?, median(hypercall)?]);
                }
            }
            _ => {}
        }
        None
    }
}

/// The run of median length.
fn median(runs: &mut [Side]) -> Option<Side> {
    runs.sort_unstable_by_key(|Side { figures: [_, real, ..], .. }| *real);
    runs.get(runs.len() / 2).copied()
}

/// The value of a key, as it is written in a line of JSON without lists and objects.
fn field<'l>(line: &'l str, key: &str) -> Option<&'l str> {
    let (_, rest) = line.split_once(key)?;
    let (value, _) = rest.strip_prefix("\":")?.split_once([',', '}'])?;
    Some(value)
}

/// A number, or microseconds of a time in seconds.
fn number(text: &str, is_time: bool) -> u64 {
    // With an exponent it is less than is shown.
    if text.contains('e') {
        return 0;
    }
    let (whole, part) = text.split_once('.').unwrap_or((text, ""));
    let whole: u64 = whole.parse().unwrap_or(0);
    if !is_time {
        return whole;
    }
    let digits = part.bytes().chain(core::iter::repeat(b'0')).take(6);
    digits
        .fold(whole, |sum, digit| sum.saturating_mul(10).saturating_add(u64::from(digit.wrapping_sub(b'0'))))
}

type Cell = ArrayString<26>;

/// A count; or microseconds as seconds, or a ratio, in hundredths.
fn cell(number: u64, unit: Option<&str>) -> Cell {
    let mut text = Cell::new();
    let _ = match unit {
        None => fmt::write(&mut text, format_args!("{number}")),
        Some(unit) => fmt::write(&mut text, format_args!("{}.{:02}{unit}", number / 100, number % 100)),
    };
    text
}

/// Writes the table, line by line.
fn table([ipi, hypercall]: &[Side; 2], mut line: impl FnMut(fmt::Arguments<'_>)) {
    line(format_args!("{:<28}{:>12}{:>12}{:>8}", "", "ipi", "hypercall", "ratio"));
    let mut row = |name: &str, [from, to]: [u64; 2], is_time: bool| {
        let [ipi, hypercall] =
            [from, to].map(|it| if is_time { cell(it / 10_000, Some(" s")) } else { cell(it, None) });
        let ratio = to.saturating_mul(100).saturating_add(from / 2).checked_div(from);
        let ratio = ratio.map(|ratio| cell(ratio, Some("")));
        let ratio = ratio.as_deref().unwrap_or("-");
        line(format_args!("{name:<28}{ipi:>12}{hypercall:>12}{ratio:>8}"));
    };
    let figures = ipi.figures.into_iter().zip(hypercall.figures);
    FIGURES
        .into_iter()
        .zip(figures)
        .for_each(|((name, _, is_time), figures)| row(name, figures.into(), is_time));
    let of =
        |wanted: Counter| [ipi, hypercall].map(|side| side.counts.get(wanted as usize).map_or(0, |it| *it));
    let exits = || Counter::ALL.into_iter().filter(|counter| counter.name().starts_with("exit."));
    let all = exits().map(of).fold([0u64; 2], |[a, b], [c, d]| [a.saturating_add(c), b.saturating_add(d)]);
    row("exits", all, false);
    for counter in exits().filter(|counter| of(*counter) != [0, 0]) {
        row(counter.name(), of(counter), false);
    }
    TAIL.into_iter().for_each(|(name, counter)| row(name, of(counter), false));
}

impl<A: X86> Vm<A> {
    /// The guest has sent a byte to its second serial port.
    #[cold]
    pub fn hear(&self, turns: &Turns, byte: u8) {
        let rows = || self.vcpus.iter().map(|vcpu| self.host.counters_of(vcpu.row));
        let sum = |index: usize| {
            let counters = rows().filter_map(|row| row.get(index));
            counters.fold(0u64, |sum, counter| sum.wrapping_add(counter.load(Ordering::Relaxed)))
        };
        if let Some(sides) = turns.hear(byte, || core::array::from_fn(sum)) {
            let (vcpus, cpus) = (self.vcpu_count(), self.cpus().count());
            log::info!("{}: {vcpus} vCPUs on {cpus} CPUs", cpuid::brand::<A>());
            table(&sides, |line| log::info!("{line}"));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::string::{String, ToString};
    use std::vec::Vec;

    const BEGIN: &str = r#"{"chunks":10,"event":"begin","workload":"thrash"}"#;
    const END: &str = r#"{"call_ipis":1,"event":"end","real":2.2634,"rounds_total":1200,"sys":3.5e-7,"tlb_ipis":5743,"user":0.1}"#;

    fn counts(counts: &[(Counter, u64)]) -> Counts {
        let mut all = [7; Counter::COUNT];
        counts.iter().for_each(|(counter, count)| all[*counter as usize] = count.wrapping_add(7));
        all
    }

    fn say(turns: &Turns, line: &str, now: &[(Counter, u64)]) -> Option<[Side; 2]> {
        line.bytes().chain(*b"\r\n").filter_map(|byte| turns.hear(byte, || counts(now))).next()
    }

    #[test]
    fn both_ways_are_compared_once_both_are_over() {
        let turns = Turns::default();
        assert_eq!(turns.hints(LEAF_HINTS), 0);
        assert_eq!(say(&turns, END, &[]), None, "nothing has begun");
        let run = |real: &str| {
            say(&turns, BEGIN, &[]);
            say(&turns, &END.replace("2.2634", real), &[(Counter::ExitIo, 99)])
        };
        assert_eq!((run("9.1"), run("1.5")), (None, None));
        say(&turns, BEGIN, &[]);
        say(&turns, r#"{"done":1,"event":"progress","total":1200}"#, &[]);
        assert_eq!(say(&turns, END, &[(Counter::ExitIo, 40_000), (Counter::ExitWait, 592)]), None);
        say(&turns, BEGIN, &[]);
        turns.next();
        assert_eq!((turns.hints(LEAF_HINTS), turns.hints(LEAF_HINTS + 1)), (hint::REMOTE_FLUSH, 0));
        assert_eq!(say(&turns, END, &[]), None, "that was before the reset");
        assert_eq!((run("0.9"), run("1.1")), (None, None));
        say(&turns, BEGIN, &[(Counter::ExitIo, 1)]);
        let end = END.replace("2.2634", "1.04").replace("5743", "0");
        let sides = say(&turns, &end, &[(Counter::ExitIo, 16_556), (Counter::FlushDeferred, 1_008_553)]);
        let mut lines = Vec::new();
        table(&sides.expect("both are over"), |line| lines.push(line.to_string()));
        let words = |line: &String| line.split_whitespace().collect::<Vec<_>>().join(" ");
        let lines: Vec<_> = lines.iter().map(words).collect();
        let expected = [
            "ipi hypercall ratio",
            "rounds of all threads 1200 1200 1.00",
            "real 2.26 s 1.04 s 0.46",
            "user 0.10 s 0.10 s 1.00",
            "sys 0.00 s 0.00 s -",
            "guest's TLB IPIs 5743 0 0.00",
            "exits 40592 16555 0.41",
            "exit.wait 592 0 0.00",
            "exit.io 40000 16555 0.41",
            "IPIs sent by the guest 0 0 -",
            "flushes deferred to entry 0 1008553 -",
        ];
        assert_eq!(lines[..expected.len()], expected);
        assert_eq!(lines.len(), expected.len() + 6);
    }

    #[test]
    fn whatever_a_guest_says_is_survived() {
        let turns = Turns::default();
        let long = [BEGIN, &"x".repeat(2 * LINE_MAX)].concat();
        for line in [&*long, "", "\u{e9}", r#"{"event":"end"#, r#"{"event":"end","real":-1.x}"#, BEGIN] {
            assert_eq!(say(&turns, line, &[]), None, "{line}");
        }
        let odd =
            r#"{"event":"end","real":99999999999999999999.5,"user":18446744073709551615.9,"tlb_ipis":"}"#;
        let run = || {
            say(&turns, BEGIN, &[]);
            say(&turns, odd, &[(Counter::ExitIo, u64::MAX)])
        };
        assert!((0..5).all(|_| run().is_none()));
        turns.next();
        let sides = (0..5).find_map(|_| run()).expect("both have ended");
        table(&sides, |line| assert!(!line.to_string().is_empty()));
    }
}
