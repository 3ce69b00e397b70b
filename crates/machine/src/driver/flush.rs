//! Flushes: those that a guest requests by hypercall, and those that changes of its memory need.

use std::ops::ControlFlow;

use coherence::{CpuId, FlushOutcome, Hardware, Ledger, Scope, SpaceReceipt};
use memslots::Gpa;
use paging::{FlushReceipt, Invalidation, NeverWalked, Stamp};
use stay::iommu::mirror::Slots;
use stay::tagged::{self, Asked, Initiator};
use stay::{Mistake, Mistakes, Proof};
use tlfs::encode::{CallProgress, FlushCalls, FlushRequest, Interface, ListLimit, VaRange};
use tlfs::{
    Call, CallRegisters, FlushScope, HvResult, InputError, InputPage, InputSource, PAGE_WORDS, PageSize,
    Profile, Reject, Targets, VpSet, XMM_WORDS,
};

use super::device::DeviceFlush;
use super::guest::{ALL_PAGES, EncodedPage};
use super::processor::Guest;
use super::vm::{Activity, Architecture, Vm};
use crate::bug::Bug;
use crate::hw::format::Arch;
use crate::hw::memory::POISON;
use crate::layout::{AREA_SIZE, PAGE_SIZE, PAGES, VA_PAGES, table, va, window};
use crate::machine::AbstractMachine;
use crate::program::FlushOp;

/// Unused ranges that make a list long, and their location.
const FAR_RANGES: u64 = 20;
const FAR: u64 = 0x5000_0000;
/// Turns of waiting after which a target is considered stuck (G5): each leaves within some
/// instructions of its kick, which has not taken more than 208 turns in a million operations.
const TURNS_MAX: u64 = 1_000;

/// The calls of a flush, as a guest makes them whose vCPUs' VP indices begin with `first_vp`.
pub(crate) fn encode(op: &FlushOp, first_vp: usize) -> Vec<EncodedPage> {
    let named = u128::from(op.targets.unwrap_or(0)) << first_vp;
    // With a nonexistent processor, the set takes two banks.
    let banks = [named as u64, (named >> 64) as u64 | u64::from(op.sparse) << 60];
    let set = VpSet::sparse(0b11, &banks).expect("two banks");
    let request = FlushRequest {
        targets: if op.targets.is_none() { Targets::All } else { Targets::Set(set) },
        // PCID and the bit that means no flush are not part of the space.
        address_space: op.space.map(|space| table::root(space) | 1 << 63 | 5),
        non_global_only: op.non_global_only,
    };
    let interface = Interface { vp_sets: true, xmm_input: op.xmm, extended_ranges: op.large };
    match op.pages {
        None => all_of(FlushCalls::space(request, interface)),
        Some(pages) => {
            let ranges =
                (0..VA_PAGES).filter(|page| pages >> page & 1 != 0).map(|page| range(page, op.large));
            let far = (0..if op.long { FAR_RANGES } else { 0 }).map(|number| FAR + number * 3 * PAGE_SIZE);
            let far = far.map(|at| VaRange::new(at, at + PAGE_SIZE - 1));
            all_of(FlushCalls::list(request, interface, far.chain(ranges), ListLimit::default()))
        }
    }
}

fn all_of<R: Iterator<Item = VaRange> + Clone>(mut calls: FlushCalls<'_, R>) -> Vec<EncodedPage> {
    let next = || {
        let mut page = Box::new([0; PAGE_WORDS]);
        calls.next_into(&mut page).map(|call| (call, page))
    };
    std::iter::from_fn(next).collect()
}

/// The range of a page; the whole window as a large page if `large` and it is the window's first.
fn range(page: usize, large: bool) -> VaRange {
    match large && page.is_multiple_of(PAGES.len()) {
        true => {
            let start = window(page / PAGES.len());
            VaRange::new(start, start + AREA_SIZE - 1).of(PageSize::Large)
        }
        false => VaRange::new(va(page), va(page) + PAGE_SIZE - 1),
    }
}

/// Kicks by interrupts.
#[derive(Clone, Copy)]
struct Kicks<'m>(&'m AbstractMachine);

impl Mistakes for Kicks<'_> {
    fn makes(&self, mistake: Mistake) -> bool {
        self.0.makes(mistake)
    }
}

impl Initiator for Kicks<'_> {
    fn has_asked(&self, asked: Asked, outcome: &FlushOutcome) {
        self.0.note(|| format!("asks for {asked:?}: {:?}", Brief(*outcome)));
        self.0.point();
    }

    fn has_waited(&self, outcome: &FlushOutcome, _: u64) {
        self.0.note(|| format!("flushed: {:?}", Brief(*outcome)));
    }
}

