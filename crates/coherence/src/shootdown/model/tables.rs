//! Batches that free page tables: scenarios, and the mutants that fail there.

use loom::sync::Arc;
use loom::sync::atomic::Ordering::Relaxed;

use crate::interleave::on_a_thread;
use crate::shootdown::batch::Kind;
use crate::shootdown::model::machine::{Cpu, Freed, ModelState, ModelTlb, NONE, On, Reach, range};
use crate::shootdown::model::mutants::{Parts, flush_by, flush_mutants};
use crate::shootdown::model::protocol::{Protocol, Real};
use crate::shootdown::model::scenarios::{Made, run};
use crate::shootdown::{Batch, Concurrent, Inline, Mode, PageRange, Serial, Tables};
use crate::{explored, mutants};

/// Unlinks the first space's table on CPU 0, flushes, and frees it.
pub(super) fn unlink<P: Protocol, M: Mode<Tables> + Made>(
    machine: &ModelState,
    reach: &mut Reach<'_>,
) -> Freed {
    let (mut cpu, mut tlb) = machine.cpu(0);
    let mut ranges = [PageRange::default(); 2];
    let mut batch = machine.spaces[0].batch(&mut ranges, ()).freeing_tables();
    machine.root().store(NONE, Relaxed);
    batch.add(range(0));
    P::free_table(&mut cpu, batch, M::MADE, reach, &mut tlb)
}

/// Unlinks the first space's table while `program` runs on CPU 1, which walks ahead when it can.
fn freed_beside<P: Protocol, M: Mode<Tables> + Made>(
    program: impl for<'m> FnOnce(&'m ModelState, &mut On<'m>) + Send + 'static,
) {
    let machine = Arc::new(ModelState::new(2).counting_walks());
    let other = on_a_thread(&machine, move |machine| run::<P>(machine, 1, program));
    let freed = unlink::<P, M>(&machine, &mut Reach::by_interrupt(&machine));
    machine.finish();
    other.join().unwrap();
    machine.check(freed);
}

/// A CPU uses the space.
fn walking<P: Protocol, M: Mode<Tables> + Made>() {
    freed_beside::<P, M>(|machine, (cpu, tlb)| {
        P::switch_to(cpu, &machine.spaces[0], tlb);
        tlb.touch(0);
        tlb.poll::<P>(cpu);
        tlb.touch(1);
    });
}

/// A CPU is lazy, but still walks ahead.
fn lazing<P: Protocol, M: Mode<Tables> + Made>() {
    freed_beside::<P, M>(|machine, (cpu, tlb)| {
        P::switch_to(cpu, &machine.spaces[0], tlb);
        tlb.touch(0);
        P::enter_lazy(cpu);
        tlb.poll::<P>(cpu);
        tlb.speculate();
    });
}

explored! {
    p1_no_table_is_walked_after_a_serial_flush: Some(5) => walking::<Real, Serial>;
    p1_no_table_is_walked_after_a_concurrent_flush: Some(5) => walking::<Real, Concurrent>;
    p1_no_table_is_walked_after_an_inline_flush: Some(5) => walking::<Real, Inline>;
    p1_no_lazy_cpu_walks_a_freed_table: Some(5) => lazing::<Real, Inline>;
}

flush_mutants! {
    /// P1: the target acknowledges before it flushes, and walks through the table meanwhile.
    EarlyTables fails p1_early_acknowledgement_of_a_freed_table: walking::<EarlyTables, Inline>, "used after",
    is_early: true;

    /// P1: lazy CPUs are skipped although a table is freed.
    LazyTables fails p1_lazy_cpu_left_out_although_a_table_goes: lazing::<LazyTables, Inline>, "used after",
    spares_lazy: true;

    /// P1: only the page's translations are dropped, not the upper levels.
    LeavesOnly fails p1_upper_levels_kept: walking::<LeavesOnly, Inline>, "used after", keeps_tables: true;
}

mutants! {
    /// The batch has no room for more tables, and frees those that it has: the flush comes only
    /// afterwards (706a1ea65e).
    FoldedLate fails p1_tables_freed_when_the_batch_is_full: walking::<FoldedLate, Inline>, "used after", {
        fn free_table<M: Mode<Tables>>(
            cpu: &mut Cpu<'_>, batch: Batch<'_, Tables, (), 1>, mode: M, reach: &mut Reach<'_>, tlb: &mut ModelTlb<'_>,
        ) -> Freed {
            let freed = tlb.machine.free_table();
            Self::flush(cpu, batch, mode, reach, tlb);
            freed
        }
    }
}
