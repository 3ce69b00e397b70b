//! Services for hypercalls: flushes through the flush engine, interrupts to several vCPUs.

use coherence::{CpuId, FlushOutcome, Hardware, Members, Scope};
use core::marker::PhantomData;
use core::ops::ControlFlow;
use core::sync::atomic::{AtomicU32, Ordering};
use hostlink::counters::Counter;
use hostlink::defect::Defect;
use hostlink::trace::Event;
use memslots::{Gpa, Memslots};
use paging::Invalidation;
use stay::tagged::{self, Asked, Initiator, Why};
use stay::{Mistake, Mistakes};
use tlfs::{ClusterIpi, FlushCall, InputError, InputSource, XMM_WORDS};

use crate::sched::{CpuIndex, VcpuIndex};
use crate::vm::counting::{self, CounterRow};
use crate::vm::defects::{Defects, makes};
use crate::vm::space::FlushScratch;
use crate::vm::{Vm, end, host, percpu, trace};
use crate::x86::hyperv::{PartitionTraits, Services};
use crate::x86::processor::X86;

/// Number of wait iterations for a CPU to leave guest mode before the machine is declared broken:
/// seconds, where a kick takes microseconds.
const WAIT_TURNS_MAX: u64 = 1 << 32;

/// Number of wait iterations after which a kick is considered lost, and sent again.
const REKICK_TURNS: u64 = 1 << 14;

/// The services available to the calling vCPU.
pub struct CallServices<'a, A: X86> {
    vm: &'a Vm<A>,
    caller: Caller<'a, A>,
    /// Records the targets that the flush waits for.
    scratch: &'a mut FlushScratch,
}

impl<'a, A: X86> CallServices<'a, A> {
    /// For the vCPU in `row`, which has these counters.
    #[inline(always)]
    pub fn new(
        vm: &'a Vm<A>,
        row: VcpuIndex,
        counters: &'a CounterRow,
        scratch: &'a mut FlushScratch,
    ) -> Self {
        Self { vm, caller: Caller(counters, row, PhantomData), scratch }
    }

    /// Flushes all that any vCPU of the guest has of the guest's translations, and of its guests'.
    #[cold]
    pub fn flush_all(self) {
        self.caller.count(Counter::InnerDirect, 1);
        if makes(Defect::DirectFlushIgnored) {
            return;
        }
        let named = tagged::Named::new(&tlfs::Targets::All, self.vm.vcpus.len());
        let flushed = coherence::flush(self.vm, &named, Scope::All, self.scratch, &self.caller);
        let _outcome = flushed.unwrap_or_else(|stalled| end::end_stalled_run::<A>(&stalled));
    }

    /// Flushes the guest's own translations, and those that come from its nested tables.
    #[cold]
    pub fn flush_guest_physical(self) {
        self.caller.count(Counter::InnerCalls, 1);
        if makes(Defect::InnerCallIgnored) {
            return;
        }
        let _receipt = self.vm.flush_space(Invalidation::Nothing, self.scratch);
    }
}

/// Kicks by IPI.
#[derive(Clone, Copy, Debug)]
pub struct Ipi<A>(PhantomData<A>);

impl<A> Ipi<A> {
    /// Kicks the machine's CPUs.
    pub const fn of_machine() -> Self {
        Self(PhantomData)
    }
}

impl<A: X86> Hardware for Ipi<A> {
    fn kick(&self, cpu: CpuId) {
        host::kick::<A>(CpuIndex(cpu.0));
    }

    fn relax(&self, turns: u64) -> ControlFlow<()> {
        core::hint::spin_loop();
        if turns % REKICK_TURNS == REKICK_TURNS - 1 {
            // A working machine never gets here. One that has lost a kick gets all of them again.
            counting::count_here::<A>(Counter::KickAgain);
            percpu::online::<A>().for_each(A::kick);
        }
        if turns < WAIT_TURNS_MAX { ControlFlow::Continue(()) } else { ControlFlow::Break(()) }
    }
}

/// A vCPU that issues a flush hypercall: its counters and its row.
struct Caller<'a, A>(&'a CounterRow, VcpuIndex, PhantomData<A>);

impl<A> Clone for Caller<'_, A> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<A> Copy for Caller<'_, A> {}

impl<A: X86> Caller<'_, A> {
    #[inline(always)]
    fn count(self, counter: Counter, amount: u32) {
        counting::increase(&self.0[counter as usize], amount.into());
    }

    #[inline(always)]
    fn trace_done(self, outcome: &FlushOutcome, has_waited: bool) {
        let pair = |low: u32, high: u32| u64::from(low) | u64::from(high) << 32;
        let words = [pair(outcome.targets, outcome.deferred), pair(outcome.kicks, outcome.merged)];
        trace::here::<A>(Event::FlushDone, self.1, has_waited.into(), words);
    }
}

impl<A: X86> Mistakes for Caller<'_, A> {
    #[inline(always)]
    fn makes(&self, mistake: Mistake) -> bool {
        Defects.makes(mistake)
    }
}

impl<A: X86> Hardware for Caller<'_, A> {
    fn kick(&self, cpu: CpuId) {
        if self.makes(Mistake::NotWaited) {
            return hold_back::<A>(cpu);
        }
        Ipi::<A>::of_machine().kick(cpu);
    }

    fn relax(&self, turns: u64) -> ControlFlow<()> {
        Ipi::<A>::of_machine().relax(turns)
    }
}

