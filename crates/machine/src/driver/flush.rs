//! Flushes: those that a guest asks for by hypercall, and those that changes of its memory need.

use std::ops::ControlFlow;

use coherence::{CpuId, GvaRange, Hardware, Ledger, Members, Outcome, Owner, Scope, SpaceReceipt};
use memslots::Gpa;
use paging::{FlushRange, FlushReceipt, Format as TableFormat, NeverWalked, Stamp};
use tlfs::encode::{EncodedCall, FlushCalls, FlushRequest, Interface, ListLimit, Progress, VaRange};
use tlfs::{
    Call, CallRegisters, FlushCall, FlushScope, HvResult, InputError, InputPage, InputSource, PAGE_WORDS,
    PageSize, Profile, Reject, Targets, VpSet, XMM_WORDS,
};

use super::cpu::Cpu;
use super::guest::ALL_PAGES;
use super::vm::{Activity, Vcpu, Vm};
use crate::bug::Bug;
use crate::hw::format::Arch;
use crate::hw::memory::POISON;
use crate::layout::{AREA_SIZE, PAGE_SIZE, PAGES, VA_PAGES, table, va, window};
use crate::machine::Machine;
use crate::program::FlushOp;

/// List elements that are done at once; the rest by going on (TLFS, "Hypercall Continuation").
const ELEMENTS_MAX: usize = 4;
/// Pages of a list up to which it is worth naming them.
const PAGES_MAX: u64 = 1024;
/// Turns of waiting after which a target is taken for stuck (G5): each leaves within some instructions of its kick.
const TURNS_MAX: u64 = 20_000;

/// The calls of a flush, as a guest makes them.
pub(crate) fn encode(op: &FlushOp) -> Vec<(EncodedCall, Box<[u64; PAGE_WORDS]>)> {
    // With a processor that does not exist, the set takes two banks.
    let banks = [op.targets.unwrap_or(0), u64::from(op.sparse) << 6];
    let set = VpSet::sparse(0b11, &banks).expect("two banks");
    let request = FlushRequest {
        targets: if op.targets.is_none() { Targets::All } else { Targets::Set(set) },
        // PCID and the bit that means no flush say nothing about the space.
        address_space: op.space.map(|space| table::root(space) | 1 << 63),
        non_global_only: op.non_global_only,
    };
    let interface = Interface { vp_sets: true, xmm_input: op.xmm, extended_ranges: op.large };
    let mut calls = Vec::new();
    let next = || Box::new([0; PAGE_WORDS]);
    match op.pages {
        None => {
            let mut space = FlushCalls::space(request, interface);
            let mut page = next();
            while let Some(call) = space.next_into(&mut page) {
                calls.push((call, std::mem::replace(&mut page, next())));
            }
        }
        Some(pages) => {
            let ranges =
                (0..VA_PAGES).filter(|page| pages >> page & 1 != 0).map(|page| range(page, op.large));
            let mut list = FlushCalls::list(request, interface, ranges, ListLimit::default());
            let mut page = next();
            while let Some(call) = list.next_into(&mut page) {
                calls.push((call, std::mem::replace(&mut page, next())));
            }
        }
    }
    calls
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

/// The vCPUs that a call names.
struct Named<'a>(&'a Targets<'a>);

impl Members for Named<'_> {
    fn for_each_bank(&self, mut visit: impl FnMut(usize, u64)) {
        match self.0 {
            Targets::All => visit(0, u64::MAX),
            Targets::Set(set) => set.banks().for_each(|(bank, bits)| visit(bank as usize, bits)),
        }
    }
}

/// Kicks by interrupts.
struct Kicks<'m>(&'m Machine);

impl Hardware for Kicks<'_> {
    fn kick(&self, cpu: CpuId) {
        self.0.point();
        self.0.kick(cpu.0 as usize);
    }

    fn relax(&self, turns: u64) -> ControlFlow<()> {
        self.0.give_way();
        if turns < TURNS_MAX { ControlFlow::Continue(()) } else { ControlFlow::Break(()) }
    }
}

