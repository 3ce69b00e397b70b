//! The auditor of a vCPU's entries; a no-op in images without one.

#[cfg(feature = "audit")]
use coherence::tlbi::Stage2Tlb;

#[cfg(feature = "audit")]
use super::audit::VcpuBooks;
use super::processor::{Arm64, Processor};
use crate::vm::{PerCpu, Vm};

/// The auditor's record of a vCPU.
#[derive(Clone, Copy)]
pub struct Auditor {
    #[cfg(feature = "audit")]
    books: VcpuBooks,
}

#[cfg(feature = "audit")]
impl Auditor {
    /// For a vCPU that has never run. If `reaches_all`, its local invalidations are broadcast.
    pub const fn new(index: u32, reaches_all: bool) -> Self {
        Self { books: VcpuBooks::new(index, reaches_all) }
    }

    /// Called right before ERET.
    pub fn check<A: Arm64>(&self, cpu: &PerCpu<A>, vm: &Vm<A>) {
        let (is, should) = (A::TLB.vttbr(), vm.guest.current_vttbr());
        if let Err(finding) = self.books.check(&cpu.arch.books.borrow(), is, should) {
            panic!("audit: {finding}");
        }
    }

    /// Called right after the exit.
    pub fn note<A: Arm64>(&mut self, cpu: &PerCpu<A>) {
        self.books.note(&mut cpu.arch.books.borrow_mut(), A::TLB.vttbr());
    }

    /// Notes that this CPU has dropped its stage-1 translations.
    pub fn drop_local<P: Processor>() {
        P::this_cpu().arch.books.borrow_mut().drop_local();
    }
}

#[cfg(not(feature = "audit"))]
impl Auditor {
    /// An auditor that does nothing.
    #[must_use]
    pub const fn new(_: u32, _: bool) -> Self {
        Self {}
    }

    /// A no-op.
    #[inline(always)]
    pub const fn check<A: Arm64>(&self, _: &PerCpu<A>, _: &Vm<A>) {}

    /// A no-op.
    #[inline(always)]
    pub const fn note<A: Arm64>(&mut self, _: &PerCpu<A>) {}

    /// A no-op.
    #[inline(always)]
    pub const fn drop_local<P: Processor>() {}
}
