//! The operations that only a processor with SVM can do.

use core::num::NonZeroU32;
use paging::Amd64Nested;

#[cfg(any(test, feature = "audit"))]
use super::audit::CpuBooks;
use super::features::Features;
use super::vendor::OnSvm;
use super::vmcb::Vmcb;
use crate::vm::PerCpu;
use crate::x86::arch_impl::OnX86;
use crate::x86::processor::{Processor, Vendor, X86};
use crate::x86::vcpu::registers::Registers;

/// The operations that need an instruction of SVM.
///
/// `arch/x86_64` implements it on bare metal, and a mock processor in tests. Each operation acts on
/// the calling CPU, and is complete when it returns. Operations that must be called in a certain
/// order say so.
pub trait Svm: Processor {
    /// SVM features here. All CPUs are assumed to have the same.
    fn features() -> Features;

    /// Makes [`features`](Self::features) report clean bits and flushes of one ASID from now on. To
    /// be called before the first vCPU is created.
    fn pretend();

    /// Number of ASIDs that guests can have on each CPU.
    fn tags() -> NonZeroU32;
    /// Holds interrupts from here on; they end guest mode as soon as it begins.
    fn hold_interrupts();
    /// Takes the interrupts that were [held](Self::hold_interrupts).
    fn release_interrupts();

    /// VMRUN, including the registers that it does not switch. To be called between
    /// [`hold_interrupts`](Self::hold_interrupts) and
    /// [`release_interrupts`](Self::release_interrupts).
    ///
    /// # Safety
    ///
    /// The block is complete, the registers are this vCPU's, and the nested tables that the block
    /// names map only the guest's own memory.
    unsafe fn run(cpu: &PerCpu<Self>, vmcb: &mut Vmcb, registers: &mut Registers);

    /// INVLPGA: drops this CPU's translations of one page under `asid`, including global ones and
    /// those of a large page around it.
    fn invalidate_page(address: u64, asid: u32);

    /// The auditor's record of a CPU. Only that CPU calls it.
    #[cfg(any(test, feature = "audit"))]
    fn books(cpu: &PerCpu<Self>) -> &core::cell::RefCell<CpuBooks>;
}

/// AMD64 with SVM, as the code here sees it.
pub trait Amd64: Svm + Vendor<Nested = Amd64Nested> + X86<Block = Vmcb> {}

impl<P: 'static> Amd64 for OnX86<OnSvm<P>> where Self: Svm {}
