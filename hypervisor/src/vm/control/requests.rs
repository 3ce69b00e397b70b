//! The implementation of requests, in steps.

use alloc::boxed::Box;
use core::sync::atomic::Ordering;
use hostlink::config::Stage2Unmap;
use hostlink::counters::Counter;
use hostlink::ctl::{Access, Log, LogWay, Request, record};
use hostlink::phase::Phase;
use memslots::space::LogWay as SlotLog;
use memslots::{Gpa, Slot, SlotError, SlotFlags, SlotId};
use paging::Progress;

use super::cost::{ChangeRecord, StepTimes};
use super::refusal::{Refusal, check_log, named, refusal};
use super::{Answer, runs};
use crate::devices::region::Region;
use crate::vm::Vm;
use crate::vm::arch::{Arch, Board};
use crate::vm::dma::{Devices, MapAhead};
use crate::vm::slot_memory::NewSlot;
use crate::vm::space::{DirtyFetch, FlushScratch, MemoryJob};

/// Sends the record of this number, or the next one that there is; returns the number after it.
type Send<A> = fn(&Vm<A>, usize, &mut Answer) -> Option<usize>;

pub(super) enum Work<A: Arch> {
    /// Memory for a slot that is to be added is being zeroed.
    Clear(NewSlot),
    /// Records are sent, from this one on.
    List(Send<A>, usize),
    /// A change of the slots.
    Change {
        job: Box<MemoryJob<'static, A>>,
        scratch: Box<FlushScratch>,
        record: ChangeRecord,
        times: StepTimes,
        phase: Phase,
    },
    /// Freed memory is being cleaned.
    Clean,
    /// A fetch of a log.
    Fetch { id: SlotId, job: Box<DirtyFetch<'static, A>>, scratch: Box<FlushScratch> },
    /// New memory is being mapped for the guest's devices.
    Map(MapAhead),
    /// The result is sent, from this page on.
    Runs { id: SlotId, result: &'static mut [u64], page: u64 },
    /// The request is retried after another job.
    Later(Request),
    /// The request was refused at once.
    Refused(Refusal),
    /// The request is done.
    Over,
}

impl<A: Arch> Work<A> {
    pub(super) fn new(vm: &'static Vm<A>, request: Request) -> Self {
        let begun = match request {
            Request::Slots => Ok(Self::List(send_slot, 0)),
            Request::Stats => Ok(Self::List(send_counter, 0)),
            Request::Add { gpa, size, access } => add(vm, Gpa(gpa), size, access),
            Request::Delete { slot } => delete(vm, slot),
            Request::LogStart { slot, way } => begin_log(vm, slot, way)
                .map(|job| Self::change(job, ChangeRecord::Nothing, Phase::DirtyEnable)),
            Request::LogFetch { slot } => begin_fetch(vm, SlotId(slot)).map(|job| Self::Fetch {
                id: SlotId(slot),
                job: Box::new(job),
                scratch: Box::new(FlushScratch::new()),
            }),
            Request::LogStop { slot } => {
                let job = vm.space.stop_log(SlotId(slot));
                job.map(|job| Self::change(job, ChangeRecord::Nothing, Phase::None))
                    .map_err(|error| refusal(slot, error))
            }
            Request::Vms
            | Request::Guests
            | Request::Memory
            | Request::Input { .. }
            | Request::Create { .. }
            | Request::Start { .. }
            | Request::Pause { .. }
            | Request::Resume { .. }
            | Request::Wake { .. }
            | Request::Reset { .. }
            | Request::Destroy { .. }
            | Request::Send { .. }
            | Request::Receive { .. } => Err(Refusal::OfNoMemory),
        };
        let work = begun.unwrap_or_else(|why| match why {
            // Another job, the guest's, is over soon.
            Refusal::Slot(SlotError::Busy) => Self::Later(request),
            why => Self::Refused(why),
        });
        vm.want_turn(matches!(work, Self::Later(_)));
        work
    }

    fn change(job: MemoryJob<'static, A>, record: ChangeRecord, phase: Phase) -> Self {
        Self::Change {
            job: Box::new(job),
            scratch: Box::new(FlushScratch::new()),
            record,
            times: StepTimes::default(),
            phase,
        }
    }

    pub(super) fn step(&mut self, vm: &'static Vm<A>, answer: &mut Answer) -> Result<Progress, Refusal> {
        Ok(match self {
            Self::Refused(why) => return Err(*why),
            Self::Over => Progress::Done,
            Self::List(send, index) => {
                let Some(next) = send(vm, *index, answer) else { return Ok(Progress::Done) };
                *index = next;
                Progress::More
            }
            Self::Clear(new) => {
                match new.ready() {
                    None => new.clear_some::<A>(),
                    Some(slot) => self.publish(vm, slot),
                }
                Progress::More
            }
            Self::Later(request) => {
                *self = Self::new(vm, *request);
                if matches!(self, Self::Later(_)) { Progress::Waiting } else { Progress::More }
            }
            Self::Change { job, scratch, record, times, phase } => {
                let step = step_change(vm, job, scratch, times, *phase);
                if step != Progress::Done {
                    return Ok(step);
                }
                record.send::<A>(&job.report(), *times, answer);
                // The job is dropped before the auditor looks at its result.
                *self = match record {
                    ChangeRecord::Added(_) if A::Devices::are_owned(vm) => Self::Map(MapAhead::default()),
                    _ => Self::Clean,
                };
                vm.audit_if_paranoid();
                Progress::More
            }
            Self::Map(ahead) => match ahead.step(vm) {
                Progress::Done => {
                    *self = Self::Clean;
                    Progress::More
                }
                Progress::OutOfTables => return Err(Refusal::NoTables),
                progress => progress,
            },
            Self::Clean => match marked::<A, _>(Phase::Reclaim, || vm.clean_some()) {
                true => Progress::More,
                false => Progress::Done,
            },
            Self::Fetch { job, scratch, id } => {
                let step = marked::<A, _>(Phase::DirtyFetch, || vm.step_job(&mut **job, scratch));
                if step != Progress::Done {
                    return Ok(step);
                }
                *self = Self::fetched(vm, *id);
                Progress::More
            }
            Self::Runs { result, page, id } => {
                let next = runs::send_runs::<A>(result, *page, answer);
                *page = next.unwrap_or(*page);
                if next.is_some() {
                    return Ok(Progress::More);
                }
                let id = *id;
                *self = Self::Over;
                vm.memory_of_slots.lock().put_result(id);
                Progress::Done
            }
        })
    }

    /// Adds the slot whose memory is ready, unless another job is in progress.
    fn publish(&mut self, vm: &'static Vm<A>, slot: Slot) {
        // SAFETY: the memory is mapped one to one, and has no other user until the slot is handed
        // back.
        let begun = unsafe { vm.space.add(slot) };
        let is_later = matches!(begun, Err(SlotError::Busy));
        vm.want_turn(is_later);
        match begun {
            Ok(job) => *self = Self::change(job, ChangeRecord::Added(slot.id.0), Phase::None),
            Err(_) if is_later => {}
            Err(error) => {
                vm.retire_memory(&slot);
                *self = Self::Refused(named(vm, error));
            }
        }
    }

    fn fetched(vm: &Vm<A>, id: SlotId) -> Self {
        let mut memory = vm.memory_of_slots.lock();
        memory.put_result(id);
        match memory.take_result(id) {
            Some(result) => Self::Runs { id, result, page: 0 },
            None => Self::Refused(Refusal::NoSlot(id.0)),
        }
    }
}

fn step_change<A: Arch>(
    vm: &'static Vm<A>,
    job: &mut MemoryJob<'static, A>,
    scratch: &mut FlushScratch,
    took: &mut StepTimes,
    phase: Phase,
) -> Progress {
    let start = A::now();
    // Once the slots have changed the guest may go on: the rest only frees memory.
    let is_reclaiming = job.generation().is_some() && phase == Phase::Blocking;
    let phase = if is_reclaiming { Phase::Reclaim } else { phase };
    let step = marked::<A, _>(phase, || vm.step_job(job, scratch));
    took.add(A::now() - start);
    step
}

/// Runs `act` within a phase whose instructions are counted.
fn marked<A: Board, R>(phase: Phase, act: impl FnOnce() -> R) -> R {
    A::mark(phase);
    let result = act();
    A::mark(Phase::None);
    result
}

pub(super) fn find<A: Arch>(vm: &Vm<A>, slot: u16) -> Result<Slot, Refusal> {
    vm.space.slots().memory().get(SlotId(slot)).ok_or(Refusal::NoSlot(slot))
}

fn add<A: Arch>(vm: &'static Vm<A>, gpa: Gpa, size: u64, access: Access) -> Result<Work<A>, Refusal> {
    let memory = vm.space.slots().memory();
    let id = (0..u16::MAX).map(SlotId).find(|&id| memory.get(id).is_none());
    drop(memory);
    add_as(vm, id.ok_or(Refusal::Slot(SlotError::Full))?, gpa, size, access)
}

/// Begins to add memory as the slot of this number.
pub(super) fn add_as<A: Arch>(
    vm: &'static Vm<A>,
    id: SlotId,
    gpa: Gpa,
    size: u64,
    access: Access,
) -> Result<Work<A>, Refusal> {
    let mut flags = SlotFlags::empty();
    flags.set(SlotFlags::READ_ONLY, access == Access::ReadOnly);
    // Errors in the request itself are reported before a lack of memory here.
    let probe = Slot { id, gpa, size, host: memslots::PhysAddr(0), flags };
    let possible = vm.space.slots().would_add(&probe);
    // An access to memory does not exit, so the device would become inaccessible. An overlapping
    // slot may be the device's own, which is added and removed at run time: the device is named in
    // either case.
    if let Ok(()) | Err(SlotError::Overlap(_)) = possible
        && let Some(Region { name, range }) =
            A::device_regions(vm).into_iter().find(|region| region.overlaps(gpa.0, size))
    {
        return Err(Refusal::Device { name, start: range.start, end: range.end });
    }
    possible.map_err(|error| named(vm, error))?;
    // In this order, as everywhere: the guest's own memory, then the machine's.
    let mut added = vm.memory_of_slots.lock();
    let mut free = vm.host.free.lock();
    let mut memory = 0;
    // The tables of devices' registers were taken with the guest.
    vm.space.slots().memory().for_each(|slot| memory += if slot.is_device() { 0 } else { slot.size });
    let largest = free.largest();
    if largest < size {
        return Err(Refusal::NoMemory { size, largest });
    }
    vm.tables.cover(&mut free, memory + size).ok_or(Refusal::NoTables)?;
    added.take(&mut free, id, gpa, size, flags).map(Work::Clear).ok_or(Refusal::NoMemory { size, largest })
}

fn delete<A: Arch>(vm: &'static Vm<A>, slot: u16) -> Result<Work<A>, Refusal> {
    find(vm, slot)?;
    if !vm.memory_of_slots.lock().was_added(SlotId(slot)) {
        return Err(Refusal::NotAdded(slot));
    }
    let by_page = vm.files.config.switches.stage2_unmap == Stage2Unmap::Page;
    let phase = if by_page { Phase::PerPage } else { Phase::Blocking };
    let scratch = Box::new(FlushScratch::new());
    let place = Box::new_uninit();
    let job = marked::<A, _>(phase, || vm.space.remove(SlotId(slot)).map(|job| Box::write(place, job)));
    let job = job.map_err(|error| refusal(slot, error))?;
    Ok(Work::Change { job, scratch, record: ChangeRecord::Cost, times: StepTimes::default(), phase })
}

pub(super) fn begin_log<A: Arch>(
    vm: &'static Vm<A>,
    slot: u16,
    way: LogWay,
) -> Result<MemoryJob<'static, A>, Refusal> {
    let former = find(vm, slot)?;
    check_log(vm)?;
    if former.is_read_only() {
        return Err(Refusal::ReadOnly(slot));
    }
    if former.is_logged() {
        return Err(Refusal::Slot(SlotError::HasLog));
    }
    let way = match way {
        LogWay::DirtyBits => A::log_way(),
        LogWay::WriteProtection => SlotLog::WriteFaults,
    };
    let log = vm.memory_of_slots.lock().make_log(&former);
    // SAFETY: the log lives until the slot hands it back.
    marked::<A, _>(Phase::DirtyEnable, || unsafe { vm.space.start_log(SlotId(slot), log, way) }).map_err(
        |error| {
            vm.memory_of_slots.lock().retire_log(SlotId(slot));
            refusal(slot, error)
        },
    )
}

pub(super) fn begin_fetch<A: Arch>(
    vm: &'static Vm<A>,
    id: SlotId,
) -> Result<DirtyFetch<'static, A>, Refusal> {
    if !find(vm, id.0)?.is_logged() {
        return Err(Refusal::Slot(SlotError::NoLog));
    }
    let result = vm.memory_of_slots.lock().take_result(id);
    let result = result.ok_or(Refusal::Slot(SlotError::NoLog))?;
    vm.space.fetch_log(id, result).map_err(|error| {
        vm.memory_of_slots.lock().put_result(id);
        refusal(id.0, error)
    })
}

