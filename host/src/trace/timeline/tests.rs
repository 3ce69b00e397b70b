//! Timelines of a few records.

use super::*;
use crate::trace::collect::CpuRecords;

/// A record at a time in microseconds: the clock has 10 ticks for each.
fn record(us: u64, event: Event, vcpu: u16, detail: u32, a: u64, b: u64) -> Record {
    Record { time: 500 + 10 * us, event, vcpu, detail, a, b }
}

fn timeline(cpus: [Vec<Record>; 2]) -> Timeline {
    let cpus = cpus.map(|records| CpuRecords { records, lost: 1 });
    Timeline::new(&Collected { hz: 10_000_000, cpus: cpus.into() })
}

/// vCPU 0 on CPU 0 flushes vCPU 1, which runs on CPU 1, and vCPU 2, which runs there later.
fn one_flush() -> Timeline {
    let hypercall = Counter::ExitHypercall as u32;
    let first = vec![
        record(0, Event::TurnBegins, 0, 0, 0, 0),
        record(1, Event::Enter, 0, 0, 0, 0),
        record(10, Event::Exit, 0, hypercall, 0, 0),
        record(11, Event::FlushAsked, 0, 0, 0b110, 3),
        record(12, Event::Kick, 0, 1, 0, 0),
        record(20, Event::FlushDone, 0, 1, 2 | 1 << 32, 1),
        record(21, Event::Enter, 0, 0, 0, 0),
        record(30, Event::Exit, 0, Counter::ExitWait as u32, 0, 0),
        record(31, Event::IdleBegins, NO_VCPU, 0, 0, 0),
    ];
    let second = vec![
        record(2, Event::TurnBegins, 1, 0, 0, 0),
        record(3, Event::Enter, 1, 0, 0, 0),
        record(15, Event::Exit, 1, Counter::ExitInterrupt as u32, 0, 0),
        record(16, Event::Enter, 1, 0, 0, 0),
        record(17, Event::EntryCancelled, 1, 0, 0, 0),
        record(18, Event::FlushTaken, 1, 0, 3, 0),
        record(19, Event::Enter, 1, 0, 0, 0),
        record(40, Event::Exit, 1, Counter::ExitWait as u32, 0, 0),
        record(41, Event::TurnEnds, 1, 0, 0, 0),
        record(42, Event::TurnBegins, 2, 1, 0, 0),
        record(43, Event::FlushTaken, 2, 1, 0, 0),
        record(44, Event::Enter, 2, 0, 0, 0),
    ];
    timeline([first, second])
}

#[test]
fn every_moment_of_a_cpu_is_in_one_span() {
    let timeline = one_flush();
    for line in &timeline.cpus {
        assert!(line.spans.windows(2).all(|two| two[0].end == two[1].start), "{:?}", line.spans);
        assert!(line.spans.iter().all(|span| span.start < span.end));
    }
    let names: Vec<_> = timeline.cpus[1].spans.iter().map(|span| (span.start, span.doing)).collect();
    let hypervisor = |vcpu, why| Doing::Hypervisor { vcpu: Some(vcpu), why };
    let expected = [
        (2000, hypervisor(1, Why::Scheduling)),
        (3000, Doing::Guest { vcpu: 1 }),
        (15000, hypervisor(1, Why::Exit(Counter::ExitInterrupt))),
        (16000, hypervisor(1, Why::Cancelled)),
        (19000, Doing::Guest { vcpu: 1 }),
        (40000, hypervisor(1, Why::Exit(Counter::ExitWait))),
        (41000, Doing::Hypervisor { vcpu: None, why: Why::Scheduling }),
        (42000, hypervisor(2, Why::Scheduling)),
    ];
    assert_eq!(names, expected);
    assert_eq!(timeline.cpus[0].turns, [(0, 0, 31000)]);
    assert_eq!(timeline.cpus[1].turns, [(1, 2000, 41000)]);
    assert_eq!(timeline.lost(), 2);
}

