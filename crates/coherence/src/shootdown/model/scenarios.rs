//! Small programs for the machine, with interrupts. Each states what it would catch.

use loom::sync::Arc;
use loom::sync::atomic::Ordering::{AcqRel, Acquire, Relaxed};

use crate::explored;
use crate::interleave::on_a_thread;
use crate::shootdown::model::machine::{
    Cpu, DIRTY, Freed, ModelState, ModelTlb, NEW, NONE, OLD, On, PAGES, Reach, range,
};
use crate::shootdown::model::protocol::{Protocol, Real};
use crate::shootdown::{Async, Concurrent, Inline, Mode, NoUserAccess, PageRange, Pages, Serial};

/// A mode, as a type.
pub(super) trait Made {
    const MADE: Self;
}

impl Made for Serial {
    const MADE: Self = Self;
}

impl Made for Concurrent {
    const MADE: Self = Self;
}

impl Made for Inline {
    const MADE: Self = Self;
}

impl Made for Async {
    const MADE: Self = Self::new(NoUserAccess::of_a_model());
}

/// Points a page of the first space elsewhere, flushes, and frees the old frame.
pub(super) fn replace<P: Protocol, M: Mode<Pages> + Made>(
    (cpu, tlb): (&mut Cpu<'_>, &mut ModelTlb<'_>),
    page: usize,
    reach: &mut Reach<'_>,
) -> Freed {
    let machine = tlb.machine;
    let mut ranges = [PageRange::default(); 2];
    let mut batch = machine.spaces[0].batch(&mut ranges, ());
    machine.entry(page).store(NEW, Relaxed);
    batch.add(range(page));
    P::flush(cpu, batch, M::MADE, reach, tlb);
    machine.free(page)
}

/// Replaces `pages` of the first space on CPU 0, one after the other, while `program` runs on CPU
/// 1, which then serves until that is done.
pub(super) fn replaced_beside<P: Protocol, M: Mode<Pages> + Made>(
    machine: ModelState,
    pages: &[usize],
    program: impl for<'m> FnOnce(&'m ModelState, &mut On<'m>) + Send + 'static,
) {
    let machine = Arc::new(machine);
    let other = on_a_thread(&machine, move |machine| run::<P>(machine, 1, program));
    let (mut cpu, mut tlb) = machine.cpu(0);
    let reach = &mut Reach::by_interrupt(&machine);
    let freed = pages.iter().map(|&page| replace::<P, M>((&mut cpu, &mut tlb), page, reach));
    let freed: std::vec::Vec<_> = freed.collect();
    machine.finish();
    other.join().unwrap();
    freed.into_iter().for_each(|freed| machine.check(freed));
}

/// Runs `program` on a CPU, then serves until the initiators have finished, and accesses the loaded
/// space once more.
pub(super) fn run<'m, P: Protocol>(
    machine: &'m ModelState,
    index: usize,
    program: impl FnOnce(&'m ModelState, &mut On<'m>),
) {
    let mut on = machine.cpu(index);
    program(machine, &mut on);
    let (cpu, tlb) = &mut on;
    tlb.serve_until_finished::<P>(cpu);
    (0..PAGES).for_each(|page| tlb.touch(page));
}

/// A CPU loads the space, and uses its page before and after interrupts.
pub(super) fn using<P: Protocol, M: Mode<Pages> + Made>() {
    replaced_beside::<P, M>(ModelState::new(2), &[0], |machine, (cpu, tlb)| {
        P::switch_to(cpu, &machine.spaces[0], tlb);
        tlb.touch(0);
        tlb.poll::<P>(cpu);
        tlb.touch(0);
    });
}

/// The CPU leaves for another space, and returns to the translations kept under its tag (A12).
pub(super) fn coming_back<P: Protocol, M: Mode<Pages> + Made>() {
    replaced_beside::<P, M>(ModelState::new(2), &[0], |machine, (cpu, tlb)| {
        P::switch_to(cpu, &machine.spaces[0], tlb);
        tlb.touch(0);
        P::switch_to(cpu, &machine.spaces[1], tlb);
        P::switch_to(cpu, &machine.spaces[0], tlb);
        tlb.touch(0);
    });
}