impl Hardware for Kicks<'_> {
    fn kick(&self, cpu: CpuId) {
        self.0.point();
        let cpu = cpu.0 as usize + usize::from(self.0.has(Bug::WrongCpuKicked));
        self.0.kick(cpu % self.0.config.cpus);
    }

    fn relax(&self, turns: u64) -> ControlFlow<()> {
        self.0.give_way();
        if turns < TURNS_MAX { ControlFlow::Continue(()) } else { ControlFlow::Break(()) }
    }
}

/// Guest memory, and registers, as the source for the decoder of hypercalls.
struct Source<'a, 'm, F: Architecture> {
    vm: &'a Vm<'m, F>,
    xmm: [u64; XMM_WORDS],
}

impl<F: Architecture> InputSource for Source<'_, '_, F> {
    fn read(&self, gpa: u64, into: &mut [u8]) -> Result<(), InputError> {
        let memory = self.vm.space.slots().memory();
        self.vm.machine.point();
        let read = memory.read(Gpa(gpa), into).map_err(|_| InputError::NotMemory);
        if into.chunks_exact(8).any(|word| word == POISON.to_le_bytes()) {
            self.vm.machine.fail(|| "P12: a hypercall's input is copied from free memory".into());
        }
        read
    }

    fn xmm_words(&self) -> [u64; XMM_WORDS] {
        self.xmm
    }
}

impl<F: Architecture> Guest<'_, '_, F> {
    pub(super) fn hypercall(&mut self, registers: &CallRegisters) {
        let (vm, machine, number) = (self.vm, self.cpu.machine, self.number);
        let Some(call) = &self.vcpu.call else { return };
        let (encoded, page) = &call.calls[0];
        let mut xmm = [0; XMM_WORDS];
        xmm.copy_from_slice(&encoded.registers(page)[2..]);
        let mut input = InputPage::new();
        let decoded = tlfs::decode(*registers, &Source { vm, xmm }, &mut input, &Profile::FULL);
        machine.point();
        let result = match decoded {
            Ok(Call::Flush(flush)) => {
                machine.note(|| format!("vCPU {}.{number} calls: {flush:?}", vm.index));
                let (count, limit) = (vm.targets.len(), machine.config.page_limit);
                let served = tagged::serve(vm, count, &flush, limit, Kicks(machine), &mut self.cpu.ledger);
                match served {
                    Ok(done) if matches!(flush.scope, FlushScope::List(_)) => flush.completed_to(done),
                    Ok(_) => flush.completed(),
                    Err(stalled) => return machine.fail(|| format!("G5: {stalled}")),
                }
            }
            Ok(other) => {
                machine.fail(|| format!("a flush was decoded as {other:?}"));
                return;
            }
            Err(Reject::InputNotMemory { .. }) => {
                // Its slot was removed. A guest would get an exception.
                self.vcpu.call = None;
                return self.finish_op();
            }
            Err(reject) => {
                // The words were stored to memory that was removed and added again.
                machine.note(|| format!("vCPU {}.{number}: {reject:?}", vm.index));
                self.vcpu.call = None;
                return self.finish_op();
            }
        };
        self.returned(result, &input_of(&decoded));
    }

    fn returned(&mut self, result: HvResult, done: &Meant) {
        let vm = self.vm;
        let Some(call) = &mut self.vcpu.call else { return };
        let begin = call.begin.unwrap_or(0);
        match call.calls[0].0.progress(result) {
            CallProgress::Done => {
                call.calls.remove(0);
                if !call.calls.is_empty() {
                    return;
                }
            }
            CallProgress::Unfinished(rest) => {
                call.calls[0].0 = rest;
                return;
            }
            CallProgress::Failed { .. } => {
                self.vcpu.call = None;
                return self.finish_op();
            }
        }
        let op = call.op;
        self.vcpu.call = None;
        // Words in memory may have been replaced meanwhile; then the call differs from the intended
        // one.
        let spares_all = op.non_global_only && self.cpu.machine.config.globals;
        if done.matches(&op) && !spares_all {
            let mut oracle = self.cpu.machine.oracle.borrow_mut();
            for target in
                (0..vm.vcpus.len()).filter(|target| op.targets.is_none_or(|set| set >> target & 1 != 0))
            {
                oracle.promise_guest(vm.index, target, op.space, op.pages.unwrap_or(ALL_PAGES), begin);
            }
        }
        self.finish_op();
    }
}

/// The meaning of a call when it was decoded.
struct Meant(Option<(Option<u64>, bool)>);

fn input_of(decoded: &Result<Call<'_>, Reject>) -> Meant {
    let Ok(Call::Flush(flush)) = decoded else { return Meant(None) };
    let space = (!flush.flags.all_address_spaces()).then_some(flush.address_space & 0x000f_ffff_ffff_f000);
    Meant(Some((space, matches!(flush.scope, FlushScope::Everything))))
}