#[test]
fn a_flush_is_connected_with_its_targets() {
    let timeline = one_flush();
    let [flush] = &timeline.flushes[..] else { panic!("{:?}", timeline.flushes) };
    assert_eq!((flush.cpu, flush.vcpu, flush.start, flush.end), (0, Some(0), 11000, 20000));
    assert_eq!((flush.targets, flush.deferred_count, flush.merged, flush.elements), (2, 1, 0, 3));
    assert_eq!(flush.named, [1, 2]);
    assert_eq!(flush.kicked, [Kicked { cpu: 1, at: 12000, vcpu: Some(1), exit: Some(15000) }]);
    assert_eq!(flush.deferred, [Taken { vcpu: 2, cpu: 1, at: 43000, whole: true, pages: 0 }]);
}

#[test]
fn vcpus_of_higher_banks_are_named() {
    // The guest's first row is 5.
    let ask = |bank: u32, bits| record(1, Event::FlushAsked, 7, 5 + 64 * bank, bits, 0);
    let done = record(2, Event::FlushDone, 7, 0, 0, 0);
    let timeline = timeline([vec![ask(0, 1 << 63), ask(3, 0b101), done], Vec::new()]);
    assert_eq!(timeline.flushes[0].named, [68, 197, 199]);
}

#[test]
fn a_trace_that_begins_or_ends_in_the_middle_is_read() {
    let first = vec![
        record(1, Event::FlushDone, 0, 0, 0, 0),
        record(2, Event::EntryCancelled, 0, 0, 0, 0),
        record(3, Event::FlushAsked, 0, 0, 2, 0),
        record(4, Event::Kick, 0, 9, 0, 0),
    ];
    let timeline = timeline([first, Vec::new()]);
    assert!(timeline.flushes.is_empty() && timeline.cpus[0].spans.is_empty());
}

#[test]
fn an_interrupt_arrives_at_the_receivers_next_entry() {
    let exit = Counter::ExitHypercall as u32;
    let first = vec![
        record(0, Event::TurnBegins, 0, 0, 0, 0),
        record(1, Event::Enter, 0, 0, 0, 0),
        record(10, Event::Exit, 0, exit, 0, 0),
        record(11, Event::Posted, 1, 0xfb, 0, 0),
        record(12, Event::Posted, 2, 0xfb, 0, 0),
        record(13, Event::Posted, 0, 0xf6, 0, 0),
        record(14, Event::Posted, 9, 0xfb, 0, 0),
        record(15, Event::IdleBegins, NO_VCPU, 0, 0, 0),
        record(16, Event::Posted, 1, 0x20, 0, 0),
        record(29, Event::TurnBegins, 0, 0, 0, 0),
        record(30, Event::Posted, 2, 0xfb, 0, 0),
    ];
    let second = vec![
        record(2, Event::Enter, 1, 0, 0, 0),
        record(13, Event::Exit, 1, Counter::ExitInterrupt as u32, 0, 0),
        record(14, Event::Enter, 1, 0, 0, 0),
        record(15, Event::EntryCancelled, 1, 0, 0, 0),
        record(17, Event::Enter, 1, 0, 0, 0),
        record(20, Event::Exit, 1, Counter::ExitWait as u32, 0, 0),
        record(21, Event::Enter, 2, 0, 0, 0),
        record(22, Event::Exit, 2, Counter::ExitWait as u32, 0, 0),
        record(23, Event::IdleBegins, NO_VCPU, 0, 0, 0),
    ];
    let ipi = |to, at, receiver, entry| Ipi { cpu: 0, from: 0, to, at, vector: 0xfb, receiver, entry };
    let expected = [
        ipi(1, 11000, Receiver::Running, Some((1, 17000))),
        ipi(2, 12000, Receiver::Waiting, Some((1, 21000))),
        ipi(9, 14000, Receiver::Waiting, None),
        ipi(2, 30000, Receiver::Halted, None),
    ];
    assert_eq!(timeline([first, second]).ipis, expected, "its own and a device's are left out");
}