/// Guest memory, and registers, as the decoder of hypercalls reads them.
struct Source<'a, 'm, F: TableFormat> {
    vm: &'a Vm<'m, F>,
    xmm: [u64; XMM_WORDS],
}

impl<F: TableFormat> InputSource for Source<'_, '_, F> {
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

impl Cpu<'_> {
    /// A hypercall of the vCPU that this CPU runs.
    pub(crate) fn hypercall<F: TableFormat>(
        &mut self,
        vm: &Vm<'_, F>,
        number: usize,
        vcpu: &mut Vcpu,
        owner: &mut Owner<'_>,
        registers: &CallRegisters,
    ) {
        let Some(call) = &vcpu.call else { return };
        let (encoded, page) = &call.calls[0];
        let mut xmm = [0; XMM_WORDS];
        xmm.copy_from_slice(&encoded.registers(page)[2..]);
        let mut input = InputPage::new();
        let decoded = tlfs::decode(*registers, &Source { vm, xmm }, &mut input, &Profile::FULL);
        self.machine.point();
        let result = match decoded {
            Ok(Call::Flush(flush)) => {
                self.machine.note(|| format!("vCPU {}.{number} calls: {flush:?}", vm.index));
                self.flush_call(vm, &flush)
            }
            Ok(other) => {
                self.machine.fail(|| format!("a flush was decoded as {other:?}"));
                return;
            }
            Err(Reject::InputNotMemory { .. }) => {
                // Its slot is gone. A guest would get an exception.
                vcpu.call = None;
                return self.finish_op(vcpu);
            }
            Err(reject) => {
                // The words were stored to memory that was taken away and came back.
                self.machine.note(|| format!("vCPU {}.{number}: {reject:?}", vm.index));
                vcpu.call = None;
                return self.finish_op(vcpu);
            }
        };
        // What software has cached would be dropped here; the caller's own flush pends like anybody's.
        let _ = owner;
        self.returned(vm, vcpu, result, &input_of(&decoded));
    }

    /// A call has returned to the guest.
    fn returned<F: TableFormat>(&mut self, vm: &Vm<'_, F>, vcpu: &mut Vcpu, result: HvResult, done: &Meant) {
        let Some(call) = &mut vcpu.call else { return };
        let begin = call.begin.unwrap_or(0);
        match call.calls[0].0.progress(result) {
            Progress::Done => {
                call.calls.remove(0);
                if !call.calls.is_empty() {
                    return;
                }
            }
            Progress::Unfinished(rest) => {
                call.calls[0].0 = rest;
                return;
            }
            Progress::Failed { .. } => {
                vcpu.call = None;
                return self.finish_op(vcpu);
            }
        }
        let op = call.op;
        vcpu.call = None;
        // Words in memory may have been replaced meanwhile; then the call was another than was meant.
        if done.matches(&op) {
            let mut oracle = self.machine.oracle.borrow_mut();
            for target in
                (0..vm.vcpus.len()).filter(|target| op.targets.is_none_or(|set| set >> target & 1 != 0))
            {
                oracle.promise_guest(vm.index, target, op.space, op.pages.unwrap_or(ALL_PAGES), begin);
            }
        }
        self.finish_op(vcpu);
    }

    /// Flushes what was asked for, or more; returns the result of the call.
    fn flush_call<F: TableFormat>(&mut self, vm: &Vm<'_, F>, call: &FlushCall<'_>) -> HvResult {
        let targets = Named(&call.targets);
        match &call.scope {
            FlushScope::Everything => {
                let is_one_space = call.flags.non_global_only() && !call.flags.all_address_spaces();
                let space = is_one_space.then_some(call.address_space & 0x000f_ffff_ffff_f000);
                self.request(vm, &targets, Scope::All, space);
                call.completed()
            }
            FlushScope::List(list) => {
                let (mut ranges, mut pages, mut done) = (Vec::new(), 0, call.rep_count);
                for (index, range) in list.elements() {
                    if ranges.len() == ELEMENTS_MAX {
                        done = index;
                        break;
                    }
                    let Some(range) = range else { continue };
                    pages += range.pages;
                    ranges.push(GvaRange { first: range.start, pages: range.pages });
                }
                let scope = if pages > PAGES_MAX { Scope::All } else { Scope::Ranges(&ranges) };
                self.request(vm, &targets, scope, None);
                call.completed_to(done)
            }
        }
    }

