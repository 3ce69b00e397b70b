//! One stay in the guest: what is prepared before, VMRUN, and what is put in order afterwards.

use core::arch::asm;
use core::sync::atomic::Ordering;

use coherence::CpuId;
use coherence::asid::{AsidSlot, Assignment};
use hostlink::counters::Counter;
use memslots::Gpa;
use stay::amd64::{self, Mode, Taken, Why};
use stay::{Mistake, Mistakes};

use super::auditor::Auditor;
use super::entry::{Registers, run_guest};
use super::features::Features;
use super::invalidate::invalidate_page;
use super::state::VcpuState;
use super::vmcb::{CR4_PAE, CR4_PCIDE, Vmcb, clean, exit};
use crate::arch::{Context, Machine, PerCpu};
use crate::hyperv::eoi_assist::{ApicView, NO_EOI_REQUIRED, Settled};
use crate::vm::files::Defects;
use crate::vm::increase;

impl Context<'_> {
    /// Enters the guest and comes back with an exit in the VMCB; or does not enter, because something has to be looked
    /// at first, and returns false.
    pub(crate) fn enter(&mut self) -> bool {
        if self.state.prepare_events().is_some() {
            self.count(Counter::IrqInjected);
        }
        self.offer_lazy_eoi();
        self.state.rax_to_vmcb();
        let (mut processor, slot) = Svm::of(self.vm, self.cpu, self.state);
        if !amd64::enter(&mut processor, &mut self.owner, &mut self.workspace.asids, slot) {
            self.settle_lazy_eoi();
            // Not before: the entry that no request stops need not look for one twice.
            self.take_flush();
            return false;
        }
        self.after_exit();
        true
    }

    /// Takes a flush that pends: carries it out, or has the next VMRUN do so.
    #[cold]
    pub(crate) fn take_flush(&mut self) {
        let (mut processor, slot) = Svm::of(self.vm, self.cpu, self.state);
        let limit = self.vm.guest.flush_cost.page_limit();
        let (owner, asids) = (&mut self.owner, &self.workspace.asids);
        let Some(taken) = amd64::take_flush(&mut processor, owner, asids, slot, limit) else { return };
        self.count(Counter::FlushTaken);
        if matches!(taken, Taken::Everything | Taken::Whole(_)) {
            self.state.auditor.take_flush();
        }
        match taken {
            Taken::Nothing => {}
            Taken::Everything => self.count(Counter::FlushWhole),
            Taken::Whole(why) => {
                self.count(Counter::FlushWhole);
                self.count(match why {
                    Why::Pcid => Counter::FlushWholePcid,
                    Why::LegacyPaging => Counter::FlushWholeLegacy,
                    Why::Pieces => Counter::FlushWholePieces,
                    Why::ManyRanges | Why::ManyPages => Counter::FlushWholeMerged,
                });
            }
            Taken::Pages { ranges, pages } => {
                increase(&self.counters[Counter::FlushRanges as usize], ranges);
                increase(&self.counters[Counter::FlushPages as usize], pages);
            }
        }
    }

    fn after_exit(&mut self) {
        let vmcb = &mut *self.state.vmcb;
        self.cpu.last_exit.store(vmcb.exit_code, Ordering::Relaxed);
        vmcb.clean_bits = clean::ALL;
        vmcb.event_injection = 0;
        self.state.rax_from_vmcb();
        self.state.sync_tpr();
        self.state.recover_event();
        self.settle_lazy_eoi();
    }

    /// Tells the guest that it need not write the end-of-interrupt register, where nothing would follow from it.
    fn offer_lazy_eoi(&mut self) {
        if !self.state.hyperv.has_assist_page() {
            return;
        }
        let lapic = &self.state.lapic;
        let Some(vector) = lapic.highest_isr() else { return };
        let nothing_follows = lapic.can_lazy_eoi(vector);
        let view = ApicView { in_service: Some(vector), level: false, pending: !nothing_follows };
        if let Some(gpa) = self.state.hyperv.arm_eoi(&view) {
            // If there is no memory, settling finds the field unreadable and takes the offer back.
            let _ = self.vm.space.slots().memory().write_u32(Gpa(gpa), NO_EOI_REQUIRED);
        }
    }

    /// Finds out whether the guest has made use of the offer, and withdraws it.
    #[inline]
    fn settle_lazy_eoi(&mut self) {
        if let Some(gpa) = self.state.hyperv.armed_eoi() {
            self.settle_offer(gpa);
        }
    }

    #[inline(never)] // Apart from the exits without an offer, which are most.
    fn settle_offer(&mut self, gpa: u64) {
        let memory = self.vm.space.slots().memory();
        let field = memory.read_u32(Gpa(gpa)).unwrap_or(NO_EOI_REQUIRED);
        match self.state.hyperv.settle_eoi(field) {
            Some(Settled::Ended(_)) => {
                // It was edge-triggered, so nobody else waits for the end.
                let _nothing_follows = self.state.lapic.eoi();
            }
            Some(Settled::Withdrawn) => {
                let _ = memory.write_u32(Gpa(gpa), 0);
            }
            None => {}
        }
    }
}

