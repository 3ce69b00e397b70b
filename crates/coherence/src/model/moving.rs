//! vCPUs that change CPUs, are removed, and are added again, while they are flushed: scenarios, and
//! the mutants that fail there.

use core::cell::Cell;
use core::mem::forget;

use loom::sync::Arc;

use super::machine::{Cpu, ModelState, Stay};
use super::mutants::flush_by;
use super::protocol::{Protocol, Real};
use super::scenarios::{flush_all, replaced_beside};
use crate::interleave::on_a_thread;
use crate::sync::Ordering::{AcqRel, Acquire, Relaxed, Release};
use crate::sync::update;
use crate::target::Claim;
use crate::{CpuId, FlushOutcome, InGuest, Notify, Owner, Scope, Target, explored, mutants, word};

/// A vCPU that moves to another CPU, and stays there until it is kicked: the kick must follow.
fn migrating<P: Protocol>() {
    let vcpu = |machine: &ModelState| move_and_stay::<P>(machine, &[0]);
    replaced_beside(ModelState::new(2), vcpu, flush_all::<P>, ModelState::finish);
}

/// As [`migrating`], under two initiators: one may kick where the other has seen the vCPU enter. To
/// keep it small, nothing is accessed, and the vCPU is on CPU 1 when they begin. A misdirected kick
/// hangs.
fn migrating_under_two<P: Protocol>() {
    let machine = Arc::new(ModelState::new(2).under(2));
    let mut owner = machine.targets[0].owner().expect("free");
    forget(P::try_enter(&mut owner, CpuId(1)).expect("nothing pends"));
    forget(owner);
    let vcpu = |machine: &ModelState| {
        let target = &machine.targets[0];
        P::leave(InGuest { target });
        Cpu::new(machine, 0).run::<P>(&mut Owner { target }, Stay::UntilKicked, &[]);
    };
    let initiator = |machine: &ModelState| {
        P::flush(machine, 1, Scope::All);
        machine.finish();
    };
    let others = [vcpu, initiator].map(|act: fn(&ModelState)| on_a_thread(&machine, act));
    initiator(&machine);
    others.into_iter().for_each(|other| other.join().unwrap());
}

/// The first vCPU runs on CPU 1 for a moment and then on CPU 0 until it is kicked.
fn move_and_stay<P: Protocol>(machine: &ModelState, pages: &[usize]) {
    let target = &machine.targets[0];
    Cpu::new(machine, 1).run::<P>(&mut target.owner().expect("free"), Stay::Briefly, pages);
    Cpu::new(machine, 0).run::<P>(&mut target.owner().expect("free"), Stay::UntilKicked, pages);
}

/// A vCPU runs for a moment, takes pending requests, and is removed, with or without the flush
/// recorded.
pub(super) fn run_and_remove<P: Protocol>(cpu: &mut Cpu<'_>, machine: &ModelState) {
    let mut owner = machine.targets[0].owner().expect("free");
    cpu.run::<P>(&mut owner, Stay::Briefly, &[0]);
    cpu.absorb::<P>(&mut owner);
    P::remove(owner);
}

/// A vCPU that is removed and never added again.
fn removed<P: Protocol>() {
    let vcpu = |machine: &ModelState| run_and_remove::<P>(&mut Cpu::new(machine, 0), machine);
    let flush = |machine: &ModelState| {
        let outcome = P::flush(machine, 1, Scope::All);
        assert_eq!(outcome.targets + outcome.absent, 1);
    };
    replaced_beside(ModelState::new(1), vcpu, flush, |machine| {
        assert_ne!(machine.post_event::<P>(0), Notify::Wake, "it does not halt");
    });
}

/// A vCPU that is removed, and another that takes its place, on the same CPU under the same tag,
/// and stays until it is kicked.
fn replaced<P: Protocol>() {
    let vcpu = |machine: &ModelState| {
        let mut cpu = Cpu::new(machine, 0);
        run_and_remove::<P>(&mut cpu, machine);
        cpu.discard_record();
        let mut owner = P::add(&machine.targets[0]).expect("absent");
        cpu.run::<P>(&mut owner, Stay::UntilKicked, &[0]);
    };
    replaced_beside(ModelState::new(1), vcpu, flush_all::<P>, ModelState::finish);
}

