//! Flushes by broadcast against sections of software: scenarios, and the mutants that fail there.
//!
//! The hardware's part is not modelled: there is no guest, and the closure does nothing. What
//! remains is software that walks by relaxed loads, ordered only by the protocol.

use core::ops::ControlFlow;

use super::machine::ModelState;
use super::protocol::{Protocol, Real};
use super::scenarios::{first_vcpu, replaced_beside};
use crate::sync::Ordering::{AcqRel, Acquire, Relaxed};
use crate::sync::update;
use crate::tlbi::Invalidated;
use crate::{Hardware, Owner, Pending, Scope, Target, Translation, explored, mutants, word};

/// Software that uses the page in consecutive sections while it is replaced.
fn sections<P: Protocol>() {
    let vcpu = |machine: &ModelState| {
        let (mut cpu, mut owner) = first_vcpu(machine);
        cpu.emulate::<P>(&mut owner, 0);
        cpu.emulate::<P>(&mut owner, 0);
    };
    replaced_beside(ModelState::new(1), vcpu, |machine| P::broadcast(machine), |_| ());
}

/// The same with a request by another initiator, whose flush the target takes in between.
fn beside_a_request<P: Protocol>() {
    let vcpu = |machine: &ModelState| {
        let (mut cpu, mut owner) = first_vcpu(machine);
        cpu.emulate::<P>(&mut owner, 0);
        let _outcome = machine.targets[0].request(Scope::All);
        cpu.emulate::<P>(&mut owner, 0);
    };
    replaced_beside(ModelState::new(1), vcpu, |machine| P::broadcast(machine), |_| ());
}

explored! {
    g1_g2_sections_before_are_waited_for_and_later_ones_walk_the_changed_tables:
        Some(4) => sections::<Real>;
    g1_g2_sections_beside_a_request: Some(3) => beside_a_request::<Real>;
}

/// The real broadcast to one target, with the first and the later looks replaced.
fn broadcast_by(
    machine: &ModelState,
    look: impl FnOnce(&Target) -> u64,
    has_ended: impl Fn(&Target, u64) -> bool,
) {
    let target = &machine.targets[0];
    let Invalidated { .. } = Invalidated::assumed();
    let seen = look(target);
    let mut turns = 0;
    while seen & word::TRANSLATING != 0 && !has_ended(target, word::section(seen)) {
        let ControlFlow::Continue(()) = machine.relax(turns) else { return };
        turns += 1;
    }
}

fn has_ended(target: &Target, section: u64) -> bool {
    target.has_ended(crate::Generation(section))
}

fn look(target: &Target) -> u64 {
    target.word.fetch_or(0, AcqRel)
}

mutants! {
    /// O3: the look is a load, which to a section that begins may appear older than the change.
    LookByLoad fails o3_broadcast_looks_by_a_load within 4: sections::<LookByLoad>, "used after", {
        fn broadcast(machine: &ModelState) {
            broadcast_by(machine, |target| target.word.load(Acquire), has_ended);
        }
    }

    /// The look releases nothing: a section that begins after it may walk the old tables.
    LookWithoutRelease fails broadcast_looks_without_release within 4:
    sections::<LookWithoutRelease>, "used after", {
        fn broadcast(machine: &ModelState) {
            broadcast_by(machine, |target| target.word.fetch_or(0, Acquire), has_ended);
        }
    }

    /// No section is waited for.
    WaitForNobody fails g3_broadcast_without_a_wait within 4: sections::<WaitForNobody>, "used after", {
        fn broadcast(machine: &ModelState) {
            broadcast_by(machine, look, |_, _| true);
        }
    }

    /// O2: the end of the section is seen, but not the accesses made in it.
    WaitRelaxed fails o2_broadcast_waits_without_acquire within 4: sections::<WaitRelaxed>, "used after", {
        fn broadcast(machine: &ModelState) {
            broadcast_by(machine, look, |target, section| {
                let word = target.word.load(Relaxed);
                word & word::TRANSLATING == 0 || word::section(word) != section
            });
        }
    }

    /// The section begins without acquiring what the look has released.
    BeginRelaxed fails section_begins_without_acquire within 4: sections::<BeginRelaxed>, "used after", {
        fn begin_translation<'o>(owner: &'o mut Owner<'_>) -> Result<Translation<'o>, Pending> {
            let begin = |word: u64| (word & word::FLUSH == 0).then_some(word::translating(word));
            owner.target.word.fetch_or(0, Relaxed);
            match owner.target.word.fetch_update(Relaxed, Relaxed, begin) {
                Ok(_) => Ok(Translation { target: owner.target }),
                Err(_) => Err(Pending { flush: true, event: false }),
            }
        }
    }

    /// The section is not announced.
    BeginUnseen fails h30_section_that_is_not_announced within 4: sections::<BeginUnseen>, "used after", {
        fn begin_translation<'o>(owner: &'o mut Owner<'_>) -> Result<Translation<'o>, Pending> {
            let begin = |word: u64| {
                (word & word::FLUSH == 0).then_some(word::translating(word) & !word::TRANSLATING)
            };
            match update(&owner.target.word, begin) {
                Ok(_) => Ok(Translation { target: owner.target }),
                Err(_) => Err(Pending { flush: true, event: false }),
            }
        }
    }
}
