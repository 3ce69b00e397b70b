//! What hypercalls ask for: flushes by way of the flush engine, interrupts to several vCPUs.

use core::arch::asm;
use core::ops::ControlFlow;

use coherence::{CpuId, Hardware, Members, Outcome};
use hostlink::counters::Counter;
use memslots::{Gpa, Memslots};
use stay::amd64::{self, Asked, Initiator, Why};
use stay::{Mistake, Mistakes};
use tlfs::{ClusterIpi, FlushCall, InputError, InputSource, XMM_WORDS};

use super::clock;
use super::{Local, Vcpu};
use crate::arch::{Machine, PerCpu};
use crate::hyperv::{Platform, Services};
use crate::vm::arch::Cpus;
use crate::vm::end;
use crate::vm::files::Defects;
use crate::vm::machine::{self, CounterRow};
use crate::vm::space::FlushScratch;

/// Turns of waiting for a CPU to leave guest mode before the machine is declared broken: seconds, where a kick
/// takes microseconds.
const WAIT_TURNS_MAX: u64 = 1 << 32;

/// Turns of waiting after which a kick is taken for lost, and sent again.
const REKICK_TURNS: u64 = 1 << 14;

/// What is done on behalf of the vCPU that calls.
pub(crate) struct CallServices<'a> {
    pub(crate) vm: &'a Machine,
    pub(crate) caller: &'a Vcpu,
    pub(crate) scratch: &'a mut FlushScratch,
}

/// Kicks by IPI.
pub(crate) struct Ipi;

impl Hardware for Ipi {
    fn kick(&self, cpu: CpuId) {
        machine::kick::<Local>(cpu.0);
    }

    fn relax(&self, turns: u64) -> ControlFlow<()> {
        core::hint::spin_loop();
        if turns % REKICK_TURNS == REKICK_TURNS - 1 {
            // No working machine gets here. One that has lost a kick gets all of them again.
            PerCpu::online().for_each(Local::kick);
        }
        if turns < WAIT_TURNS_MAX { ControlFlow::Continue(()) } else { ControlFlow::Break(()) }
    }
}

/// A vCPU that asks for a flush by hypercall, whose counters these are.
#[derive(Clone, Copy)]
struct Caller<'a>(&'a CounterRow);

impl Caller<'_> {
    #[inline(always)]
    fn count(self, counter: Counter, amount: u32) {
        machine::increase(&self.0[counter as usize], amount.into());
    }
}

impl Mistakes for Caller<'_> {
    #[inline(always)]
    fn makes(&self, mistake: Mistake) -> bool {
        Defects.makes(mistake)
    }
}

impl Hardware for Caller<'_> {
    fn kick(&self, cpu: CpuId) {
        Ipi.kick(cpu);
    }

    fn relax(&self, turns: u64) -> ControlFlow<()> {
        Ipi.relax(turns)
    }
}

impl Initiator for Caller<'_> {
    #[inline(always)]
    fn has_asked(&self, asked: Asked, outcome: &Outcome) {
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
    fn is_over(&self, outcome: &Outcome) {
        self.count(Counter::FlushDeferred, outcome.deferred);
        if outcome.joined != 0 {
            self.count(Counter::FlushJoined, outcome.joined);
            self.count(Counter::FlushOverflows, outcome.mailbox_overflows);
        }
    }

    fn now(&self) -> u64 {
        clock::now()
    }

    fn has_waited(&self, outcome: &Outcome, since: u64) {
        let waited = clock::us_of_ticks(clock::now().wrapping_sub(since));
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

impl Services for CallServices<'_> {
    /// Flushes what was asked for, or more where that costs less.
    #[inline(always)] // It has one caller.
    fn flush(&mut self, call: &FlushCall<'_>) -> u16 {
        let (vm, limit) = (self.vm, self.vm.guest.flush_cost.page_limit());
        let caller = Caller(vm.counters_of(self.caller));
        let served = amd64::serve(vm, vm.vcpus.len(), call, limit, caller, self.scratch);
        // A target that does not leave guest mode is a broken machine: going on would hand out memory that it
        // still uses.
        served.unwrap_or_else(|stalled| end::end_stalled_guest::<Local>(&stalled))
    }

    #[inline(never)]
    fn interrupt(&mut self, ipi: &ClusterIpi<'_>) {
        let mut sent = 0;
        amd64::Named::new(&ipi.targets, self.vm.vcpus.len()).for_each_bank(|bank, bits| {
            stay::in_bank(&self.vm.vcpus, bank, bits, |_, vcpu| {
                self.vm.post_fixed_to(vcpu, ipi.vector);
                sent += 1;
            });
        });
        machine::increase(&self.vm.counters_of(self.caller)[Counter::IrqIpi as usize], sent);
    }
}

/// Guest memory as the hypercall decoder reads it.
pub(crate) struct MemorySource<'a> {
    pub(crate) memslots: &'a Memslots,
    pub(crate) platform: &'a Platform,
}

impl InputSource for MemorySource<'_> {
    fn read(&self, gpa: u64, into: &mut [u8]) -> Result<(), InputError> {
        // There is no memory outside, so that it need not be asked first.
        self.memslots.memory().read(Gpa(gpa), into).map_err(|_| match self.platform.has_gpa(gpa) {
            true => InputError::NotMemory,
            false => InputError::OutsideGpaSpace,
        })
    }

    fn xmm_words(&self) -> [u64; XMM_WORDS] {
        let mut words = [0; XMM_WORDS];
        // SAFETY: the six registers are stored into the array, which is as large as they are. `fpu::enable` has
        // allowed the instruction on every CPU, and the hypervisor itself uses no vector registers, so they are
        // those of the guest that called.
        unsafe {
            asm!(
                "movups [{0}], xmm0", "movups [{0} + 16], xmm1", "movups [{0} + 32], xmm2",
                "movups [{0} + 48], xmm3", "movups [{0} + 64], xmm4", "movups [{0} + 80], xmm5",
                in(reg) &raw mut words, options(nostack, preserves_flags),
            );
        }
        words
    }
}
