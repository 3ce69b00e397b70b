//! Shootdown with one operation broken, and the scenario that detects it.
//!
//! Each mutant is a copy of the real operation except for the one change that its comment names.
//! Mutants of a flush are [`flush_by`] with one of its [`Parts`].

use crate::mailbox::Generation;
use crate::model::machine::idle;
use crate::shootdown::batch::Kind;
use crate::shootdown::cpu::Known;
use crate::shootdown::flush::Plan;
use crate::shootdown::model::machine::{Cpu, ModelTlb, Reach};
use crate::shootdown::model::protocol::Protocol;
use crate::shootdown::model::scenarios::{
    at_each_other, cleaned, coming_back, consecutive, lazing, merging, reclaimed, using,
};
use crate::shootdown::remote::Elsewhere;
use crate::shootdown::slot::{COUNT_SHIFT, Change, CpuSlot, EVERYTHING, LATE, LAZY, PENDING};
use crate::shootdown::{
    AddressSpace, Async, Batch, Concurrent, Inline, Mode, PageRange, Pinned, Remote, ShootdownOutcome, Tag,
    Tlb,
};
use crate::sync::Ordering::{AcqRel, Acquire, Relaxed};
use crate::{TargetSet, mutants};

/// How an initiator waits.
#[derive(Clone, Copy, Default, PartialEq, Eq)]
pub(super) enum Wait {
    /// As the real one does.
    #[default]
    Really,
    /// Without acquiring.
    Relaxed,
    /// Until the interrupt was taken.
    ForTheInterrupt,
    /// Without serving others.
    Deaf,
    Never,
}

/// The faults of a flush.
#[derive(Clone, Copy, Default)]
pub(super) struct Parts {
    /// The set is read before the generation is raised.
    pub(super) set_first: bool,
    /// The set is read by a load.
    pub(super) set_by_load: bool,
    /// The initiator checks for lazy CPUs before it raises the generation.
    pub(super) lazy_first: bool,
    /// It checks for them by a load.
    pub(super) lazy_by_load: bool,
    /// Lazy CPUs are skipped whatever is freed.
    pub(super) spares_lazy: bool,
    /// Targets acknowledge first, whatever is freed.
    pub(super) is_early: bool,
    /// Targets are told that no tables are freed.
    pub(super) keeps_tables: bool,
    /// Other open batches are ignored.
    pub(super) ignores_others: bool,
    /// The initiator's own TLB is not flushed.
    pub(super) forgets_own: bool,
    pub(super) wait: Wait,
}

/// The real flush, in the order of the concurrent modes, except for the parts that are named.
pub(super) fn flush_by<K: Kind, M: Mode<K>>(
    cpu: &mut Cpu<'_>,
    batch: Batch<'_, K, (), 1>,
    reach: &mut Reach<'_>,
    tlb: &mut ModelTlb<'_>,
    parts: Parts,
) {
    let space = batch.space;
    let others = !parts.ignores_others && space.others_open();
    if !batch.is_empty() || others {
        let ranges = batch.scope().filter(|_| !others);
        let (mut plan, mut targets) = issue_by::<K>(cpu, space, ranges, parts);
        plan.change.tables &= !parts.keeps_tables;
        let pin = Pinned::new();
        cpu.begin(&mut plan, &mut targets, reach, &pin);
        if parts.is_early {
            ask_for_everything(cpu, targets, reach);
        } else {
            cpu.ask::<M>(&mut plan, &targets, reach);
        }
        if !parts.forgets_own {
            cpu.flush_here(&plan, tlb);
        }
        wait_by(cpu, &mut plan, tlb, parts.wait);
    }
    space.close();
}

fn issue_by<'r, K: Kind>(
    cpu: &mut Cpu<'_>,
    space: &AddressSpace<1>,
    ranges: Option<&'r [PageRange]>,
    parts: Parts,
) -> (Plan<'r>, TargetSet<1>) {
    let set_before = parts.set_first.then(|| space.members());
    let mut all = TargetSet::first(2);
    if parts.lazy_first {
        cpu.spare_lazy(&mut all);
    }
    let change = Change { space: space.id, generation: space.bump(), tables: K::TABLES };
    let by_load = parts.set_by_load.then(|| TargetSet::from_banks([space.cpus[0].load(Acquire)]));
    let mut targets = set_before.or(by_load).unwrap_or_else(|| space.members());
    targets.remove(cpu.index);
    if parts.lazy_first {
        targets = targets.and(&all);
    } else if parts.lazy_by_load {
        let is_lazy = |index: &usize| slot(cpu, *index).header.load(Acquire) & LAZY != 0;
        let lazy = (0..2).filter(is_lazy).fold(0, |lazy, index| lazy | 1 << index);
        targets = targets.without(&TargetSet::from_banks([lazy]));
    } else if !K::TABLES || parts.spares_lazy {
        cpu.spare_lazy(&mut targets);
    }
    (Plan { change, root: space.root(), ranges, outcome: ShootdownOutcome::default() }, targets)
}

