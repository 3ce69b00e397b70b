//! A CPU's workspace to run a vCPU, and a vCPU's external events: signals, vectors, timers.

use coherence::CpuId;
use coherence::asid::AsidAllocator;
use core::sync::atomic::Ordering;
use hostlink::counters::Counter;
use tlfs::InputPage;

use super::block::{ControlBlock, Inner};
use super::state::{Activity, VcpuState};
use crate::devices::pc::inbox::{Drained, Inbox, Signals};
use crate::devices::pc::message::Trigger;
use crate::vm::space::FlushScratch;
use crate::vm::{Context, PerCpu, increase};
use crate::x86::processor::X86;

/// A CPU's workspace in addition to its vCPU; allocated once.
pub struct Workspace {
    /// The CPU's address space tags.
    pub asids: AsidAllocator,
    /// Records the targets that a flush waits for.
    pub scratch: FlushScratch,
    /// Buffer for a hypercall's input.
    pub page: InputPage,
}

impl Workspace {
    /// For the calling CPU.
    pub fn new<A: X86>(cpu: &PerCpu<A>) -> Self {
        Self { asids: A::tags(CpuId(cpu.index.0)), scratch: FlushScratch::new(), page: InputPage::new() }
    }
}

/// Takes the posted items: interrupts, INIT, start-up and NMI.
#[inline(always)] // Usually there is a vector or nothing, and little to do.
pub fn take_signals<A: X86>(context: &mut Context<'_, A>) {
    // Relaxed: the notify word orders it.
    if context.vm.guest.has_messages.load(Ordering::Relaxed) {
        context.vm.spread_messages();
    }
    if let Some(drained) = context.vcpu.inbox.take_vectors(&mut context.state.lapic, A::takes_posted()) {
        take_rare_signals(context, drained);
    }
}

/// INIT, start-up, NMI, and vectors with signals.
#[inline(never)]
fn take_rare_signals<A: X86>(context: &mut Context<'_, A>, drained: Drained) {
    if context.state.take_signals(&context.vcpu.inbox, drained) {
        context.vm.readdressed();
    }
}

impl<B: ControlBlock> VcpuState<B> {
    /// The same, for a vCPU's owner; returns whether its local APIC may have another address.
    pub(super) fn take_signals(&mut self, inbox: &Inbox, drained: Drained) -> bool {
        let holds = self.own.holds_init();
        let signals = inbox.take_signals(&mut self.lapic, drained, holds);
        let signals = if holds { self.own.hold(signals) } else { signals };
        self.act_on(signals)
    }

    /// INIT acts, if it was held and is no longer. Returns whether it does.
    #[cold]
    pub fn release_init(&mut self, inbox: &Inbox) -> bool {
        let Some(held) = self.own.release_init() else { return false };
        inbox.init(&mut self.lapic);
        self.act_on(held)
    }

    fn act_on(&mut self, signals: Signals) -> bool {
        if signals.init {
            self.set_init_state();
            self.activity = Activity::WaitForStartup;
        }
        if let Some(page) = signals.startup
            && self.activity == Activity::WaitForStartup
        {
            self.start_up(page);
        }
        for _ in 0..signals.nmis {
            self.nmi.post();
        }
        signals.init
    }
}

/// Passes on the lines of the clock and of its event. This vCPU, which has set the clock or waited
/// for it, looks again when it is due next.
pub fn ring<A: X86>(context: &mut Context<'_, A>) {
    let vm = context.vm;
    let (messages, due) = vm.guest.platform.lock().ring(vm.wall_ns());
    context.state.alarm = due.map_or(u64::MAX, |due| vm.wall_ticks(due));
    for message in messages.into_iter().flatten() {
        vm.deliver(message, context.state.lapic.apic_id());
    }
}

/// A timer of the vCPU, or the clock for which it waits, has expired.
pub fn expire_timers<A: X86>(context: &mut Context<'_, A>, now: u64) {
    if context.state.alarm <= now {
        ring(context);
    }
    let guest_now = now.wrapping_add(context.state.tsc_offset());
    let mut expired = u64::from(context.state.lapic.expire(guest_now).is_some());
    if context.state.hyperv.next_deadline_tsc().is_some_and(|deadline| deadline <= now) {
        for vector in context.state.hyperv.expire(&context.vm.guest.partition, now) {
            context.state.lapic.accept_fixed(vector, Trigger::Edge);
            expired += 1;
        }
    }
    if expired != 0 {
        increase(&context.counters[Counter::IrqTimer as usize], expired);
    }
}