impl Meant {
    fn matches(&self, op: &FlushOp) -> bool {
        self.0 == Some((op.space.map(table::root), op.pages.is_none()))
    }
}

/// A short form of an outcome.
struct Brief(FlushOutcome);

impl core::fmt::Debug for Brief {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        let FlushOutcome { targets, deferred, kicks, elsewhere, .. } = self.0;
        write!(f, "{targets} targets, {deferred} deferred, {kicks} kicked, {elsewhere} elsewhere")
    }
}

/// The result of a flush, or a mistake in its place.
pub(crate) enum FlushProof {
    Flushed(SpaceReceipt<Stamp>),
    Forged(NeverWalked),
}

impl FlushProof {
    /// A proof of a flush that was not made.
    pub(crate) fn forged() -> Self {
        // SAFETY: the tables and the memory are the model's own, whose processors detect a missing
        // flush.
        Self::Forged(unsafe { NeverWalked::new() })
    }
}

impl Proof for FlushProof {
    fn receipt(&self) -> &dyn FlushReceipt {
        match self {
            Self::Flushed(receipt) => receipt,
            Self::Forged(receipt) => receipt,
        }
    }
}

impl<F: Architecture> Vm<'_, F> {
    /// Flushes this guest's nested translations that `invalidation` names, or more. Afterwards
    /// nothing that was replaced before now is used.
    pub(crate) fn flush(&self, invalidation: Invalidation<'_>) -> FlushProof {
        self.flush_with(Some(invalidation), invalidation)
    }

    /// The same with devices that drop something else, or are left out.
    pub(super) fn flush_with(
        &self,
        of_devices: Option<Invalidation<'_>>,
        invalidation: Invalidation<'_>,
    ) -> FlushProof {
        let machine = self.machine;
        let look_up = |slots: &mut Slots| self.look_up(slots);
        let told = &DeviceFlush::new(self.behind, of_devices, self.mirror.clone(), &look_up);
        machine.point();
        let time = machine.now();
        let (mut ledger, hardware) = (Ledger::<2>::new(), Kicks(machine));
        let flushed = match F::ARCH {
            Arch::Amd64 | Arch::Intel64 if machine.has(Bug::NoKick) => {
                let everybody = Targets::All;
                let named = tagged::Named::new(&everybody, self.targets.len());
                let _nobody_is_kicked = coherence::issue(self, &named, Scope::All, &mut ledger);
                Ok(FlushProof::forged())
            }
            Arch::Amd64 | Arch::Intel64 if machine.has(Bug::FlushOfGuests) => {
                let everybody = Targets::All;
                let named = tagged::Named::new(&everybody, self.targets.len());
                coherence::flush(self, &named, Scope::All, &mut ledger, &hardware)
                    .map(|_| FlushProof::forged())
                    .map_err(coherence::Unfinished::Target)
            }
            Arch::Amd64 | Arch::Intel64 => {
                coherence::flush_space(self, told, &mut ledger, &hardware).map(FlushProof::Flushed)
            }
            Arch::Arm64 => machine
                .flush_stage2(self.index, self, told, invalidation, &mut ledger, &hardware)
                .map(FlushProof::Flushed),
        };
        let receipt = flushed.unwrap_or_else(|stalled| {
            machine.fail(|| format!("G5: {stalled}"));
            FlushProof::forged()
        });
        if let FlushProof::Flushed(receipt) = &receipt {
            machine.note(|| format!("flushed: {:?}", Brief(receipt.outcome())));
        }
        let mut oracle = machine.oracle.borrow_mut();
        match invalidation {
            Invalidation::Nothing => {}
            Invalidation::Ranges(ranges) => ranges
                .iter()
                .for_each(|range| oracle.promise_nested(self.index, range.start, range.len, time)),
            Invalidation::Everything => oracle.promise_nested_all(self.index, time),
        }
        receipt
    }

    /// Has the guest's devices drop all, and waits for that.
    pub(super) fn tell_devices(&self) {
        let look_up = |slots: &mut Slots| self.look_up(slots);
        DeviceFlush::new(self.behind, Some(Invalidation::Everything), self.mirror.clone(), &look_up).tell();
    }

    /// Posts an event to a vCPU, and takes the resulting action.
    pub(crate) fn post_event(&self, vcpu: usize) {
        self.machine.point();
        match self.target_of(vcpu).post_event() {
            coherence::Notify::None => {}
            coherence::Notify::Kick(cpu) => Kicks(self.machine).kick(cpu),
            coherence::Notify::Wake => {
                if self.activity[vcpu].get() == Activity::Halted {
                    self.activity[vcpu].set(Activity::Ready);
                }
            }
        }
    }
}
