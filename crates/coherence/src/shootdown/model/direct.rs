//! Flushes by a hypervisor: scenarios, and the mutants that fail there.

use loom::sync::Arc;

use crate::interleave::{explore, on_a_thread};
use crate::shootdown::batch::Kind;
use crate::shootdown::model::machine::{Cpu, ModelState, ModelTlb, On, Reach};
use crate::shootdown::model::mutants::switch_by;
use crate::shootdown::model::protocol::{Protocol, Real};
use crate::shootdown::model::scenarios::{replace, run};
use crate::shootdown::model::tables::unlink;
use crate::shootdown::{AddressSpace, Batch, Inline, Mode};
use crate::{explored, mutants};

/// The hypervisor flushes the tag that CPU 1 has loaded, and not its other tags, while that CPU
/// switches to the space being changed. The CPU takes no interrupt.
fn switching<P: Protocol>() {
    beside::<P>(ModelState::new(2), |machine, (cpu, tlb)| {
        P::switch_to(cpu, &machine.spaces[0], tlb);
        tlb.touch(0);
        P::switch_to(cpu, &machine.spaces[1], tlb);
        P::switch_to(cpu, &machine.spaces[0], tlb);
        tlb.touch(0);
    });
}

/// CPU 1 is lazy for a while.
fn lazing<P: Protocol>() {
    beside::<P>(ModelState::new(2), |machine, (cpu, tlb)| {
        P::switch_to(cpu, &machine.spaces[0], tlb);
        tlb.touch(0);
        P::enter_lazy(cpu);
        P::leave_lazy(cpu, tlb);
        tlb.touch(0);
    });
}

/// CPU 2 uses the space too, and is unknown to the hypervisor: it is interrupted (O18).
fn mixed<P: Protocol>() {
    let machine = ModelState::new(3);
    let machine = Arc::new(machine.on_hypervisor());
    let others = [1, 2].map(|index| {
        on_a_thread(&machine, move |machine| {
            run::<P>(machine, index, |machine, (cpu, tlb)| {
                P::switch_to(cpu, &machine.spaces[0], tlb);
                tlb.touch(0);
            });
        })
    });
    let (mut cpu, mut tlb) = machine.cpu(0);
    let reach = &mut Reach::by_hypercall(&machine);
    let freed = replace::<P, Inline>((&mut cpu, &mut tlb), 0, reach);
    machine.finish();
    others.into_iter().for_each(|other| other.join().unwrap());
    machine.check(freed);
}

/// As [`switching`], but a table is freed; CPU 1 walks ahead as soon as it has loaded the space.
fn switching_tables(is_shallow: bool) {
    let machine = Arc::new(ModelState::new(2).counting_walks().on_hypervisor());
    let other = on_a_thread(&machine, |machine| {
        run::<Real>(machine, 1, |machine, (cpu, tlb)| {
            cpu.switch_to(&machine.spaces[0], tlb);
            tlb.touch(0);
            cpu.switch_to(&machine.spaces[1], tlb);
            cpu.switch_to(&machine.spaces[0], tlb);
        });
    });
    let reach = &mut Reach { is_shallow, ..Reach::by_hypercall(&machine) };
    let freed = unlink::<Real, Inline>(&machine, reach);
    machine.finish();
    other.join().unwrap();
    machine.check(freed);
}

fn beside<P: Protocol>(
    machine: ModelState,
    program: impl for<'m> FnOnce(&'m ModelState, &mut On<'m>) + Send + 'static,
) {
    let machine = Arc::new(machine.on_hypervisor());
    let other = on_a_thread(&machine, move |machine| run::<P>(machine, 1, program));
    let (mut cpu, mut tlb) = machine.cpu(0);
    let reach = &mut Reach::by_hypercall(&machine);
    let freed = replace::<P, Inline>((&mut cpu, &mut tlb), 0, reach);
    machine.finish();
    other.join().unwrap();
    machine.check(freed);
}

explored! {
    a12_hypervisor_flushes_a_cpu_between_two_spaces: Some(5) => switching::<Real>;
    p1_hypervisor_drops_a_freed_table_under_all_tags: Some(5) => || switching_tables(false);
}

/// A back end that breaks its contract: translations under tags that are not loaded stay until the
/// CPU looks.
#[test]
#[should_panic(expected = "used after")]
fn p1_hypervisor_drops_a_freed_table_under_the_loaded_tag_only() {
    explore(Some(3), || switching_tables(true));
}

explored! {
    hypervisor_leaves_a_lazy_cpu_alone: Some(5) => lazing::<Real>;
    o18_hypervisor_for_one_and_interrupt_for_another: Some(2) => mixed::<Real>;
}

mutants! {
    /// A12: the generation is read before the space is loaded, and not again: the hypervisor has
    /// flushed the space that was loaded before.
    LooksOnce fails a12_generation_not_read_again_after_the_load: switching::<LooksOnce>, "used after", {
        fn switch_to<'m>(cpu: &mut Cpu<'m>, space: &'m AddressSpace<1>, tlb: &mut ModelTlb<'_>) {
            let index = cpu.index;
            switch_by(cpu, space, tlb, || space.join(index), false, false);
        }
    }

    /// O18: the CPUs that the hypervisor has not taken on are forgotten.
    DirectOnly fails o18_the_others_are_not_interrupted: mixed::<DirectOnly>, "used after", {
        fn flush<K: Kind, M: Mode<K>>(
            cpu: &mut Cpu<'_>, batch: Batch<'_, K, (), 1>, _mode: M, reach: &mut Reach<'_>, tlb: &mut ModelTlb<'_>,
        ) {
            let space = batch.space;
            let (mut plan, mut targets) = cpu.issue::<K>(space, batch.scope());
            cpu.begin(&mut plan, &mut targets, reach, &crate::shootdown::Pinned::new());
            cpu.flush_here(&plan, tlb);
            space.close();
        }
    }
}
