//! Small programs for the machine. Each states what it would catch.

use loom::sync::Arc;
use std::vec::Vec;

use super::machine::{Cpu, ModelState, Stay, range};
use super::protocol::{Protocol, Real};
use crate::interleave::on_a_thread;
use crate::{FlushOutcome, Notify, Owner, Scope, Space, explored};

/// Replaces page 0, for which `flush` flushes, while `vcpu` runs on another thread; checks the page
/// when both have finished. `after` is called between the two.
pub(super) fn replaced_beside(
    machine: ModelState,
    vcpu: impl FnOnce(&ModelState) + Send + 'static,
    flush: impl FnOnce(&ModelState),
    after: impl FnOnce(&ModelState),
) {
    let machine = Arc::new(machine);
    let vcpu = on_a_thread(&machine, move |machine| vcpu(machine));
    let freed = machine.replace(0, || flush(&machine));
    after(&machine);
    vcpu.join().unwrap();
    machine.check(freed);
}

/// The first vCPU, which CPU 0 has taken.
pub(super) fn first_vcpu(machine: &ModelState) -> (Cpu<'_>, Owner<'_>) {
    (Cpu::new(machine, 0), machine.targets[0].owner().expect("free"))
}

/// The first vCPU enters and leaves by itself, twice.
pub(super) fn run_twice<P: Protocol>(machine: &ModelState) {
    let (mut cpu, mut owner) = first_vcpu(machine);
    cpu.run::<P>(&mut owner, Stay::Briefly, &[0]);
    cpu.run::<P>(&mut owner, Stay::Briefly, &[0]);
}

/// Flushes everything on the first target.
pub(super) fn flush_all<P: Protocol>(machine: &ModelState) {
    P::flush(machine, 1, Scope::All);
}

/// A target that enters and leaves by itself while one page is replaced.
pub(super) fn passing<P: Protocol>() {
    let flush = |machine: &ModelState| assert_eq!(P::flush(machine, 1, Scope::All).targets, 1);
    replaced_beside(ModelState::new(1), run_twice::<P>, flush, |_| {});
}

/// A target that leaves only if it is kicked, twice: a lost kick hangs.
pub(super) fn staying<P: Protocol>() {
    kicked_twice::<P>(Stay::UntilKicked);
}

/// As [`staying`], but it leaves by itself the first time, and stays the second.
pub(super) fn returning<P: Protocol>() {
    kicked_twice::<P>(Stay::Briefly);
}

fn kicked_twice<P: Protocol>(first: Stay) {
    let vcpu = move |machine: &ModelState| {
        let (mut cpu, mut owner) = first_vcpu(machine);
        cpu.run::<P>(&mut owner, first, &[0]);
        cpu.run::<P>(&mut owner, Stay::UntilKicked, &[0]);
    };
    let flush = |machine: &ModelState| (0..2).for_each(|_| flush_all::<P>(machine));
    replaced_beside(ModelState::new(1), vcpu, flush, ModelState::finish);
}

/// A page is replaced by range while the target takes the request for another page (O8, O10).
pub(super) fn consecutive<P: Protocol>() {
    replaced_in_turn::<P>(|page, machine| P::flush(machine, 1, Scope::Ranges(&[range(page)])));
}

/// As [`consecutive`], flushing everything.
pub(super) fn consecutive_all<P: Protocol>() {
    replaced_in_turn::<P>(|_page, machine| P::flush(machine, 1, Scope::All));
}

fn replaced_in_turn<P: Protocol>(flush: fn(usize, &ModelState) -> FlushOutcome) {
    let replace = move |machine: &ModelState, page: usize| {
        machine.replace(page, || {
            flush(page, machine);
        })
    };
    let machine = Arc::new(ModelState::new(1));
    let (mut cpu, mut owner) = first_vcpu(&machine);
    cpu.run::<P>(&mut owner, Stay::Briefly, &[0, 1]);
    let first = replace(&machine, 0);
    let initiator = on_a_thread(&machine, move |machine| replace(machine, 1));
    cpu.run::<P>(&mut owner, Stay::Briefly, &[1, 0, 1]);
    drop(owner);
    machine.check(first);
    machine.check(initiator.join().unwrap());
}

/// Requests that do not fit in the mailbox (O9): two pages, replaced one by one, after a list that
/// fills it.
pub(super) fn overflow<P: Protocol>() {
    let machine = Arc::new(ModelState::new(1));
    let vcpu = on_a_thread(&machine, run_twice::<P>);
    P::flush(&machine, 1, Scope::Ranges(&[range(1), range(1)]));
    let freed = machine.replace(0, || {
        P::flush(&machine, 1, Scope::Ranges(&[range(0)]));
    });
    vcpu.join().unwrap();
    machine.check(freed);
}

/// Two initiators that replace a page each, one target between them.
pub(super) fn merging<P: Protocol>(stay: Stay, listed: bool) {
    let machine = Arc::new(ModelState::new(1).under(2));
    let initiators = [0, 1].map(|page| {
        on_a_thread(&machine, move |machine| {
            let freed = machine.replace(page, || {
                let ranges = [range(page)];
                P::flush(machine, 1, if listed { Scope::Ranges(&ranges) } else { Scope::All });
            });
            machine.finish();
            freed
        })
    });
    let (mut cpu, mut owner) = first_vcpu(&machine);
    cpu.run::<P>(&mut owner, stay, &[0, 1]);
    if stay == Stay::Briefly {
        cpu.run::<P>(&mut owner, stay, &[0, 1]);
    }
    drop(owner);
    initiators.into_iter().for_each(|initiator| machine.check(initiator.join().unwrap()));
}

