//! One stay in the guest: what is prepared before, VMRUN, and what is put in order afterwards.

use core::arch::asm;
use core::sync::atomic::Ordering;

use coherence::{CpuId, Scope};
use hostlink::counters::Counter;
use memslots::Gpa;

use super::entry::run_guest;
use crate::vm::increase;

use super::features::Features;
use super::invalidate::invalidate;
use super::vmcb::{CR4_PAE, CR4_PCIDE, clean, exit};
use crate::hyperv::eoi_assist::{ApicView, NO_EOI_REQUIRED, Settled};
use crate::tlb::{self, Why};
use crate::vm::Context;

impl Context<'_> {
    /// Enters the guest and comes back with an exit in the VMCB; or does not enter, because something has to be looked
    /// at first, and returns false.
    pub(crate) fn enter(&mut self) -> bool {
        if self.state.prepare_events().is_some() {
            self.count(Counter::IrqInjected);
        }
        self.offer_lazy_eoi();
        self.state.rax_to_vmcb();
        let assignment = self.workspace.asids.assign(&mut self.state.asid);
        let vmcb = &mut *self.state.vmcb;
        vmcb.asid = assignment.asid;
        vmcb.tlb_control = assignment.control as u8;
        if assignment.changed || !Features::get().clean_bits() {
            vmcb.clean_bits = 0;
        }
        let guest = core::ptr::from_mut(vmcb).addr() as u64;

        // From here to VMRUN interrupts are held: a kick that comes now ends guest mode at once.
        // SAFETY: SVM is on; IF = 1 with GIF = 0 takes no interrupt.
        unsafe { asm!("clgi", "sti", options(nomem, nostack)) };
        let Ok(in_guest) = self.owner.try_enter(CpuId(self.cpu.index)) else {
            open_interrupt_window();
            self.settle_lazy_eoi();
            // Not before: the entry that no request stops need not look for one twice.
            self.take_flush();
            return false;
        };
        // SAFETY: both VMCBs are complete, the registers are this vCPU's; the nested tables map its memory only.
        unsafe { run_guest(guest, &raw mut self.state.registers, self.cpu.arch.host_vmcb.get()) };
        in_guest.leave();
        if self.state.vmcb.exit_code as u32 != exit::INVALID as u32 {
            self.workspace.asids.executed(&mut self.state.asid, assignment);
        }
        open_interrupt_window();
        self.after_exit();
        true
    }

    /// Takes a flush that pends: carries it out, or has the next VMRUN do so.
    #[cold]
    pub(crate) fn take_flush(&mut self) {
        let Some(work) = self.owner.take_flush() else { return };
        increase(&self.counters[Counter::FlushTaken as usize], 1);
        let (asids, slot) = (&self.workspace.asids, &mut self.state.asid);
        let whole = match work.scope() {
            Scope::All => Some(Counter::FlushWhole),
            Scope::Ranges(ranges) => {
                let pages = ranges.iter().fold(0, |sum: u64, range| sum.saturating_add(range.pages));
                let target = tlb::Target {
                    asid: asids.resident(slot),
                    owes_flush: slot.owes_flush(),
                    pcid: self.state.vmcb.cr4 & CR4_PCIDE != 0,
                    pae: self.state.vmcb.cr4 & CR4_PAE != 0,
                    pieces: self.vm.space.has_pieces(),
                };
                match tlb::obey(pages, target, self.vm.guest.flush_cost.page_limit()) {
                    tlb::Work::Nothing => None,
                    tlb::Work::Whole(Why::Pcid) => Some(Counter::FlushWholePcid),
                    tlb::Work::Whole(Why::LegacyPaging) => Some(Counter::FlushWholeLegacy),
                    tlb::Work::Whole(Why::Pieces) => Some(Counter::FlushWholePieces),
                    tlb::Work::Whole(_) => Some(Counter::FlushWholeMerged),
                    tlb::Work::Pages { asid } => {
                        invalidate(ranges, asid);
                        increase(&self.counters[Counter::FlushRanges as usize], ranges.len() as u64);
                        increase(&self.counters[Counter::FlushPages as usize], pages);
                        None
                    }
                }
            }
        };
        if let Some(why) = whole {
            slot.owe_flush();
            increase(&self.counters[Counter::FlushWhole as usize], 1);
            if why != Counter::FlushWhole {
                increase(&self.counters[why as usize], 1);
            }
        }
        work.complete();
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

/// Takes the interrupts that have been held, and holds them again.
fn open_interrupt_window() {
    // SAFETY: handlers need nothing but the stack; no lock is held here.
    unsafe { asm!("stgi", "nop", "cli", options(nostack)) };
}
