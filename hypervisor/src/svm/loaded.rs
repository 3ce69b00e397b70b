//! A processor with SVM that has a vCPU's state, as [`stay`] sees it.

use alloc::boxed::Box;
use coherence::CpuId;
use coherence::asid::{AsidSlot, TlbControl};
use core::sync::atomic::Ordering;
use stay::tagged::{self, Mode};
use stay::{Mistake, Mistakes};

use super::audit::auditor::Auditor;
use super::block::Own;
use super::nested::{InnerMaps, Nested};
use super::processor::Amd64;
use super::table::INVALID;
use super::vmcb::{Vmcb, clean};
use crate::vm::arch::Arch;
use crate::vm::defects::Defects;
use crate::vm::{PerCpu, Vm};
use crate::x86::vcpu::registers::{RAX, Registers};
use crate::x86::vcpu::state::VcpuState;
use crate::x86::{CR4_PAE, CR4_PCIDE};

pub(super) struct Loaded<'a, A: Arch> {
    vm: &'a Vm<A>,
    cpu: &'a PerCpu<A>,
    vmcb: &'a mut Vmcb,
    registers: &'a mut Registers,
    auditor: &'a mut Auditor,
    /// What a guest of the guest has of its own, if one runs.
    inner: Option<InnerMaps>,
    /// What the vCPU has for guests of its guest, unless one of them runs.
    nested: Option<&'a mut Option<Box<Nested>>>,
}

impl<'a, A: Arch> Loaded<'a, A> {
    /// With this vCPU's state; also returns its ASID slot.
    #[inline(always)]
    pub(super) fn of(
        vm: &'a Vm<A>,
        cpu: &'a PerCpu<A>,
        state: &'a mut VcpuState<Vmcb>,
    ) -> (Self, &'a mut AsidSlot) {
        let VcpuState { block: vmcb, registers, own: Own { asid, auditor, nested, .. }, .. } = state;
        (Self { vm, cpu, vmcb, registers, auditor, inner: None, nested: Some(nested) }, asid)
    }

    /// The same of the guest of its guest, if such a one runs.
    pub(super) fn of_inner(
        vm: &'a Vm<A>,
        cpu: &'a PerCpu<A>,
        state: &'a mut VcpuState<Vmcb>,
    ) -> Option<(Self, &'a mut AsidSlot)> {
        let VcpuState { block: vmcb, registers, own, .. } = state;
        let (asid, auditor, maps) = own.inner()?;
        Some((Self { vm, cpu, vmcb, registers, auditor, inner: Some(maps), nested: None }, asid))
    }
}

impl<A: Arch> Mistakes for Loaded<'_, A> {
    #[inline(always)]
    fn makes(&self, mistake: Mistake) -> bool {
        Defects.makes(mistake)
    }
}

impl<A: Amd64> tagged::Processor for Loaded<'_, A> {
    #[inline(always)]
    fn id(&self) -> CpuId {
        CpuId(self.cpu.index.0)
    }

    #[inline(always)]
    fn set_tag(&mut self, asid: u32, control: TlbControl, changed: bool) {
        self.vmcb.asid = asid;
        self.vmcb.tlb_control = control as u8;
        if changed || !A::features().clean_bits() {
            self.vmcb.clean_bits = 0;
        }
    }

    #[inline(always)]
    fn hold_interrupts(&mut self) {
        A::hold_interrupts();
    }

    #[inline(always)]
    fn run(&mut self) -> bool {
        self.vmcb.rax = self.registers.0[RAX];
        self.auditor.check(self.cpu, self.vm, self.vmcb, self.inner);
        // SAFETY: the block is complete, the registers are this vCPU's; the nested tables map its
        // memory only.
        unsafe { A::run(self.cpu, self.vmcb, self.registers) };
        let has_run = self.vmcb.exit_code as u32 != INVALID as u32;
        if has_run {
            self.auditor.note(self.cpu, self.vmcb);
        }
        self.registers.0[RAX] = self.vmcb.rax;
        self.cpu.last_exit.store(self.vmcb.exit_code, Ordering::Relaxed);
        self.vmcb.clean_bits = clean::ALL;
        self.vmcb.event_injection = 0;
        has_run
    }

    #[inline(always)]
    fn take_interrupts(&mut self) {
        A::release_interrupts();
    }

    fn invalidate_page(&mut self, address: u64, asid: u32) {
        A::invalidate_page(address, asid);
    }

    fn owe_nested_flush(&mut self) {
        if let Some(nested) = self.nested.as_deref_mut().and_then(Option::as_deref_mut) {
            nested.void_shadows();
        }
    }

    fn mode(&self) -> Mode {
        Mode {
            pcid: self.vmcb.cr4 & CR4_PCIDE != 0,
            pae: self.vmcb.cr4 & CR4_PAE != 0,
            pieces: self.vm.space.has_pieces(),
        }
    }
}
