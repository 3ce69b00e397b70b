//! One stay in the guest: preparation, entry, and clean-up.

use hostlink::counters::Counter;
use hostlink::trace::Event;
use memslots::Gpa;
use stay::tagged::{self, Taken, Why};

use super::hyperv::eoi_assist::{ApicView, NO_EOI_REQUIRED, Settled};
use super::processor::{Vendor, X86};
use super::vcpu::block::ControlBlock;
use crate::vm::{Context, increase};

/// Enters the guest and returns true with an exit in the control block. Returns false without
/// entering if something must be checked first.
pub fn enter<A: X86>(context: &mut Context<'_, A>) -> bool {
    if let Some(has_entered) = A::enter_inner(context) {
        return has_entered;
    }
    if context.state.block.hand_over(&mut context.state.lapic) {
        context.count(Counter::IrqInjected);
    }
    context.state.prepare_events::<A>();
    offer_lazy_eoi(context);
    let has_entered = {
        let (mut processor, slot) = A::loaded(context.vm, context.cpu, context.state);
        #[cfg(feature = "defects")]
        let mut processor = tagged::Mistaken::new(&mut processor);
        tagged::enter(&mut processor, &mut context.owner, &mut context.workspace.asids, slot)
    };
    if !has_entered {
        context.state.withdraw_interrupt();
        settle_lazy_eoi(context);
        // Not earlier, so that the common entry without a request checks only once.
        take_flush(context);
        return false;
    }
    after_exit(context);
    true
}

/// Takes a pending flush: carries it out, or has the next entry do so.
#[cold]
pub fn take_flush<A: X86>(context: &mut Context<'_, A>) {
    let limit = context.vm.guest.flush_cost.page_limit();
    let (owner, asids) = (&mut context.owner, &context.workspace.asids);
    let taken = {
        let (mut processor, slot) = A::loaded(context.vm, context.cpu, context.state);
        #[cfg(feature = "defects")]
        let mut processor = tagged::Mistaken::new(&mut processor);
        tagged::take_flush(&mut processor, owner, asids, slot, limit)
    };
    let Some(taken) = taken else { return };
    A::owe_inner(context);
    context.count(Counter::FlushTaken);
    let is_whole = matches!(taken, Taken::Everything | Taken::Whole(_));
    if is_whole {
        <A as Vendor>::Block::note_flush(&mut context.state.own);
    }
    let pages = if let Taken::Pages { pages, .. } = taken { pages } else { 0 };
    context.cpu.trace_with(Event::FlushTaken, context.vcpu.row, is_whole.into(), [pages, 0]);
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

/// The exit has ended the stay: takes over what it has changed of interrupts, and the event that it
/// has cut short.
pub(crate) fn after_exit<A: X86>(context: &mut Context<'_, A>) {
    if context.state.sync_interrupts() {
        context.count(Counter::IrqInjected);
    }
    context.state.recover_event();
    settle_lazy_eoi(context);
}

/// Tells the guest that it need not write the end-of-interrupt register, if that write would have
/// no further effect.
fn offer_lazy_eoi<A: X86>(context: &mut Context<'_, A>) {
    if context.state.hyperv.assist_page().is_none() {
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
fn settle_lazy_eoi<A: X86>(context: &mut Context<'_, A>) {
    if let Some(gpa) = context.state.hyperv.armed_eoi() {
        settle_offer(context, gpa);
    }
}

#[inline(never)] // Kept apart from the exits without an offer, which are most.
fn settle_offer<A: X86>(context: &mut Context<'_, A>, gpa: u64) {
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