/// Delays each kick until the next one is due. So the target of a caller that does not wait
/// continues in guest mode for as long as the caller checks, however long that takes
/// ([`Defect::EarlyReturn`]).
#[cold]
fn hold_back<A: X86>(cpu: CpuId) {
    static HELD: AtomicU32 = AtomicU32::new(0);
    if let Some(earlier) = HELD.swap(cpu.0 + 1, Ordering::Relaxed).checked_sub(1) {
        Ipi::<A>::of_machine().kick(CpuId(earlier));
    }
}

impl<A: X86> Initiator for Caller<'_, A> {
    #[inline(always)]
    fn has_asked(&self, asked: Asked, outcome: &FlushOutcome) {
        let counter = match asked {
            Asked::Everything => Counter::FlushWholeAsked,
            Asked::Whole(Why::ManyRanges) => Counter::FlushWholeRanges,
            Asked::Whole(_) => Counter::FlushWholePages,
            Asked::List => Counter::FlushLists,
            Asked::Part => Counter::FlushContinued,
        };
        self.count(counter, 1);
        if outcome.elsewhere != 0 {
            self.count(Counter::FlushElsewhere, outcome.elsewhere);
        }
    }

    #[inline(always)]
    fn is_over(&self, outcome: &FlushOutcome) {
        self.trace_done(outcome, false);
        self.count(Counter::FlushDeferred, outcome.deferred);
        if outcome.joined != 0 {
            self.count(Counter::FlushJoined, outcome.joined);
            self.count(Counter::FlushOverflows, outcome.mailbox_overflows);
        }
    }

    fn now(&self) -> u64 {
        A::now()
    }

    fn has_waited(&self, outcome: &FlushOutcome, since: u64) {
        self.trace_done(outcome, true);
        let waited = A::us_of_ticks(A::now().wrapping_sub(since));
        for (counter, amount) in [
            (Counter::FlushBusy, outcome.targets - outcome.deferred),
            (Counter::FlushDeferred, outcome.deferred),
            (Counter::FlushMerged, outcome.merged),
            (Counter::FlushKicks, outcome.kicks),
            (Counter::FlushJoined, outcome.joined),
            (Counter::FlushOverflows, outcome.mailbox_overflows),
            (Counter::of_wait(waited), 1),
        ] {
            self.count(counter, amount);
        }
    }
}

/// Records which vCPUs a call names, a bank at a time, by their rows.
#[inline(always)]
fn trace_asked<A: X86>(caller: VcpuIndex, call: &FlushCall<'_>, vm: &Vm<A>) {
    if cfg!(feature = "trace") {
        let (first, vcpus) = (vm.rows().start, vm.vcpus.len());
        tagged::Named::new(&call.targets, vcpus).for_each_bank(|bank, bits| {
            // A call to all names more vCPUs than there are.
            let count = vcpus.saturating_sub(bank * 64);
            let bits = if count < 64 { bits & ((1 << count) - 1) } else { bits };
            let words = [bits, call.rep_count.into()];
            trace::here::<A>(Event::FlushAsked, caller, first.0 + bank as u32 * 64, words);
        });
    }
}

impl<A: X86> Services for CallServices<'_, A> {
    /// Flushes the ranges that the call names, or more where that costs less.
    #[inline(always)] // It has one caller.
    fn flush(&mut self, call: &FlushCall<'_>) -> u16 {
        let (vm, limit) = (self.vm, self.vm.guest.flush_cost.page_limit());
        trace_asked(self.caller.1, call, vm);
        let served = tagged::serve(vm, vm.vcpus.len(), call, limit, self.caller, self.scratch);
        // A target that does not leave guest mode is a broken machine: to continue would free
        // memory that it still uses.
        served.unwrap_or_else(|stalled| end::end_stalled_run::<A>(&stalled))
    }

    #[inline(never)]
    fn interrupt(&mut self, ipi: &ClusterIpi<'_>) {
        let mut sent = 0;
        tagged::Named::new(&ipi.targets, self.vm.vcpus.len()).for_each_bank(|bank, bits| {
            stay::in_bank(&self.vm.vcpus, bank, bits, |_, vcpu| {
                self.vm.post_fixed_to(vcpu, ipi.vector);
                sent += 1;
            });
        });
        self.caller.count(Counter::IrqIpi, sent);
    }
}

/// Guest memory as the hypercall decoder reads it.
pub struct MemorySource<'a, A> {
    /// Guest memory.
    pub memslots: &'a Memslots,
    /// The width of addresses.
    pub platform: &'a PartitionTraits,
    /// The processor whose vector registers are read.
    pub processor: PhantomData<A>,
}

impl<A: X86> InputSource for MemorySource<'_, A> {
    fn read(&self, gpa: u64, into: &mut [u8]) -> Result<(), InputError> {
        // Addresses outside have no memory, so they need no separate check first.
        self.memslots.memory().read(Gpa(gpa), into).map_err(|_| match self.platform.has_gpa(gpa) {
            true => InputError::NotMemory,
            false => InputError::OutsideGpaSpace,
        })
    }

    fn xmm_words(&self) -> [u64; XMM_WORDS] {
        A::xmm_words()
    }
}

#[cfg(test)]
mod tests {
    use super::{CpuId, hold_back};
    use crate::svm::tests::processor::{MockSvm, board};
    use crate::vm::mock::board_impl::is_interrupted;

    #[test]
    fn a_kick_that_is_held_back_goes_with_the_next() {
        board().with_vcpu(0, |_| {
            let kicked = [(); 2].map(|()| {
                hold_back::<MockSvm>(CpuId(0));
                is_interrupted::<MockSvm>()
            });
            assert_eq!(kicked, [false, true]);
        });
    }
}