fn send_slot<A: Arch>(vm: &Vm<A>, index: usize, answer: &mut Answer) -> Option<usize> {
    // Ordered by number, because slots may be added and removed between two records.
    let mut found: Option<Slot> = None;
    vm.space.slots().memory().for_each(|slot| {
        if usize::from(slot.id.0) >= index && found.is_none_or(|best| slot.id < best.id) {
            found = Some(*slot);
        }
    });
    let slot = found?;
    answer.record::<A>(&record::Slot {
        slot: slot.id.0,
        gpa: slot.gpa.0,
        size: slot.size,
        host: slot.host.0,
        access: Access::read_only(slot.is_read_only()),
        log: if slot.is_logged() { Log::On } else { Log::Off },
    });
    Some(usize::from(slot.id.0) + 1)
}

fn send_counter<A: Arch>(vm: &Vm<A>, index: usize, answer: &mut Answer) -> Option<usize> {
    let counter = Counter::ALL.get(index)?;
    let value = vm.vcpus.iter().fold(0u64, |sum, vcpu| {
        let row = vm.host.counters_of(vcpu.row);
        sum.wrapping_add(row[*counter as usize].load(Ordering::Relaxed))
    });
    answer.record::<A>(&format_args!("{}={value}", counter.name()));
    Some(index + 1)
}
