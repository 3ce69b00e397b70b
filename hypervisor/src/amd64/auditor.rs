//! The auditor of a vCPU's entries, in an image that has one; in the others it is nothing.

#[cfg(feature = "audit")]
use super::audit::{VcpuBooks, Words};
use super::processor::Amd64;
use super::vmcb::Vmcb;
use crate::vm::PerCpu;

/// What it knows of a vCPU.
pub struct Auditor {
    #[cfg(feature = "audit")]
    books: VcpuBooks,
}

#[cfg(feature = "audit")]
impl Auditor {
    /// Of a vCPU that has never run.
    pub fn new(index: u32) -> Self {
        Self { books: VcpuBooks::new(index) }
    }

    /// The vCPU has taken a flush of everything.
    pub fn take_flush(&mut self) {
        self.books.take_flush();
    }

    /// Right before VMRUN.
    pub fn check<A: Amd64>(&self, cpu: &PerCpu<A>, vmcb: &Vmcb) {
        if let Err(finding) = self.books.check(&A::books(cpu).borrow(), cpu.index, words(vmcb)) {
            panic!("audit: {finding}");
        }
    }

    /// Right after it, if the guest has run.
    pub fn note<A: Amd64>(&mut self, cpu: &PerCpu<A>, vmcb: &Vmcb) {
        self.books.note(&mut A::books(cpu).borrow_mut(), cpu.index, words(vmcb));
    }
}

#[cfg(not(feature = "audit"))]
impl Auditor {
    /// Of a vCPU.
    #[must_use]
    pub const fn new(_: u32) -> Self {
        Self {}
    }

    /// Nothing.
    #[inline(always)]
    pub const fn take_flush(&mut self) {}

    /// Nothing.
    #[inline(always)]
    pub const fn check<A: Amd64>(&self, _: &PerCpu<A>, _: &Vmcb) {}

    /// Nothing.
    #[inline(always)]
    pub const fn note<A: Amd64>(&mut self, _: &PerCpu<A>, _: &Vmcb) {}
}

#[cfg(feature = "audit")]
fn words(vmcb: &Vmcb) -> &Words {
    const { assert!(size_of::<Vmcb>() == size_of::<Words>()) };
    // SAFETY: the block is as large, is aligned for more, and consists of integers without a gap.
    // Nobody writes to it while the guest does not run.
    unsafe { &*core::ptr::from_ref(vmcb).cast() }
}
