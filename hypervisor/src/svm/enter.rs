//! One stay in the guest: preparation, VMRUN, and clean-up.

use core::sync::atomic::Ordering;

use coherence::CpuId;
use coherence::asid::{AsidSlot, Assignment};
use hostlink::counters::Counter;
use hostlink::trace::Event;
use memslots::Gpa;
use stay::amd64::{self, Mode, Taken, Why};
use stay::{Mistake, Mistakes};

use super::audit::auditor::Auditor;
use super::block::Own;
use super::processor::Amd64;
use super::table::INVALID;
use super::vmcb::{Vmcb, clean};
use crate::vm::files::Defects;
use crate::vm::{Context, PerCpu, Vm, increase};
use crate::x86::hyperv::eoi_assist::{ApicView, NO_EOI_REQUIRED, Settled};
use crate::x86::vcpu::registers::{RAX, Registers};
use crate::x86::vcpu::state::VcpuState;
use crate::x86::{CR4_PAE, CR4_PCIDE};

/// Enters the guest and returns true with an exit in the VMCB. Returns false without entering if
/// something must be checked first.
pub fn enter<A: Amd64>(context: &mut Context<'_, A>) -> bool {
    context.state.prepare_events::<A>();
    offer_lazy_eoi(context);
    context.state.block.rax = context.state.registers.0[RAX];
    let (mut processor, slot) = Loaded::of(context.vm, context.cpu, context.state);
    if !amd64::enter(&mut processor, &mut context.owner, &mut context.workspace.asids, slot) {
        context.state.withdraw_interrupt();
        settle_lazy_eoi(context);
        // Not earlier, so that the common entry without a request checks only once.
        take_flush(context);
        return false;
    }
    after_exit(context);
    true
}

/// Takes a pending flush: carries it out, or has the next VMRUN do so.
#[cold]
pub fn take_flush<A: Amd64>(context: &mut Context<'_, A>) {
    let (mut processor, slot) = Loaded::of(context.vm, context.cpu, context.state);
    let limit = context.vm.guest.flush_cost.page_limit();
    let (owner, asids) = (&mut context.owner, &context.workspace.asids);
    let Some(taken) = amd64::take_flush(&mut processor, owner, asids, slot, limit) else { return };
    context.count(Counter::FlushTaken);
    let is_whole = matches!(taken, Taken::Everything | Taken::Whole(_));
    if is_whole {
        context.state.own.auditor.take_flush();
    }
    let pages = if let Taken::Pages { pages, .. } = taken { pages } else { 0 };
    context.cpu.trace_with(Event::FlushTaken, context.vcpu.index, is_whole.into(), [pages, 0]);
    match taken {
        Taken::Nothing => {}
        Taken::Everything => context.count(Counter::FlushWhole),
        Taken::Whole(why) => {
            context.count(Counter::FlushWhole);
            context.count(match why {
                Why::Pcid => Counter::FlushWholePcid,
                Why::LegacyPaging => Counter::FlushWholeLegacy,
                Why::Pieces => Counter::FlushWholePieces,
                Why::ManyRanges | Why::ManyPages => Counter::FlushWholeMerged,
            });
        }
        Taken::Pages { ranges, pages } => {
            increase(&context.counters[Counter::FlushRanges as usize], ranges);
            increase(&context.counters[Counter::FlushPages as usize], pages);
        }
    }
}

fn after_exit<A: Amd64>(context: &mut Context<'_, A>) {
    let vmcb = &mut *context.state.block;
    context.cpu.last_exit.store(vmcb.exit_code, Ordering::Relaxed);
    vmcb.clean_bits = clean::ALL;
    vmcb.event_injection = 0;
    context.state.registers.0[RAX] = context.state.block.rax;
    if context.state.sync_interrupts() {
        context.count(Counter::IrqInjected);
    }
    context.state.recover_event();
    settle_lazy_eoi(context);
}

