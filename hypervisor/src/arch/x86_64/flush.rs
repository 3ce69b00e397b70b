//! What hypercalls ask for: flushes by way of the flush engine, interrupts to several vCPUs.

use core::arch::asm;
use core::ops::ControlFlow;

use coherence::{CpuId, Hardware, Issued, Ledger, Members, Scope, Target, Targets};
use hostlink::config::MAX_VCPUS;
use hostlink::counters::Counter;
use hostlink::defect::Defect;
use memslots::{Gpa, Memslots};
use paging::Invalidation;
use tlfs::{ClusterIpi, FlushCall, FlushScope, GvaList, InputError, InputSource, XMM_WORDS};

use super::clock;
use super::svm::vmcb::CR3_ADDRESS;
use crate::hyperv::{Platform, Services};
use crate::tlb::{self, Plan, Why};
use crate::vm::machine::{self, CounterRow, Vcpu};
use crate::vm::space::Flushed;
use crate::vm::{Machine, PerCpu, files, panic};

/// Banks of 64 that all vCPUs fit into.
const BANKS: usize = (MAX_VCPUS as usize).div_ceil(64);
/// Turns of waiting for a CPU to leave guest mode before the machine is declared broken: seconds, where a kick
/// takes microseconds.
const WAIT_TURNS_MAX: u64 = 1 << 32;

/// Turns of waiting after which a kick is taken for lost, and sent again.
const REKICK_TURNS: u64 = 1 << 14;

/// Where an initiator notes whom it waits for; one per CPU. It has room for all vCPUs.
pub(crate) type FlushScratch = Ledger<BANKS>;

/// What is done on behalf of the vCPU that calls.
pub(crate) struct CallServices<'a> {
    pub(crate) vm: &'a Machine,
    pub(crate) caller: &'a Vcpu,
    pub(crate) scratch: &'a mut FlushScratch,
}

impl Targets for Machine {
    fn target(&self, index: usize) -> Option<&Target> {
        self.vcpus.get(index).map(|vcpu| &vcpu.target)
    }

    #[inline(always)]
    fn for_each<S: Members + ?Sized>(&self, set: &S, mut act: impl FnMut(usize, &Target)) {
        set.for_each_bank(|bank, bits| {
            let first = bank * 64;
            let count = self.vcpus.len();
            if first >= count {
                return;
            }
            // SAFETY: there are more.
            let vcpus = unsafe { self.vcpus.get_unchecked(first..) };
            let mut bits = bits & u64::MAX >> 64usize.saturating_sub(count - first);
            while bits != 0 {
                let place = bits.trailing_zeros() as usize;
                bits &= bits.wrapping_sub(1);
                // SAFETY: there are bits for so many only.
                let vcpu = unsafe { vcpus.get_unchecked(place) };
                act(first + place, &vcpu.target);
            }
        });
    }
}

/// The vCPUs that a call names, which are those of the same VP index.
struct Named<'a> {
    targets: &'a tlfs::Targets<'a>,
    vcpus: usize,
}

impl Members for Named<'_> {
    #[inline(always)]
    fn for_each_bank(&self, mut visit: impl FnMut(usize, u64)) {
        match self.targets {
            tlfs::Targets::All => (0..self.vcpus.div_ceil(64)).for_each(|bank| visit(bank, u64::MAX)),
            tlfs::Targets::Set(set) => set.banks().for_each(|(bank, bits)| visit(bank as usize, bits)),
        }
    }
}

/// Kicks by IPI.
pub(crate) struct Ipi;

impl Hardware for Ipi {
    fn kick(&self, cpu: CpuId) {
        machine::kick(cpu.0);
    }

    fn relax(&self, turns: u64) -> ControlFlow<()> {
        core::hint::spin_loop();
        if turns % REKICK_TURNS == REKICK_TURNS - 1 {
            // No working machine gets here. One that has lost a kick gets all of them again.
            PerCpu::online().for_each(|cpu| machine::kick(cpu.index));
        }
        if turns < WAIT_TURNS_MAX { ControlFlow::Continue(()) } else { ControlFlow::Break(()) }
    }
}

impl Services for CallServices<'_> {
    /// Flushes what was asked for, or more where that costs less.
    #[inline(always)] // It has one caller.
    fn flush(&mut self, call: &FlushCall<'_>) -> u16 {
        match &call.scope {
            FlushScope::Everything => {
                match space_of(call) {
                    None => self.request(&call.targets, Scope::All, Counter::FlushWholeAsked),
                    Some(space) => self.request_in_space(&call.targets, space),
                }
                call.rep_count
            }
            FlushScope::List(list) => self.flush_list(call, list),
        }
    }

    #[inline(never)]
    fn interrupt(&mut self, ipi: &ClusterIpi<'_>) {
        let mut sent = 0;
        Named { targets: &ipi.targets, vcpus: self.vm.vcpus.len() }.for_each_bank(|bank, bits| {
            let vcpus = self.vm.vcpus.get(bank * 64..).unwrap_or_default().iter().take(64);
            for (_, vcpu) in vcpus.enumerate().filter(|(place, _)| bits >> place & 1 != 0) {
                self.vm.post_fixed_to(vcpu, ipi.vector);
                sent += 1;
            }
        });
        machine::increase(&self.vm.counters_of(self.caller)[Counter::IrqIpi as usize], sent);
    }
}