/// The CPU is lazy for a while.
pub(super) fn lazing<P: Protocol, M: Mode<Pages> + Made>() {
    replaced_beside::<P, M>(ModelState::new(2), &[0], |machine, (cpu, tlb)| {
        P::switch_to(cpu, &machine.spaces[0], tlb);
        tlb.touch(0);
        P::enter_lazy(cpu);
        P::leave_lazy(cpu, tlb);
        tlb.touch(0);
    });
}

/// Two changes, while a CPU that fills its TLB as it likes serves the first: the flush for the
/// first does not count for the second (O8).
pub(super) fn consecutive<P: Protocol, M: Mode<Pages> + Made>() {
    replaced_beside::<P, M>(ModelState::new(2).eager(), &[0, 1], |machine, (cpu, tlb)| {
        P::switch_to(cpu, &machine.spaces[0], tlb);
        tlb.touch(1);
        tlb.poll::<P>(cpu);
        tlb.touch(1);
    });
}

/// Two CPUs that use the space, each of which replaces a page and flushes the other's TLB and its
/// own (O13, O14).
pub(super) fn at_each_other<P: Protocol, M: Mode<Pages> + Made>() {
    let program = |machine: &ModelState, index: usize| {
        let (mut cpu, mut tlb) = machine.cpu(index);
        P::switch_to(&mut cpu, &machine.spaces[0], &mut tlb);
        (0..PAGES).for_each(|page| tlb.touch(page));
        let reach = &mut Reach::by_interrupt(machine);
        let freed = replace::<P, M>((&mut cpu, &mut tlb), index, reach);
        machine.finish();
        tlb.touch(index);
        tlb.serve_until_finished::<P>(&mut cpu);
        tlb.touch(1 - index);
        freed
    };
    let machine = Arc::new(ModelState::new(2).under(2));
    let other = on_a_thread(&machine, move |machine| program(machine, 1));
    let freed = program(&machine, 0);
    machine.check(other.join().unwrap());
    machine.check(freed);
}

/// Two initiators at one target, which fills its TLB as it likes: requests merge in its slot.
pub(super) fn merging<P: Protocol, M: Mode<Pages> + Made>() {
    let initiate = |machine: &ModelState, index: usize| {
        let (mut cpu, mut tlb) = machine.cpu(index);
        let freed = replace::<P, M>((&mut cpu, &mut tlb), index, &mut Reach::by_interrupt(machine));
        machine.finish();
        freed
    };
    let machine = Arc::new(ModelState::new(3).under(2).eager());
    let mut target = machine.cpu(2);
    P::switch_to(&mut target.0, &machine.spaces[0], &mut target.1);
    target.1.touch(0);
    target.1.touch(1);
    let initiators = [0, 1].map(|index| on_a_thread(&machine, move |machine| initiate(machine, index)));
    let (cpu, tlb) = &mut target;
    tlb.poll::<P>(cpu);
    tlb.touch(1);
    tlb.serve_until_finished::<P>(cpu);
    tlb.touch(0);
    drop(target);
    initiators.into_iter().for_each(|initiator| machine.check(initiator.join().unwrap()));
}

