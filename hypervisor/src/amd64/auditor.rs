//! The auditor of a vCPU's entries; a no-op in images without one.

#[cfg(feature = "audit")]
use super::audit::{VcpuBooks, Words};
use super::processor::Amd64;
use super::vmcb::Vmcb;
use crate::vm::PerCpu;

/// The auditor's record of a vCPU.
pub struct Auditor {
    #[cfg(feature = "audit")]
    books: VcpuBooks,
}

#[cfg(feature = "audit")]
impl Auditor {
    /// For a vCPU that has never run.
    pub fn new(index: u32) -> Self {
        Self { books: VcpuBooks::new(index) }
    }

    /// The vCPU has taken a flush of everything.
    pub fn take_flush(&mut self) {
        self.books.take_flush();
    }

    /// Called right before VMRUN.
    pub fn check<A: Amd64>(&self, cpu: &PerCpu<A>, vmcb: &Vmcb) {
        if let Err(finding) = self.books.check(&A::books(cpu).borrow(), cpu.index, words(vmcb)) {
            panic!("audit: {finding}");
        }
    }

    /// Called right after VMRUN, if the guest has run.
    pub fn note<A: Amd64>(&mut self, cpu: &PerCpu<A>, vmcb: &Vmcb) {
        self.books.note(&mut A::books(cpu).borrow_mut(), cpu.index, words(vmcb));
    }
}

#[cfg(not(feature = "audit"))]
impl Auditor {
    /// For a vCPU.
    #[must_use]
    pub const fn new(_: u32) -> Self {
        Self {}
    }

    /// A no-op.
    #[inline(always)]
    pub const fn take_flush(&mut self) {}

    /// A no-op.
    #[inline(always)]
    pub const fn check<A: Amd64>(&self, _: &PerCpu<A>, _: &Vmcb) {}

    /// A no-op.
    #[inline(always)]
    pub const fn note<A: Amd64>(&mut self, _: &PerCpu<A>, _: &Vmcb) {}
}

#[cfg(feature = "audit")]
fn words(vmcb: &Vmcb) -> &Words {
    const { assert!(size_of::<Vmcb>() == size_of::<Words>()) };
    // SAFETY: the block has the same size and a larger alignment, and consists of integers without
    // gaps. It is not written to while the guest does not run.
    unsafe { &*core::ptr::from_ref(vmcb).cast() }
}