impl CallServices<'_> {
    #[inline(never)] // With room for the ranges, which a flush of everything need not make.
    fn flush_list(&mut self, call: &FlushCall<'_>, list: &GvaList<'_>) -> u16 {
        let plan = tlb::plan(list, self.vm.guest.flush_cost.page_limit());
        let (scope, done, counter) = match &plan {
            Plan::Whole(Why::ManyRanges) => (Scope::All, call.rep_count, Counter::FlushWholeRanges),
            Plan::Whole(_) => (Scope::All, call.rep_count, Counter::FlushWholePages),
            Plan::Ranges { ranges, done } if *done < call.rep_count => {
                (Scope::Ranges(ranges), *done, Counter::FlushContinued)
            }
            // No address of the list can be translated.
            Plan::Ranges { ranges, done } if ranges.is_empty() => return *done,
            Plan::Ranges { ranges, done } => (Scope::Ranges(ranges), *done, Counter::FlushLists),
        };
        self.request(&call.targets, scope, counter);
        done
    }

    /// Flushes everything on the targets but those that have halted in another address space than `space`.
    #[inline(never)]
    fn request_in_space(&mut self, targets: &tlfs::Targets<'_>, space: u64) {
        let named = Named { targets, vcpus: self.vm.vcpus.len() };
        let issued = coherence::issue_in_space(self.vm, &named, Scope::All, space, self.scratch);
        Self::finish(self.vm, self.caller, issued, Counter::FlushWholeAsked);
    }

    /// Flushes `scope` on the targets, and counts one more of `counter`.
    #[inline(always)] // Two callers, of which one is to be fast.
    fn request(&mut self, targets: &tlfs::Targets<'_>, scope: Scope<'_>, counter: Counter) {
        let named = Named { targets, vcpus: self.vm.vcpus.len() };
        let issued = coherence::issue(self.vm, &named, scope, self.scratch);
        Self::finish(self.vm, self.caller, issued, counter);
    }

    #[inline(always)]
    fn finish(vm: &Machine, caller: &Vcpu, issued: Issued<'_, Machine, BANKS>, counter: Counter) {
        if files::makes(Defect::NoKick) {
            // Targets in guest mode go on with old translations until they next enter.
            return;
        }
        let counters = vm.counters_of(caller);
        let count = |counter: Counter, amount: u32| {
            machine::increase(&counters[counter as usize], amount.into());
        };
        count(counter, 1);
        if issued.outcome().elsewhere != 0 {
            count(Counter::FlushElsewhere, issued.outcome().elsewhere);
        }
        match issued.receipt() {
            Some(receipt) => {
                let outcome = receipt.outcome();
                count(Counter::FlushDeferred, outcome.deferred);
                if outcome.joined != 0 {
                    count(Counter::FlushJoined, outcome.joined);
                    count(Counter::FlushOverflows, outcome.mailbox_overflows);
                }
            }
            None => dispatch_and_wait(issued, counters),
        }
    }
}

impl Machine {
    /// Drops all translations of all vCPUs: nested ones are tagged by ASID alone, so no range can be named.
    pub(crate) fn flush_space(&self, _: Invalidation<'_>, scratch: &mut FlushScratch) -> Flushed {
        let receipt = coherence::flush_space(self, scratch, &Ipi);
        // A target that does not leave guest mode is a broken machine: going on would hand out memory that it
        // still uses.
        receipt.unwrap_or_else(|stalled| panic::end_stalled_guest(&stalled))
    }
}

/// The address space whose translations alone a flush of everything is about, global ones left out; see
/// [`Space`](coherence::Space). Only its address counts: the low bits may be a PCID or flags, and bit 63 says "no flush"
/// (pitfall A11). Lists are not asked: there the TLFS calls the flag that leaves global pages out an invalid option.
#[inline(always)]
fn space_of(call: &FlushCall<'_>) -> Option<u64> {
    let is_one = call.flags.non_global_only() && !call.flags.all_address_spaces();
    is_one.then_some(call.address_space & CR3_ADDRESS)
}

/// Interrupts the targets in guest mode and waits for them.
#[inline(never)]
fn dispatch_and_wait(issued: Issued<'_, Machine, BANKS>, counters: &CounterRow) {
    if files::makes(Defect::EarlyReturn) {
        let _ = issued.dispatch(&Ipi);
        return;
    }
    let start = clock::now();
    // A target that does not leave guest mode is a broken machine: going on would hand out memory that it
    // still uses.
    let receipt =
        issued.dispatch(&Ipi).wait(&Ipi).unwrap_or_else(|stalled| panic::end_stalled_guest(&stalled));
    let waited = clock::us_of_ticks(clock::now().wrapping_sub(start));
    let outcome = receipt.outcome();
    for (counter, amount) in [
        (Counter::FlushBusy, outcome.targets - outcome.deferred),
        (Counter::FlushDeferred, outcome.deferred),
        (Counter::FlushMerged, outcome.merged),
        (Counter::FlushKicks, outcome.kicks),
        (Counter::FlushJoined, outcome.joined),
        (Counter::FlushOverflows, outcome.mailbox_overflows),
        (Counter::of_wait(waited), 1),
    ] {
        machine::increase(&counters[counter as usize], amount.into());
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