/// Reclaim removes a page and flushes late. Meanwhile a CPU that wants to protect that page finds
/// it removed, and nothing to change: yet when its flush returns, no CPU uses the page
/// (3ea277194daa).
pub(super) fn reclaimed<P: Protocol, M: Mode<Pages> + Made>() {
    let machine = Arc::new(ModelState::new(2));
    let protector = on_a_thread(&machine, move |machine| {
        let (mut cpu, mut tlb) = machine.cpu(1);
        P::switch_to(&mut cpu, &machine.spaces[0], &mut tlb);
        tlb.touch(0);
        let batch = machine.spaces[0].batch(&mut [], ());
        let was_gone = machine.entry(0).load(Acquire) == NONE;
        P::flush(&mut cpu, batch, M::MADE, &mut Reach::by_interrupt(machine), &mut tlb);
        let protected = was_gone.then(|| machine.free(0));
        tlb.touch(0);
        tlb.serve_until_finished::<P>(&mut cpu);
        protected
    });
    let (mut cpu, mut tlb) = machine.cpu(0);
    let mut ranges = [PageRange::default(); 2];
    let mut batch = machine.spaces[0].batch(&mut ranges, ());
    machine.entry(0).swap(NONE, AcqRel);
    batch.add(range(0));
    P::flush(&mut cpu, batch, M::MADE, &mut Reach::by_interrupt(&machine), &mut tlb);
    let freed = machine.free(0);
    machine.finish();
    if let Some(protected) = protector.join().unwrap() {
        machine.check(protected);
    }
    machine.check(freed);
}

/// The dirty bit of a page is cleared, and then the page is copied. A store after the copy marks it
/// again.
pub(super) fn cleaned<P: Protocol, M: Mode<Pages> + Made>() {
    let machine = Arc::new(ModelState::new(2));
    let other = on_a_thread(&machine, move |machine| {
        let store = |machine: &ModelState, (cpu, tlb): &mut On<'_>| {
            // The entry to find is in its TLB: stores through that leave no other mark.
            tlb.store(0);
            tlb.poll::<P>(cpu);
            tlb.store(0);
            assert!(&machine.spaces[0].cpus().contains(1));
        };
        let mut on = machine.cpu(1);
        P::switch_to(&mut on.0, &machine.spaces[0], &mut on.1);
        store(machine, &mut on);
        let (cpu, tlb) = &mut on;
        tlb.serve_until_finished::<P>(cpu);
    });
    let (mut cpu, mut tlb) = machine.cpu(0);
    let mut ranges = [PageRange::default(); 2];
    let mut batch = machine.spaces[0].batch(&mut ranges, ());
    machine.entry(0).fetch_and(!DIRTY, Relaxed);
    batch.add(range(0));
    P::flush(&mut cpu, batch, M::MADE, &mut Reach::by_interrupt(&machine), &mut tlb);
    let copied = machine.free(0);
    machine.finish();
    other.join().unwrap();
    if machine.entry(0).load(Relaxed) == OLD {
        machine.check(copied);
    }
}

explored! {
    o1_serial_flush_of_a_cpu_that_loads_the_space: Some(5) => using::<Real, Serial>;
    o1_concurrent_flush_of_a_cpu_that_loads_the_space: Some(5) => using::<Real, Concurrent>;
    o1_inline_flush_of_a_cpu_that_loads_the_space: Some(5) => using::<Real, Inline>;
    o1_async_flush_of_a_cpu_that_loads_the_space: Some(5) => using::<Real, Async>;
    a12_what_was_kept_under_a_tag_is_looked_at_again: Some(5) => coming_back::<Real, Inline>;
    lazy_cpu_is_left_out_and_looks_when_it_goes_on: Some(5) => lazing::<Real, Inline>;
    o8_change_during_the_flush_of_another:
        Some(3) => consecutive::<Real, Concurrent>,
        Some(3) => consecutive::<Real, Inline>;
    o8_change_during_an_early_acknowledged_flush_of_another: Some(3) => consecutive::<Real, Async>;
    o13_o14_two_cpus_that_flush_each_other:
        Some(2) => at_each_other::<Real, Serial>,
        Some(3) => at_each_other::<Real, Concurrent>,
        Some(2) => at_each_other::<Real, Async>;
    o8_two_initiators_merge_in_one_slot:
        Some(1) => merging::<Real, Concurrent>,
        Some(2) => merging::<Real, Inline>;
    entries_that_another_batch_took_are_flushed: Some(5) => reclaimed::<Real, Inline>;
    o2_store_after_a_clean_is_in_the_copy_or_marks_the_page:
        Some(5) => cleaned::<Real, Concurrent>,
        Some(5) => cleaned::<Real, Async>;
}