fn slot<'m>(cpu: &Cpu<'m>, index: usize) -> &'m CpuSlot {
    cpu.cpus.slot(index).expect("a CPU of the model")
}

fn ask_for_everything(cpu: &mut Cpu<'_>, targets: TargetSet<1>, reach: &mut Reach<'_>) {
    cpu.ledger.clear();
    for index in targets.iter() {
        let posted = slot(cpu, index).post(None, false);
        cpu.ledger.note(index, Generation(posted.count));
    }
    reach.interrupt(&targets);
}

fn wait_by(cpu: &mut Cpu<'_>, plan: &mut Plan<'_>, tlb: &mut ModelTlb<'_>, wait: Wait) {
    if wait == Wait::Really {
        assert!(cpu.wait(plan, tlb).is_ok(), "the model never gives up");
        return;
    }
    for index in cpu.ledger.awaited().iter() {
        let (target, count) = (slot(cpu, index), cpu.ledger.generation(index).0);
        let is_over = |machine: &super::machine::ModelState| match wait {
            Wait::Relaxed => target.completed.load(Relaxed) >= count,
            Wait::ForTheInterrupt => !machine.is_interrupt_pending(index),
            Wait::Never => true,
            Wait::Deaf | Wait::Really => target.is_complete(count),
        };
        let mut turns = 0;
        while !is_over(tlb.machine) {
            if wait != Wait::Deaf && cpu.serve(tlb) {
                continue;
            }
            idle(turns);
            turns += 1;
        }
    }
}

