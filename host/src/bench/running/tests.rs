use super::*;

const ONE: Shape = Shape::List { targets: 1 };
const ALL: Shape = Shape::Merge { initiators: 8 };

/// Ten calls of these vCPUs.
fn calls(vcpus: &[&[(Counter, u64)]]) -> Calls {
    let row = |counts: &&[(Counter, u64)]| {
        let mut row = [0; Counter::COUNT];
        counts.iter().for_each(|(counter, count)| row[*counter as usize] = *count);
        row
    };
    let counters = Snapshot::of_rows(vcpus.iter().map(row).collect());
    Calls { count: 10, instructions: 20_000.0, counters }
}

fn over(calls: &Calls, shape: Shape) -> Vec<&'static str> {
    let is_met = |&(name, _, value, most): &Metric| Limit::at_most(name, value, most).is_met();
    calls.metrics(shape).into_iter().filter(|metric| !is_met(metric)).map(|metric| metric.0).collect()
}

#[test]
fn list_may_kick_and_stop_its_targets_once_and_nobody_else() {
    let requests = [(Counter::FlushLists, 10), (Counter::FlushBusy, 10)];
    let list = |kicks, exits, bystander| {
        let initiator =
            [requests[0], requests[1], (Counter::FlushKicks, kicks), (Counter::ExitHypercall, 10)];
        calls(&[&initiator, &[(Counter::ExitInterrupt, exits)], &[(Counter::ExitInterrupt, bystander)]])
    };
    assert!(over(&list(10, 10, 0), ONE).is_empty());
    assert_eq!(over(&list(11, 10, 0), ONE), ["kicks"]);
    assert_eq!(over(&list(10, 11, 0), ONE), ["exits of a target"]);
    assert_eq!(over(&list(10, 10, 1), ONE), ["exits of a bystander"]);
    assert!(list(10, 10, 0).check(ONE).is_ok());
    // In two parts, twice as much.
    let parts = [
        (Counter::FlushLists, 10),
        (Counter::FlushContinued, 10),
        (Counter::FlushBusy, 20),
        (Counter::FlushKicks, 20),
    ];
    let parts = calls(&[&parts, &[(Counter::ExitInterrupt, 20)], &[]]);
    assert!(parts.check(ONE).is_ok() && over(&parts, ONE).is_empty());
}

#[test]
fn calls_that_were_not_made_or_met_nobody_are_not_taken() {
    let call = |requests, targets, idle| {
        let counts = [
            (Counter::FlushLists, requests),
            (Counter::FlushBusy, targets - idle),
            (Counter::FlushDeferred, idle),
        ];
        calls(&[&counts]).check(ONE)
    };
    assert!(call(10, 10, 0).is_ok());
    assert!(call(9, 10, 0).is_err());
    assert!(call(10, 9, 0).is_err());
    assert!(call(10, 10, 1).is_err());
    assert!(calls(&[]).check(ALL).is_err());
}

#[test]
fn merging_halves_the_kicks_and_flushes_once_per_generation() {
    let merge = |kicks, flushes| {
        let vcpu = [
            (Counter::FlushKicks, kicks),
            (Counter::FlushTaken, 20),
            (Counter::FlushWhole, flushes),
            (Counter::ExitHypercall, 10),
            (Counter::ExitInterrupt, 10),
        ];
        calls(&[vcpu.as_slice(); 8])
    };
    // Each vCPU has seven targets in ten rounds.
    assert!(over(&merge(35, 20), ALL).is_empty());
    assert_eq!(over(&merge(36, 20), ALL), ["kicks per initiator and target"]);
    assert_eq!(over(&merge(35, 21), ALL), ["flushes per merged generation"]);
}

#[test]
fn numbers_are_per_call() {
    let metrics = calls(&[]).metrics(ONE);
    assert_eq!(metrics[0], ("instructions of the machine", INSTRUCTIONS, 2000.0, NONE));
    assert_eq!((metrics[2].0, metrics[2].2), ("kicks", 0.0));
}