/// Two vCPUs run, and then flush each other and themselves (O13, O14).
pub(super) fn at_each_other<P: Protocol>() {
    let machine = Arc::new(ModelState::new(2));
    let vcpu = |machine: &ModelState, id: usize| {
        let mut owner = machine.targets[id].owner().expect("free");
        let mut cpu = Cpu::new(machine, id);
        cpu.run::<P>(&mut owner, Stay::Briefly, &[0, 1]);
        let freed = machine.replace(id, || {
            let outcome = P::flush(machine, 2, Scope::All);
            assert!(outcome.deferred >= 1, "the initiator waits for itself");
        });
        cpu.run::<P>(&mut owner, Stay::Briefly, &[0, 1]);
        freed
    };
    let other = on_a_thread(&machine, move |machine| vcpu(machine, 1));
    let freed = vcpu(&machine, 0);
    machine.check(other.join().unwrap());
    machine.check(freed);
}

/// A target that halts while two events are posted: woken exactly once, neither event lost.
pub(super) fn halting<P: Protocol>() {
    let machine = Arc::new(ModelState::new(1));
    let posters: Vec<_> =
        (0..2).map(|_| on_a_thread(&machine, move |machine| machine.post_event::<P>(0))).collect();
    let (halted, seen) = {
        let mut owner = machine.targets[0].owner().expect("free");
        let seen = owner.take_events();
        (P::try_halt(&mut owner, Space::UNKNOWN), seen)
    };
    let notes = posters.into_iter().map(|poster| poster.join().unwrap());
    let wakes = notes.filter(|&note| note == Notify::Wake).count();
    let mut owner = machine.targets[0].owner().expect("free");
    let pending = owner.take_events();
    assert!(seen || pending, "event lost");
    assert_eq!(wakes, usize::from(halted && pending), "woken a wrong number of times");
}

/// A flush of a target that halts: it is not woken, and flushes when it enters.
pub(super) fn halted_flush<P: Protocol>() {
    let vcpu = |machine: &ModelState| {
        let (mut cpu, mut owner) = first_vcpu(machine);
        cpu.run::<P>(&mut owner, Stay::Briefly, &[0]);
        assert!(P::try_halt(&mut owner, Space::UNKNOWN), "a flush keeps nobody awake");
        // Woken by a timer of its own CPU.
        cpu.run::<P>(&mut owner, Stay::Briefly, &[0]);
    };
    replaced_beside(ModelState::new(1), vcpu, flush_all::<P>, |_| {});
}

/// An event for a target that leaves guest mode only for an event, and a flush before it.
pub(super) fn event_in_guest<P: Protocol>() {
    let machine = Arc::new(ModelState::new(1));
    let vcpu = on_a_thread(&machine, move |machine| {
        let (mut cpu, mut owner) = first_vcpu(machine);
        while cpu.run::<P>(&mut owner, Stay::UntilKicked, &[]) {}
    });
    P::flush(&machine, 1, Scope::All);
    assert_ne!(machine.post_event::<P>(0), Notify::Wake, "it does not halt");
    vcpu.join().unwrap();
}

/// Software that accesses guest memory for a vCPU that is out of guest mode (H30).
pub(super) fn translating<P: Protocol>() {
    let vcpu = |machine: &ModelState| {
        let (mut cpu, mut owner) = first_vcpu(machine);
        cpu.emulate::<P>(&mut owner, 0);
        cpu.run::<P>(&mut owner, Stay::Briefly, &[0]);
        cpu.emulate::<P>(&mut owner, 0);
    };
    replaced_beside(ModelState::new(1), vcpu, flush_all::<P>, |_| {});
}

explored! {
    o1_initiator_and_target_entering_and_leaving: Some(4) => passing::<Real>;
    o4_kicks_are_not_lost: Some(3) => staying::<Real>;
    o4_kick_of_an_earlier_stay_serves_nobody: Some(3) => returning::<Real>;
    o8_o10_request_during_the_taking_of_another: Some(3) => consecutive::<Real>;
    o8_request_for_everything_during_the_taking_of_another: Some(3) => consecutive_all::<Real>;
    o9_overflow_becomes_flush_all: Some(3) => overflow::<Real>;
    o8_two_initiators_merge_on_one_target: Some(2) => || merging::<Real>(Stay::Briefly, false);
    o8_two_initiators_merge_on_one_target_by_range: Some(2) => || merging::<Real>(Stay::Briefly, true);
    merged_kick_serves_both_initiators: Some(2) => || merging::<Real>(Stay::UntilKicked, false);
    o13_o14_two_initiators_at_each_other: Some(3) => at_each_other::<Real>;
    o4_halting_target_is_woken_exactly_once: None => halting::<Real>;
    o15_halted_target_is_not_waited_for: Some(4) => halted_flush::<Real>;
    event_kicks_a_target_in_guest_mode: Some(3) => event_in_guest::<Real>;
    h30_translation_section_is_waited_for: Some(3) => translating::<Real>;
}
