//! The auditor of a vCPU's entries, in an image that has one; in the others it is nothing.

use super::vmcb::Vmcb;
#[cfg(feature = "audit")]
use crate::amd64::audit::{VcpuBooks, Words};
use crate::arch::PerCpu;

/// What it knows of a vCPU.
pub(crate) struct Auditor {
    #[cfg(feature = "audit")]
    books: VcpuBooks,
}

#[cfg(feature = "audit")]
impl Auditor {
    /// Of a vCPU that has never run.
    pub(crate) fn new(index: u32) -> Self {
        Self { books: VcpuBooks::new(index) }
    }

    /// The vCPU has taken a flush of everything.
    pub(crate) fn take_flush(&mut self) {
        self.books.take_flush();
    }

    /// Right before VMRUN.
    pub(crate) fn check(&self, cpu: &PerCpu, vmcb: &Vmcb) {
        if let Err(finding) = self.books.check(&cpu.arch.books.borrow(), cpu.index, words(vmcb)) {
            panic!("audit: {finding}");
        }
    }

    /// Right after it, if the guest has run.
    pub(crate) fn note(&mut self, cpu: &PerCpu, vmcb: &Vmcb) {
        self.books.note(&mut cpu.arch.books.borrow_mut(), cpu.index, words(vmcb));
    }
}

#[cfg(not(feature = "audit"))]
impl Auditor {
    pub(crate) const fn new(_: u32) -> Self {
        Self {}
    }

    #[inline(always)]
    pub(crate) const fn take_flush(&mut self) {}

    #[inline(always)]
    pub(crate) const fn check(&self, _: &PerCpu, _: &Vmcb) {}

    #[inline(always)]
    pub(crate) const fn note(&mut self, _: &PerCpu, _: &Vmcb) {}
}

#[cfg(feature = "audit")]
fn words(vmcb: &Vmcb) -> &Words {
    const { assert!(size_of::<Vmcb>() == size_of::<Words>()) };
    // SAFETY: the block is as large, is aligned for more, and consists of integers without a gap. Nobody writes to it while the guest
    // does not run.
    unsafe { &*core::ptr::from_ref(vmcb).cast() }
}
