//! Flushes of one address space, and vCPUs that have halted in another: scenarios, and the mutants
//! that fail there.

use super::machine::{ModelState, Stay};
use super::protocol::{Protocol, Real};
use super::scenarios::{first_vcpu, replaced_beside};
use crate::sync::Ordering::{AcqRel, Acquire, Relaxed};
use crate::sync::update;
use crate::{Owner, Space, Target, explored, mutants, word};

/// The address space whose page is replaced, and another one.
const HERE: u64 = 0;
const ELSEWHERE: u64 = 1;

/// A vCPU runs in one address space, halts, runs in the next, and so on. Only a timer of its own
/// CPU wakes it.
fn halting_in<P: Protocol>(machine: &ModelState, spaces: &[u64]) {
    let (mut cpu, mut owner) = first_vcpu(machine);
    for (index, &space) in spaces.iter().enumerate() {
        if index != 0 {
            assert!(P::try_halt(&mut owner, Space::only(spaces[index - 1])), "nobody posts an event");
        }
        cpu.switch_to(space);
        // The tables of the other address space do not name the page.
        let pages: &[usize] = if space == HERE { &[0] } else { &[] };
        cpu.run::<P>(&mut owner, Stay::Briefly, pages);
    }
}

fn flush_here<P: Protocol>(machine: &ModelState) {
    P::flush_in_space(machine, 1, HERE);
}

/// The page is used, then left for another address space, in which the vCPU halts, and used again.
fn leaving<P: Protocol>() {
    let vcpu = |machine: &ModelState| halting_in::<P>(machine, &[HERE, ELSEWHERE, HERE]);
    replaced_beside(ModelState::new(1), vcpu, flush_here::<P>, |_| ());
}

/// It halts elsewhere, and then in the address space itself, where it continues with its cached
/// translations.
fn coming_back<P: Protocol>() {
    let vcpu = |machine: &ModelState| halting_in::<P>(machine, &[ELSEWHERE, HERE, HERE]);
    replaced_beside(ModelState::new(1), vcpu, flush_here::<P>, |_| ());
}

/// It halts elsewhere, and is later out of guest mode without having halted.
fn passing_on<P: Protocol>() {
    let vcpu = |machine: &ModelState| {
        let (mut cpu, mut owner) = first_vcpu(machine);
        cpu.switch_to(ELSEWHERE);
        cpu.run::<P>(&mut owner, Stay::Briefly, &[]);
        assert!(P::try_halt(&mut owner, Space::only(ELSEWHERE)), "nobody posts an event");
        cpu.switch_to(HERE);
        cpu.run::<P>(&mut owner, Stay::Briefly, &[0]);
        // Perhaps preempted; it continues without a switch.
        cpu.run::<P>(&mut owner, Stay::Briefly, &[0]);
    };
    replaced_beside(ModelState::new(1), vcpu, flush_here::<P>, |_| ());
}

/// It is seen halted in the address space, then uses the page once more, and halts elsewhere again.
fn going_on<P: Protocol>() {
    let vcpu = |machine: &ModelState| {
        halting_in::<P>(machine, &[HERE, HERE]);
        let (mut cpu, mut owner) = first_vcpu(machine);
        cpu.switch_to(ELSEWHERE);
        cpu.run::<P>(&mut owner, Stay::Briefly, &[]);
        assert!(P::try_halt(&mut owner, Space::only(ELSEWHERE)), "nobody posts an event");
    };
    replaced_beside(ModelState::new(1), vcpu, flush_here::<P>, |_| ());
}

explored! {
    a22_vcpu_that_halts_again_elsewhere_has_done_all_before: Some(3) => going_on::<Real>;
    a22_vcpu_that_has_halted_elsewhere_walks_the_changed_tables: Some(4) => leaving::<Real>;
    a22_vcpu_that_comes_back_before_it_halts_is_flushed: Some(4) => coming_back::<Real>;
    a22_vcpu_that_has_not_halted_is_flushed: Some(4) => passing_on::<Real>;
}

/// The real look, with the loads of the word and of the space replaced.
fn elsewhere(target: &Target, word: u64, space: u64) -> bool {
    word & (word::HALTED | word::BUSY | word::ABSENT) == word::HALTED && {
        let halted_in = target.space.load(Acquire);
        halted_in != Space::UNKNOWN.0 && halted_in != space
    }
}

/// A flush that spares the target if `is_spared` says so.
fn flush_unless(machine: &ModelState, is_spared: impl FnOnce(&Target) -> bool) {
    if !is_spared(&machine.targets[0]) {
        Real::flush(machine, 1, crate::Scope::All);
    }
}

mutants! {
    /// The look at the word is a load: a vCPU that enters after it may not see the changed tables.
    SparedByLoad fails a22_spared_by_a_load: leaving::<SparedByLoad>, "used after", {
        fn flush_in_space(machine: &ModelState, _count: usize, space: u64) {
            flush_unless(machine, |target| elsewhere(target, target.word.load(Acquire), space));
        }
    }

    /// The address space is trusted although the vCPU has run since and has not halted again.
    SparedAwake fails a22_spared_without_a_halt: passing_on::<SparedAwake>, "used after", {
        fn flush_in_space(machine: &ModelState, _count: usize, space: u64) {
            flush_unless(machine, |target| {
                let old = target.word.fetch_or(0, AcqRel);
                elsewhere(target, old | word::HALTED, space)
            });
        }
    }

    /// The address space is stored after the halt: an initiator finds the previous halt's space.
    SpaceAfterHalt fails a22_space_stored_after_the_halt: coming_back::<SpaceAfterHalt>, "used after", {
        fn try_halt(owner: &mut Owner<'_>, space: Space) -> bool {
            let halt = |word: u64| (word & word::EVENT == 0).then_some(word | word::HALTED);
            let halted = update(&owner.target.word, halt).is_ok();
            owner.target.space.store(space.0, crate::sync::Ordering::Release);
            halted
        }
    }

    /// O2: the address space is of a later halt than the word, and the guest's accesses before that
    /// are not visible.
    SpaceByRelaxedLoad fails a22_space_without_acquire: going_on::<SpaceByRelaxedLoad>, "used after", {
        fn flush_in_space(machine: &ModelState, _count: usize, space: u64) {
            flush_unless(machine, |target| {
                let old = target.word.fetch_or(0, AcqRel);
                let halted_in = target.space.load(Relaxed);
                old & (word::HALTED | word::BUSY) == word::HALTED
                    && halted_in != Space::UNKNOWN.0
                    && halted_in != space
            });
        }
    }
}