/// Defines mutants whose flush has one part wrong.
macro_rules! flush_mutants {
    ($(
        $(#[$doc:meta])+
        $name:ident fails $test:ident: $scenario:expr, $seen:literal, $part:ident: $wrong:expr;
    )+) => {
        mutants! {$(
            $(#[$doc])+
            $name fails $test: $scenario, $seen, {
                fn flush<K: Kind, M: Mode<K>>(
                    cpu: &mut Cpu<'_>,
                    batch: Batch<'_, K, (), 1>,
                    _mode: M,
                    reach: &mut Reach<'_>,
                    tlb: &mut ModelTlb<'_>,
                ) {
                    flush_by::<K, M>(cpu, batch, reach, tlb, Parts { $part: $wrong, ..Parts::default() });
                }
            }
        )+}
    };
}
pub(super) use flush_mutants;

flush_mutants! {
    /// O4: the set is read before the change is counted: a CPU that joins in between gets no
    /// request and does not look.
    SetFirst fails o4_set_read_before_the_generation: coming_back::<SetFirst, Inline>, "used after", set_first: true;

    /// O3: the set is read by a load, which may precede the point where a joining CPU sees the
    /// generation.
    SetByLoad fails o3_set_read_by_a_load: using::<SetByLoad, Inline>, "used after", set_by_load: true;

    /// The initiator checks for lazy CPUs before it counts the change.
    LazyFirst fails lazy_seen_before_the_generation: lazing::<LazyFirst, Inline>, "used after", lazy_first: true;

    /// O3: it checks for them by a load.
    LazyByLoad fails o3_lazy_seen_by_a_load: lazing::<LazyByLoad, Inline>, "used after", lazy_by_load: true;

    /// O1: the initiator interrupts and returns.
    WaitNever fails o1_return_after_the_interrupt_was_sent: using::<WaitNever, Inline>, "used after",
    wait: Wait::Never;

    /// O2: the initiator waits only until the target has taken the interrupt.
    WaitForInterrupt fails o2_receipt_of_the_interrupt_is_taken_for_the_flush: using::<WaitForInterrupt, Inline>,
    "used after", wait: Wait::ForTheInterrupt;

    /// O2: the acknowledgement is not acquired.
    WaitRelaxed fails o2_acknowledgement_read_without_acquire: using::<WaitRelaxed, Inline>, "used after",
    wait: Wait::Relaxed;

    /// O2: the acknowledgement is not acquired, and unseen stores leave no mark either.
    CopyRelaxed fails o2_copy_after_a_clean_without_acquire: cleaned::<CopyRelaxed, Inline>, "used after",
    wait: Wait::Relaxed;

    /// O14: a waiting CPU does not serve.
    WaitDeaf fails o14_waiting_without_serving: at_each_other::<WaitDeaf, Inline>, "maximum number of branches",
    wait: Wait::Deaf;

    /// A batch that has changed nothing flushes nothing, although another batch has changed the
    /// entries that it met (3ea277194daa).
    OthersIgnored fails entries_that_another_batch_took_ignored: reclaimed::<OthersIgnored, Inline>, "used after",
    ignores_others: true;

    /// The initiator uses the space itself, but flushes only others.
    OwnForgotten fails own_translations_kept: at_each_other::<OwnForgotten, Inline>, "used after", forgets_own: true;
}

/// The real switch, in parts: how the CPU joins, whether translations under the tag are kept, and
/// whether the generation is checked once more.
pub(super) fn switch_by<'m>(
    cpu: &mut Cpu<'m>,
    space: &'m AddressSpace<1>,
    tlb: &mut ModelTlb<'_>,
    join: impl FnOnce(),
    keep: bool,
    looks_again: bool,
) {
    join();
    cpu.clear_lazy();
    let generation = space.generation();
    match cpu.known.iter().position(|known| known.space == space.id) {
        Some(tag) if keep => {
            tlb.load(space.root(), Tag(tag as u16), true);
            cpu.tag = tag;
            cpu.known[tag] = Known { space: space.id, clean_to: generation };
        }
        _ => _ = cpu.load(space, generation, tlb),
    }
    let former = cpu.loaded.replace(space);
    if looks_again {
        cpu.catch_up(tlb);
    }
    if let Some(former) = former {
        former.leave(cpu.index, Elsewhere::forged());
    }
}

mutants! {
    /// O3: joining orders nothing: the generation that is read after it may be older (83b0177a6c48,
    /// 71b3c126e611).
    JoinRelaxed fails o3_switch_without_a_barrier: using::<JoinRelaxed, Inline>, "used after", {
        fn switch_to<'m>(cpu: &mut Cpu<'m>, space: &'m AddressSpace<1>, tlb: &mut ModelTlb<'_>) {
            let me = 1 << cpu.index;
            let join = || {
                space.cpus[0].fetch_or(me, Relaxed);
            };
            switch_by(cpu, space, tlb, join, false, true);
        }
    }

    /// O4: the CPU joins after it has read the generation for the last time.
    JoinLast fails o4_generation_read_before_joining: coming_back::<JoinLast, Inline>, "used after", {
        fn switch_to<'m>(cpu: &mut Cpu<'m>, space: &'m AddressSpace<1>, tlb: &mut ModelTlb<'_>) {
            switch_by(cpu, space, tlb, || {}, false, true);
            space.join(cpu.index);
        }
    }

    /// A12: translations under the tag are kept whatever has changed since.
    KeepAlways fails a12_tag_kept_whatever_has_changed: coming_back::<KeepAlways, Inline>, "used after", {
        fn switch_to<'m>(cpu: &mut Cpu<'m>, space: &'m AddressSpace<1>, tlb: &mut ModelTlb<'_>) {
            let index = cpu.index;
            switch_by(cpu, space, tlb, || space.join(index), true, true);
        }
    }

    /// A12: a CPU that leaves a space records the space's generation as its own while a flush is in
    /// progress.
    NotedAtLeave fails a12_generation_noted_when_leaving: coming_back::<NotedAtLeave, Inline>, "used after", {
        fn switch_to<'m>(cpu: &mut Cpu<'m>, space: &'m AddressSpace<1>, tlb: &mut ModelTlb<'_>) {
            if let Some(former) = cpu.loaded {
                cpu.known[cpu.tag].clean_to = former.generation();
            }
            cpu.switch_to(space, tlb);
        }
    }

    /// O2: a CPU that leaves does not release its accesses.
    LeaveRelaxed fails o2_leaving_without_release: coming_back::<LeaveRelaxed, Inline>, "used after", {
        fn switch_to<'m>(cpu: &mut Cpu<'m>, space: &'m AddressSpace<1>, tlb: &mut ModelTlb<'_>) {
            space.join(cpu.index);
            let generation = space.generation();
            cpu.load(space, generation, tlb);
            let former = cpu.loaded.replace(space);
            cpu.catch_up(tlb);
            if let Some(former) = former {
                former.cpus[0].fetch_and(!(1 << cpu.index), Relaxed);
            }
        }
    }

    /// A lazy CPU was skipped, and continues with its old translations.
    LazyGoesOn fails lazy_cpu_goes_on_without_a_look: lazing::<LazyGoesOn, Inline>, "used after", {
        fn leave_lazy(cpu: &mut Cpu<'_>, _tlb: &mut ModelTlb<'_>) {
            cpu.clear_lazy();
        }
    }

    /// The CPU looks first, and only then stops being lazy.
    LazyLooksFirst fails lazy_cpu_looks_too_early: lazing::<LazyLooksFirst, Inline>, "used after", {
        fn leave_lazy(cpu: &mut Cpu<'_>, tlb: &mut ModelTlb<'_>) {
            cpu.catch_up(tlb);
            cpu.clear_lazy();
        }
    }

    /// O2: going lazy does not release the CPU's accesses.
    LazyRelaxed fails o2_going_lazy_without_release: lazing::<LazyRelaxed, Inline>, "used after", {
        fn enter_lazy(cpu: &mut Cpu<'_>) {
            cpu.is_lazy = true;
            cpu.slot.header.fetch_or(LAZY, Relaxed);
        }
    }

    /// O8: the generation is sampled after the flush.
    SampleLate fails o8_generation_read_after_the_flush: consecutive::<SampleLate, Async>, "used after", {
        fn serve(cpu: &mut Cpu<'_>, tlb: &mut ModelTlb<'_>) {
            let Some(taken) = cpu.slot.take() else { return };
            cpu.slot.complete(taken.count);
            let (tag, space) = (cpu.tag, cpu.loaded.expect("it stays"));
            if cpu.known[tag].clean_to != space.generation() {
                tlb.flush_everything();
                cpu.known[tag].clean_to = space.generation();
            }
        }
    }

    /// O8: the newest request is acknowledged instead of the one that was taken.
    CompleteNewest fails o8_newest_request_acknowledged within 2: merging::<CompleteNewest, Inline>, "used after", {
        fn serve(cpu: &mut Cpu<'_>, tlb: &mut ModelTlb<'_>) {
            let Some(_taken) = cpu.slot.take() else { return };
            cpu.catch_up(tlb);
            cpu.slot.complete(cpu.slot.header.fetch_or(0, AcqRel) >> COUNT_SHIFT);
        }
    }

    /// O2: the acknowledgement does not release the target's accesses.
    CompleteRelaxed fails o2_acknowledgement_without_release: using::<CompleteRelaxed, Inline>, "used after", {
        fn serve(cpu: &mut Cpu<'_>, tlb: &mut ModelTlb<'_>) {
            let Some(taken) = cpu.slot.take() else { return };
            cpu.catch_up(tlb);
            cpu.slot.completed.store(taken.count, Relaxed);
        }
    }

    /// O10: requests are taken after the flush, including one that arrived during it.
    TakeLate fails o10_requests_taken_after_the_flush within 2: merging::<TakeLate, Inline>, "used after", {
        fn serve(cpu: &mut Cpu<'_>, tlb: &mut ModelTlb<'_>) {
            cpu.catch_up(tlb);
            let old = cpu.slot.header.fetch_and(!(PENDING | LATE | EVERYTHING), AcqRel);
            if old & PENDING != 0 {
                cpu.slot.complete(old >> COUNT_SHIFT);
            }
        }
    }

    /// P25: the kernel asserts that nothing uses user addresses before the flush, but its NMI
    /// handler does.
    NmiUses fails p25_user_access_between_acknowledgement_and_flush: using::<NmiUses, Async>, "used after", {
        fn serve(cpu: &mut Cpu<'_>, tlb: &mut ModelTlb<'_>) {
            let Some(taken) = cpu.slot.take() else { return };
            cpu.slot.complete(taken.count);
            tlb.touch(0);
            cpu.catch_up(tlb);
        }
    }

    /// O1: the target acknowledges, but does not flush.
    FlushNever fails o1_acknowledgement_without_a_flush: using::<FlushNever, Concurrent>, "used after", {
        fn serve(cpu: &mut Cpu<'_>, _tlb: &mut ModelTlb<'_>) {
            let Some(taken) = cpu.slot.take() else { return };
            cpu.slot.complete(taken.count);
        }
    }

    /// O9: a second request is counted with the first, and its ranges are lost.
    MergedLost fails o9_second_request_is_lost_in_the_first within 2: merging::<MergedLost, Inline>, "used after", {
        fn serve(cpu: &mut Cpu<'_>, tlb: &mut ModelTlb<'_>) {
            let Some(taken) = cpu.slot.take() else { return };
            // The words are those of the first request; this takes them for both.
            let request = cpu.slot.read();
            if request.change.generation != 0 {
                cpu.carry_out(&request, tlb);
            }
            cpu.slot.complete(taken.count);
        }
    }
}