    fn request<F: TableFormat>(
        &mut self,
        vm: &Vm<'_, F>,
        targets: &Named<'_>,
        scope: Scope<'_>,
        space: Option<u64>,
    ) {
        let (machine, hardware) = (self.machine, Kicks(self.machine));
        let issued = match space {
            Some(space) => coherence::issue_in_space(vm, targets, scope, space, &mut self.ledger),
            None => coherence::issue(vm, targets, scope, &mut self.ledger),
        };
        machine.point();
        if machine.has(Bug::NoKick) {
            return;
        }
        let receipt = match issued.receipt() {
            Some(receipt) => Ok(receipt),
            None => issued.dispatch(&hardware).wait(&hardware),
        };
        match receipt {
            Ok(receipt) => machine.note(|| format!("flushed: {:?}", Brief(receipt.outcome()))),
            Err(stalled) => machine.fail(|| format!("G5: {stalled}")),
        }
    }
}

/// What a call meant when it was decoded.
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

/// An outcome in few words.
struct Brief(Outcome);

impl core::fmt::Debug for Brief {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        let Outcome { targets, deferred, kicks, elsewhere, .. } = self.0;
        write!(f, "{targets} targets, {deferred} deferred, {kicks} kicked, {elsewhere} elsewhere")
    }
}

/// What a flush leaves behind, or a mistake in the place of one.
pub(crate) enum Receipt {
    Flushed(SpaceReceipt<Stamp>),
    Forged(NeverWalked),
}

impl Receipt {
    /// One for a flush that was not made.
    pub(crate) fn forged() -> Self {
        // SAFETY: the tables and the memory are the model's own, whose processors find out what is missing.
        Self::Forged(unsafe { NeverWalked::new() })
    }

    /// What is shown to those that free memory for it.
    pub(crate) fn show(&self) -> &dyn FlushReceipt {
        match self {
            Self::Flushed(receipt) => receipt,
            Self::Forged(receipt) => receipt,
        }
    }
}

impl<F: TableFormat> Vm<'_, F> {
    /// Flushes everything that was translated by this guest's nested table: ranges of it by address, where the processor
    /// can and they are known. Afterwards nobody uses what was replaced before now.
    pub(crate) fn flush(&self, ranges: Option<&[FlushRange]>) -> Receipt {
        let machine = self.machine;
        machine.point();
        let time = machine.now();
        let (mut ledger, hardware) = (Ledger::<2>::new(), Kicks(machine));
        let flushed = match machine.config.arch {
            Arch::Amd64 if machine.has(Bug::NoKick) => {
                let _nobody_is_kicked =
                    coherence::issue(self, &Named(&Targets::All), Scope::All, &mut ledger);
                Ok(Receipt::forged())
            }
            Arch::Amd64 => coherence::flush_space(self, &mut ledger, &hardware).map(Receipt::Flushed),
            Arch::Arm64 => {
                let sequence = || machine.invalidate_stage2(self.index, ranges);
                coherence::broadcast(self, &mut ledger, &hardware, sequence).map(Receipt::Flushed)
            }
        };
        let receipt = flushed.unwrap_or_else(|stalled| {
            machine.fail(|| format!("G5: {stalled}"));
            Receipt::forged()
        });
        if let Receipt::Flushed(receipt) = &receipt {
            machine.note(|| format!("flushed: {:?}", Brief(receipt.outcome())));
        }
        let mut oracle = machine.oracle.borrow_mut();
        match ranges {
            Some(ranges) => {
                ranges
                    .iter()
                    .for_each(|range| oracle.promise_nested(self.index, range.start, range.len, time));
            }
            None => oracle.promise_nested_all(self.index, time),
        }
        receipt
    }

    /// Tells a vCPU to look, and does what that takes.
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
