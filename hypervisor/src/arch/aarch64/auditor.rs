//! The auditor of a vCPU's entries, in an image that has one; in the others it is nothing.

use crate::arch::{Machine, PerCpu};
#[cfg(feature = "audit")]
use crate::arm64::audit::VcpuBooks;

/// What it knows of a vCPU.
#[derive(Clone, Copy)]
pub(crate) struct Auditor {
    #[cfg(feature = "audit")]
    books: VcpuBooks,
}

#[cfg(feature = "audit")]
impl Auditor {
    /// Of a vCPU that has never run. If `reaches_all`, what it invalidates for its own processor is broadcast.
    pub(crate) const fn new(index: u32, reaches_all: bool) -> Self {
        Self { books: VcpuBooks::new(index, reaches_all) }
    }

    /// Right before ERET.
    pub(crate) fn check(&self, cpu: &PerCpu, vm: &Machine) {
        let (is, should) = (super::sysreg::read!("vttbr_el2"), vm.guest.current_vttbr());
        if let Err(finding) = self.books.check(&cpu.arch.books.borrow(), is, should) {
            panic!("audit: {finding}");
        }
    }

    /// Right after it.
    pub(crate) fn note(&mut self, cpu: &PerCpu) {
        self.books.note(&mut cpu.arch.books.borrow_mut(), super::sysreg::read!("vttbr_el2"));
    }

    /// This CPU has dropped what it held of stage 1.
    pub(crate) fn drop_local() {
        PerCpu::current().arch.books.borrow_mut().drop_local();
    }
}

#[cfg(not(feature = "audit"))]
impl Auditor {
    pub(crate) const fn new(_: u32, _: bool) -> Self {
        Self {}
    }

    #[inline(always)]
    pub(crate) const fn check(&self, _: &PerCpu, _: &Machine) {}

    #[inline(always)]
    pub(crate) const fn note(&mut self, _: &PerCpu) {}

    #[inline(always)]
    pub(crate) const fn drop_local() {}
}
