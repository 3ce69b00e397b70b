//! Changes of the nested table, on processors that drop what they keep of it alone only by a flush
//! of its own: scenarios, and the mutants that fail there.

use super::machine::{Cpu, ModelState, Stay};
use super::moving::run_and_remove;
use super::mutants::flush_by;
use super::protocol::{Protocol, Real};
use super::scenarios::{first_vcpu, run_twice};
use crate::interleave::on_a_thread;
use crate::sync::Ordering::{AcqRel, Acquire, Relaxed};
use crate::sync::update;
use crate::target::Requested;
use crate::{FlushWork, Owner, Scope, Target, explored, mutants, word};
use loom::sync::Arc;

/// Replaces the frame behind the nested table's entry while `vcpu` runs on another thread. The
/// guest flushes its own translations before, and those of the nested table are flushed after it.
fn replaced_beside<P: Protocol>(vcpu: fn(&ModelState)) {
    let machine = Arc::new(ModelState::new(2).with_nested_table());
    let vcpu = on_a_thread(&machine, move |machine| vcpu(machine));
    P::flush(&machine, 1, Scope::All);
    let freed = machine.replace_nested(|| {
        P::set_stamp(&machine);
        P::flush_nested(&machine);
    });
    machine.finish();
    vcpu.join().unwrap();
    machine.check(freed);
}

/// A target that enters and leaves by itself.
fn passing<P: Protocol>() {
    replaced_beside::<P>(run_twice::<P>);
}

/// A target that leaves only if it is kicked.
fn staying<P: Protocol>() {
    replaced_beside::<P>(|machine| {
        let (mut cpu, mut owner) = first_vcpu(machine);
        cpu.run::<P>(&mut owner, Stay::UntilKicked, &[0]);
    });
}

/// A vCPU that is removed with its record, and another that takes its place, on the same CPU.
fn replaced<P: Protocol>() {
    replaced_beside::<P>(|machine| {
        let mut cpu = Cpu::new(machine, 0);
        run_and_remove::<P>(&mut cpu, machine);
        cpu.discard_record();
        let mut owner = P::add(&machine.targets[0]).expect("absent");
        cpu.run::<P>(&mut owner, Stay::Briefly, &[0]);
    });
}

/// A vCPU that comes back to a CPU with what that has kept, having done its flushes elsewhere.
fn returning<P: Protocol>() {
    replaced_beside::<P>(|machine| {
        let [mut here, mut there] = [0, 1].map(|cpu| Cpu::new(machine, cpu));
        let mut owner = machine.targets[0].owner().expect("free");
        here.run::<P>(&mut owner, Stay::Briefly, &[0]);
        there.run::<P>(&mut owner, Stay::Briefly, &[]);
        here.meet::<P>();
        here.run::<P>(&mut owner, Stay::Briefly, &[0]);
    });
}

explored! {
    p19_nested_translations_of_who_passes_are_flushed: Some(3) => passing::<Real>;
    p19_nested_translations_of_who_stays_are_flushed: Some(3) => staying::<Real>;
    p19_no_nested_flush_is_lost_when_another_vcpu_comes_in_its_place: Some(2) => replaced::<Real>;
    an_arrival_drops_nested_translations_that_went_stale_meanwhile: Some(2) => returning::<Real>;
}

mutants! {
    /// The change of the nested table is announced as one of the guest's tables.
    AskedForGuest fails p19_nested_change_asked_as_the_guests: passing::<AskedForGuest>, "used after", {
        fn flush_nested(machine: &ModelState) {
            Self::flush(machine, 1, Scope::All);
        }
    }

    /// O4: NESTED is set after the target was seen to be idle.
    AskedLate fails p19_nested_set_after_the_look within 4: passing::<AskedLate>, "used after", {
        fn flush_nested(machine: &ModelState) {
            let request = |target: &Target| {
                let is_idle = target.request_all_if_idle(word::FLUSH_GUEST);
                target.word.fetch_or(word::NESTED, AcqRel);
                if is_idle { Requested::default() } else { target.request(Scope::All) }
            };
            flush_by(machine, request, Target::claim_kick, Target::is_quiet);
        }
    }

    /// NESTED is taken, and not reported.
    NestedForgotten fails p19_nested_forgotten_by_the_taking: passing::<NestedForgotten>, "used after", {
        fn take_flush<'o>(owner: &'o mut Owner<'_>) -> Option<FlushWork<'o>> {
            let mut work = owner.take_flush()?;
            work.is_nested = false;
            Some(work)
        }
    }

    /// O10: NESTED is read before it is cleared, which also clears that of a later request.
    NestedReadBefore fails p19_nested_read_before_it_is_cleared: passing::<NestedReadBefore>, "used after", {
        fn take_flush<'o>(owner: &'o mut Owner<'_>) -> Option<FlushWork<'o>> {
            let word = owner.target.word.load(Acquire);
            let mut work = owner.take_flush()?;
            work.is_nested = word & word::NESTED != 0;
            Some(work)
        }
    }

    /// Who arrives takes nothing for stale.
    ArrivalTrusts fails arrival_without_a_look_at_the_stamp within 2: returning::<ArrivalTrusts>, "used after", {
        fn stamp(_: &ModelState) -> u64 {
            0
        }
    }

    /// The stamp is set after the flush was requested.
    StampLate fails stamp_set_after_the_request within 2: returning::<StampLate>, "used after", {
        fn set_stamp(_: &ModelState) {}

        fn flush_nested(machine: &ModelState) {
            Real::flush_nested(machine);
            Real::set_stamp(machine);
        }
    }

    /// The vCPU that is added flushes the guest's translations only.
    AddedForGuest fails p19_added_without_a_nested_flush within 2: replaced::<AddedForGuest>, "used after", {
        fn add(target: &Target) -> Option<Owner<'_>> {
            let pends = target.word.load(Relaxed) & word::NESTED;
            target.mailbox.post(Scope::All);
            let add = |word: u64| Some(word & !word::ABSENT | word::FLUSH_GUEST | pends);
            let _added = update(&target.word, add);
            Some(Owner { target })
        }
    }
}
