//! The operations that scenarios use, so that a mutant can break one of them.

use crate::shootdown::batch::Kind;
use crate::shootdown::model::machine::{Cpu, Freed, ModelTlb, Reach};
use crate::shootdown::{AddressSpace, Batch, Mode, Tables};

/// The operations that CPUs carry out. Provided methods are the real ones.
pub(super) trait Protocol: 'static {
    fn switch_to<'m>(cpu: &mut Cpu<'m>, space: &'m AddressSpace<1>, tlb: &mut ModelTlb<'_>) {
        cpu.switch_to(space, tlb);
    }

    fn enter_lazy(cpu: &mut Cpu<'_>) {
        cpu.enter_lazy();
    }

    fn leave_lazy(cpu: &mut Cpu<'_>, tlb: &mut ModelTlb<'_>) {
        cpu.leave_lazy(tlb);
    }

    fn serve(cpu: &mut Cpu<'_>, tlb: &mut ModelTlb<'_>) {
        cpu.serve(tlb);
    }

    fn flush<K: Kind, M: Mode<K>>(
        cpu: &mut Cpu<'_>,
        batch: Batch<'_, K, (), 1>,
        mode: M,
        reach: &mut Reach<'_>,
        tlb: &mut ModelTlb<'_>,
    ) {
        assert!(cpu.flush(batch, mode, reach, tlb).is_ok(), "the model never gives up");
    }

    /// Flushes a batch that has no room for more tables, and frees the one it has.
    fn free_table<M: Mode<Tables>>(
        cpu: &mut Cpu<'_>,
        batch: Batch<'_, Tables, (), 1>,
        mode: M,
        reach: &mut Reach<'_>,
        tlb: &mut ModelTlb<'_>,
    ) -> Freed {
        Self::flush(cpu, batch, mode, reach, tlb);
        tlb.machine.free_table()
    }
}

/// The protocol as it is.
pub(super) struct Real;

impl Protocol for Real {}