/// Tells the guest that it need not write the end-of-interrupt register, if that write would have
/// no further effect.
fn offer_lazy_eoi<A: Amd64>(context: &mut Context<'_, A>) {
    if !context.state.hyperv.has_assist_page() {
        return;
    }
    let lapic = &context.state.lapic;
    let Some(vector) = lapic.highest_isr() else { return };
    let nothing_follows = lapic.can_lazy_eoi(vector);
    let view = ApicView { in_service: Some(vector), level: false, pending: !nothing_follows };
    if let Some(gpa) = context.state.hyperv.arm_eoi(&view) {
        // If there is no memory, settling finds the field unreadable and withdraws the offer.
        let _ = context.vm.space.slots().memory().write_u32(Gpa(gpa), NO_EOI_REQUIRED);
    }
}

/// Checks whether the guest has used the offer, and withdraws it.
#[inline]
fn settle_lazy_eoi<A: Amd64>(context: &mut Context<'_, A>) {
    if let Some(gpa) = context.state.hyperv.armed_eoi() {
        settle_offer(context, gpa);
    }
}

#[inline(never)] // Kept apart from the exits without an offer, which are most.
fn settle_offer<A: Amd64>(context: &mut Context<'_, A>, gpa: u64) {
    let memory = context.vm.space.slots().memory();
    let field = memory.read_u32(Gpa(gpa)).unwrap_or(NO_EOI_REQUIRED);
    match context.state.hyperv.settle_eoi(field) {
        Some(Settled::Ended(_)) => {
            // It was edge-triggered, so no device waits for its end.
            let _nothing_follows = context.state.lapic.eoi();
        }
        Some(Settled::Withdrawn) => {
            let _ = memory.write_u32(Gpa(gpa), 0);
        }
        None => {}
    }
}

/// The processor loaded with a vCPU's state.
struct Loaded<'a, A: Amd64> {
    vm: &'a Vm<A>,
    cpu: &'a PerCpu<A>,
    vmcb: &'a mut Vmcb,
    registers: &'a mut Registers,
    auditor: &'a mut Auditor,
}

impl<'a, A: Amd64> Loaded<'a, A> {
    /// With this vCPU's state; also returns its ASID slot.
    #[inline(always)]
    fn of(vm: &'a Vm<A>, cpu: &'a PerCpu<A>, state: &'a mut VcpuState<Vmcb>) -> (Self, &'a mut AsidSlot) {
        let VcpuState { block: vmcb, registers, own: Own { asid, auditor, .. }, .. } = state;
        (Self { vm, cpu, vmcb, registers, auditor }, asid)
    }
}

impl<A: Amd64> Mistakes for Loaded<'_, A> {
    #[inline(always)]
    fn makes(&self, mistake: Mistake) -> bool {
        Defects.makes(mistake)
    }
}

impl<A: Amd64> amd64::Processor for Loaded<'_, A> {
    #[inline(always)]
    fn id(&self) -> CpuId {
        CpuId(self.cpu.index)
    }

    #[inline(always)]
    fn set_tag(&mut self, assignment: &Assignment) {
        self.vmcb.asid = assignment.asid;
        self.vmcb.tlb_control = assignment.control as u8;
        if assignment.changed || !A::features().clean_bits() {
            self.vmcb.clean_bits = 0;
        }
    }

    #[inline(always)]
    fn hold_interrupts(&mut self) {
        A::hold_interrupts();
    }

    #[inline(always)]
    fn run(&mut self) -> bool {
        self.auditor.check(self.cpu, self.vm, self.vmcb);
        // SAFETY: the block is complete, the registers are this vCPU's; the nested tables map its
        // memory only.
        unsafe { A::run(self.cpu, self.vmcb, self.registers) };
        let has_run = self.vmcb.exit_code as u32 != INVALID as u32;
        if has_run {
            self.auditor.note(self.cpu, self.vmcb);
        }
        has_run
    }

    #[inline(always)]
    fn take_interrupts(&mut self) {
        A::release_interrupts();
    }

    fn invalidate_page(&mut self, address: u64, asid: u32) {
        A::invalidate_page(address, asid);
    }

    fn mode(&self) -> Mode {
        Mode {
            pcid: self.vmcb.cr4 & CR4_PCIDE != 0,
            pae: self.vmcb.cr4 & CR4_PAE != 0,
            pieces: self.vm.space.has_pieces(),
        }
    }
}