/// A vCPU that is added while a page is replaced and flushed for it.
fn added<P: Protocol>() {
    let machine = ModelState::new(1);
    machine.targets[0].owner().expect("free").remove();
    let vcpu = |machine: &ModelState| {
        let mut owner = P::add(&machine.targets[0]).expect("absent");
        Cpu::new(machine, 0).run::<P>(&mut owner, Stay::Briefly, &[0]);
    };
    replaced_beside(machine, vcpu, flush_all::<P>, |_| {});
}

/// Two callers add the same vCPU: one succeeds.
fn added_by_two() {
    let machine = Arc::new(ModelState::new(1));
    machine.targets[0].owner().expect("free").remove();
    let add = |machine: &ModelState| match machine.targets[0].add() {
        Some(owner) => {
            core::mem::forget(owner); // the vCPU runs forever
            1
        }
        None => 0,
    };
    let other = on_a_thread(&machine, add);
    let here = add(&machine);
    assert_eq!(here + other.join().unwrap(), 1);
}

explored! {
    kick_follows_a_migration: Some(3) => migrating::<Real>;
    kick_follows_a_migration_that_another_initiator_sees: Some(2) => migrating_under_two::<Real>;
    g6_removed_vcpu_is_not_waited_for: Some(4) => removed::<Real>;
    g6_no_flush_is_lost_when_another_vcpu_comes_in_its_place: Some(3) => replaced::<Real>;
    g6_vcpu_that_is_added_during_a_flush_walks_the_changed_tables: Some(3) => added::<Real>;
    vcpu_is_added_by_one_of_two: None => added_by_two;
}

mutants! {
    /// The kick is sent to the CPU that `issue` saw, though the claim is for a later stay.
    KickWhereIssued fails kick_of_the_cpu_before_a_migration within 2:
        migrating_under_two::<KickWhereIssued>, "maximum number of branches",
    {
        fn flush(machine: &ModelState, _count: usize, scope: Scope<'_>) -> FlushOutcome {
            let issued_to = Cell::new(CpuId(0));
            let request = |target: &Target| {
                let requested = target.request(scope);
                issued_to.set(target.cpu());
                requested
            };
            let claim = |target: &Target| match target.claim_kick() {
                Claim::Kick(_) => Claim::Kick(issued_to.get()),
                other => other,
            };
            flush_by(machine, request, claim, Target::is_quiet)
        }
    }

    /// Nothing is flushed for the new vCPU: the flush that the former one had recorded is lost.
    AddUnflushed fails added_without_a_flush: replaced::<AddUnflushed>, "used after", {
        fn add(target: &Target) -> Option<Owner<'_>> {
            target.word.fetch_and(!word::ABSENT, AcqRel);
            Some(Owner { target })
        }
    }

    /// Generations restart: an initiator waits for one that is never reached.
    AddAfresh fails added_with_new_generations: replaced::<AddAfresh>, "maximum number of branches", {
        fn add(target: &Target) -> Option<Owner<'_>> {
            target.mailbox.header.store(1, Release); // everything, generation 0
            target.completed.store(0, Release);
            let add = |word: u64| Some(word & !word::ABSENT | word::FLUSH);
            let _added = update(&target.word, add);
            Some(Owner { target })
        }
    }

    /// O3: an absent target gets no request, because of a load that the page-table change may pass.
    SkipAbsent fails o3_absent_targets_skipped_by_a_load: added::<SkipAbsent>, "used after", {
        fn flush(machine: &ModelState, count: usize, scope: Scope<'_>) -> FlushOutcome {
            if machine.targets[0].word.load(Acquire) & word::ABSENT != 0 {
                return FlushOutcome::default();
            }
            Real::flush(machine, count, scope)
        }
    }

    /// The removed vCPU can be claimed, and its requests are skipped.
    RemoveForgotten fails removal_that_drops_requests: replaced::<RemoveForgotten>, "used after", {
        fn remove(owner: Owner<'_>) {
            owner.target.word.store(word::OWNED, Relaxed);
            core::mem::forget(owner);
        }

        fn add(target: &Target) -> Option<Owner<'_>> {
            Some(Owner { target })
        }
    }
}