/// The processor with a vCPU's state.
struct Svm<'a> {
    vm: &'a Machine,
    cpu: &'a PerCpu,
    vmcb: &'a mut Vmcb,
    registers: &'a mut Registers,
    auditor: &'a mut Auditor,
}

impl<'a> Svm<'a> {
    /// With this vCPU's state; and its tag.
    #[inline(always)]
    fn of(vm: &'a Machine, cpu: &'a PerCpu, state: &'a mut VcpuState) -> (Self, &'a mut AsidSlot) {
        let VcpuState { vmcb, registers, asid, auditor, .. } = state;
        (Self { vm, cpu, vmcb, registers, auditor }, asid)
    }
}

impl Mistakes for Svm<'_> {
    #[inline(always)]
    fn makes(&self, mistake: Mistake) -> bool {
        Defects.makes(mistake)
    }
}

impl amd64::Processor for Svm<'_> {
    #[inline(always)]
    fn id(&self) -> CpuId {
        CpuId(self.cpu.index)
    }

    #[inline(always)]
    fn set_tag(&mut self, assignment: &Assignment) {
        self.vmcb.asid = assignment.asid;
        self.vmcb.tlb_control = assignment.control as u8;
        if assignment.changed || !Features::get().clean_bits() {
            self.vmcb.clean_bits = 0;
        }
    }

    #[inline(always)]
    fn hold_interrupts(&mut self) {
        // SAFETY: SVM is on; IF = 1 with GIF = 0 takes no interrupt.
        unsafe { asm!("clgi", "sti", options(nomem, nostack)) };
    }

    #[inline(always)]
    fn run(&mut self) -> bool {
        self.auditor.check(self.cpu, self.vmcb);
        let guest = core::ptr::from_mut(self.vmcb).expose_provenance() as u64;
        // SAFETY: both VMCBs are complete, the registers are this vCPU's; the nested tables map its memory only.
        unsafe { run_guest(guest, &raw mut *self.registers, self.cpu.arch.host_vmcb.get()) };
        let has_run = self.vmcb.exit_code as u32 != exit::INVALID as u32;
        if has_run {
            self.auditor.note(self.cpu, self.vmcb);
        }
        has_run
    }

    #[inline(always)]
    fn take_interrupts(&mut self) {
        // SAFETY: handlers need nothing but the stack; no lock is held here.
        unsafe { asm!("stgi", "nop", "cli", options(nostack)) };
    }

    fn invalidate_page(&mut self, address: u64, asid: u32) {
        invalidate_page(address, asid);
    }

    fn mode(&self) -> Mode {
        Mode {
            pcid: self.vmcb.cr4 & CR4_PCIDE != 0,
            pae: self.vmcb.cr4 & CR4_PAE != 0,
            pieces: self.vm.space.has_pieces(),
        }
    }
}
