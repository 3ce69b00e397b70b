//! What a CPU needs to run a vCPU, and what comes to a vCPU from outside: signals, vectors, timers.

use coherence::CpuId;
use coherence::asid::AsidAllocator;
use hostlink::counters::Counter;
use tlfs::InputPage;

use super::svm::features;
use super::svm::state::Activity;
use crate::arch::{Context, PerCpu};
use crate::devices::message::Trigger;
use crate::vm::increase;
use crate::vm::space::FlushScratch;

/// What a CPU needs besides its vCPU; allocated once.
pub(crate) struct Workspace {
    pub(crate) asids: AsidAllocator,
    pub(crate) scratch: FlushScratch,
    pub(crate) page: InputPage,
}

impl Workspace {
    /// For the calling CPU.
    pub(crate) fn new(cpu: &PerCpu) -> Self {
        Self {
            asids: features::asid_allocator(CpuId(cpu.index)),
            scratch: FlushScratch::new(),
            page: InputPage::new(),
        }
    }
}

impl Context<'_> {
    #[inline(always)] // Most often there is a vector or nothing, and little to do.
    pub(crate) fn take_signals(&mut self) {
        if self.vcpu.inbox.has_signals() {
            self.take_rare_signals();
        }
        self.vcpu.inbox.drain_vectors(&mut self.state.lapic);
    }

    /// INIT, start-up and NMI.
    #[inline(never)]
    fn take_rare_signals(&mut self) {
        let signals = self.vcpu.inbox.take_signals(&mut self.state.lapic);
        if signals.init {
            self.state.set_init_state();
            self.state.activity = Activity::WaitForStartup;
        }
        if let Some(page) = signals.startup
            && self.state.activity == Activity::WaitForStartup
        {
            self.state.start_up(page);
        }
        for _ in 0..signals.nmis {
            self.state.nmi.post();
        }
    }

    pub(crate) fn expire_timers(&mut self, now: u64) {
        let guest_now = now.wrapping_add(self.state.vmcb.tsc_offset);
        let mut expired = u64::from(self.state.lapic.expire(guest_now).is_some());
        if self.state.hyperv.next_deadline_tsc().is_some_and(|deadline| deadline <= now) {
            for vector in self.state.hyperv.expire(&self.vm.guest.partition, now) {
                self.state.lapic.accept_fixed(vector, Trigger::Edge);
                expired += 1;
            }
        }
        if expired != 0 {
            increase(&self.counters[Counter::IrqTimer as usize], expired);
        }
    }
}
