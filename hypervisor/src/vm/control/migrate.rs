//! A cancelled migration: the slot's stores are logged, its pages are copied to another machine's
//! memory for some rounds, and then all of it is undone.
//!
//! It measures how long the guest is stopped meanwhile, above all at the end, when small pages
//! become large ones again. Everything is done in steps, between which vCPUs run.

use alloc::boxed::Box;
use hostlink::ctl::LogWay;
use hostlink::ctl::record::{Round, Undone};
use memslots::{Gpa, Slot, SlotError};
use paging::Progress;

use super::Answer;
use super::cost::StepTimes;
use super::refusal::{Refusal, refusal};
use super::requests::{begin_fetch, begin_log, find};
use super::runs::find_page;
use crate::vm::Vm;
use crate::vm::arch::Arch;
use crate::vm::space::{DirtyFetch, FlushScratch, MemoryJob};

const PAGE: u64 = 4096;
/// Pages that are copied in a step.
const COPY_PAGES: u64 = 16;

enum Stage<A: Arch> {
    /// Logging of stores is being started.
    Log(MemoryJob<'static, A>),
    /// All pages are copied, from this page on.
    Whole(u64),
    /// The log of a round is to be fetched.
    NextRound,
    Fetch(DirtyFetch<'static, A>),
    /// The pages in the log are copied, from this page on.
    Pages(&'static mut [u64], u64),
    RoundEnds,
    Cancel,
    /// The log is being stopped, and pages become large again.
    Undo(MemoryJob<'static, A>),
    /// Everything is as before.
    Ends,
}

pub(super) struct Migration<A: Arch> {
    slot: Slot,
    /// The other machine's memory: as large as the slot, and used by nothing else.
    to: u64,
    rounds_max: u16,
    round: u32,
    pages: u64,
    stage: Stage<A>,
    scratch: Box<FlushScratch>,
    /// Time that the present stage and all earlier ones took.
    times: StepTimes,
    longest: u64,
}

impl<A: Arch> Migration<A> {
    pub(super) fn new(vm: &'static Vm<A>, slot: u16, way: LogWay, rounds: u16) -> Result<Self, Refusal> {
        let former = find(vm, slot)?;
        let (to, largest) = {
            let mut free = vm.host.free.lock();
            (free.take(former.size, PAGE, u64::MAX), free.largest())
        };
        let to = to.ok_or(Refusal::NoMemory { size: former.size, largest })?;
        let give_back = |why| {
            vm.host.free.lock().add(to..to + former.size);
            why
        };
        let job = begin_log(vm, slot, way).map_err(give_back)?;
        Ok(Self {
            slot: former,
            to,
            rounds_max: rounds,
            round: 0,
            pages: 0,
            stage: Stage::Log(job),
            scratch: Box::new(FlushScratch::new()),
            times: StepTimes::default(),
            longest: 0,
        })
    }

    pub(super) fn step(&mut self, vm: &'static Vm<A>, answer: &mut Answer) -> Result<Progress, Refusal> {
        let start = A::now();
        let next = self.advance(vm);
        self.times.add(A::now() - start);
        // The guest's own job comes first, and begins no other one before this one's.
        let is_later = matches!(next, Err(Refusal::Slot(SlotError::Busy)));
        vm.want_turn(is_later);
        match next {
            Ok(None) => {}
            Ok(Some(stage)) => self.stage = stage,
            Err(_) if is_later => return Ok(Progress::Waiting),
            Err(why) => {
                self.give_back(vm);
                return Err(why);
            }
        }
        self.report(answer);
        if matches!(self.stage, Stage::Ends) {
            self.give_back(vm);
            vm.audit_if_paranoid();
            return Ok(Progress::Done);
        }
        Ok(Progress::More)
    }

    /// Frees the other machine's memory; called once, at the end.
    fn give_back(&self, vm: &Vm<A>) {
        vm.host.free.lock().add(self.to..self.to + self.slot.size);
    }

    /// A step of the present stage; returns the next stage if the present one is over.
    fn advance(&mut self, vm: &'static Vm<A>) -> Result<Option<Stage<A>>, Refusal> {
        Ok(match &mut self.stage {
            Stage::Log(job) => {
                (vm.step_job(job, &mut self.scratch) == Progress::Done).then_some(Stage::Whole(0))
            }
            Stage::Whole(page) => {
                let first = *page;
                let end = (first + COPY_PAGES).min(self.slot.size / PAGE);
                self.copy(vm, first, end - first);
                Some(if end == self.slot.size / PAGE { Stage::RoundEnds } else { Stage::Whole(end) })
            }
            Stage::RoundEnds if self.round > u32::from(self.rounds_max) => Some(Stage::Cancel),
            Stage::RoundEnds => Some(Stage::NextRound),
            Stage::NextRound => Some(Stage::Fetch(begin_fetch(vm, self.slot.id)?)),
            Stage::Fetch(job) => match vm.step_job(job, &mut self.scratch) {
                Progress::Done => Some(self.fetched(vm)),
                _ => None,
            },
            Stage::Pages(result, page) => {
                let next = find_page(result, *page, true).map(|first| {
                    let end = find_page(result, first, false).unwrap_or(self.slot.size / PAGE);
                    (first, end.min(first + COPY_PAGES))
                });
                match next {
                    Some((first, end)) => {
                        *page = end;
                        self.copy(vm, first, end - first);
                        None
                    }
                    None => {
                        vm.memory_of_slots.lock().put_result(self.slot.id);
                        Some(Stage::RoundEnds)
                    }
                }
            }
            Stage::Cancel => {
                let id = self.slot.id;
                Some(Stage::Undo(vm.space.stop_log(id).map_err(|error| refusal(id.0, error))?))
            }
            Stage::Undo(job) => {
                (vm.step_job(job, &mut self.scratch) == Progress::Done).then_some(Stage::Ends)
            }
            Stage::Ends => None,
        })
    }

    fn fetched(&self, vm: &'static Vm<A>) -> Stage<A> {
        let mut memory = vm.memory_of_slots.lock();
        memory.put_result(self.slot.id);
        match memory.take_result(self.slot.id) {
            Some(result) => Stage::Pages(result, 0),
            // Another holder has it: its contents are lost to this migration, which is harmless
            // because the migration is cancelled anyway.
            None => Stage::RoundEnds,
        }
    }

    fn copy(&mut self, vm: &Vm<A>, first: u64, count: u64) {
        let bytes = (count * PAGE) as usize;
        // SAFETY: the memory was free, is mapped one to one, and has no other user until it is put
        // back; the pages are the slot's, which is as large.
        let to = unsafe { core::slice::from_raw_parts_mut((self.to + first * PAGE) as *mut u8, bytes) };
        // If the slot has been removed meanwhile there is nothing to copy.
        let _ = vm.space.slots().memory().read(Gpa(self.slot.gpa.0 + first * PAGE), to);
        self.pages += count;
    }

    /// Reports what a round took, and the end.
    fn report(&mut self, answer: &mut Answer) {
        let StepTimes { steps, ticks, longest } = self.times;
        match self.stage {
            Stage::NextRound | Stage::Cancel => {
                let (round, pages) = (self.round, self.pages);
                answer.record::<A>(&Round { round, pages, steps, ticks, longest });
            }
            Stage::Ends => {
                let (longest_before, hz) = (self.longest, A::hz());
                answer.record::<A>(&Undone { undone: 1, steps, ticks, longest, longest_before, hz });
            }
            _ => return,
        }
        self.longest = self.longest.max(longest);
        self.times = StepTimes::default();
        self.pages = 0;
        self.round += 1;
    }
}
