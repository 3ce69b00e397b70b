//! Requests about the life of guests, and about all of them.

use alloc::boxed::Box;
use hostlink::ctl::{Input, Request, SendWay, record};
use hostlink::exit::ExitCode;
use hostlink::guests::GuestState;
use hostlink::name::Name;
use memslots::{SlotError, SlotId};
use paging::{Invalidation, Progress};

use super::Answer;
use super::migration::{Receiving, Sending};
use super::refusal::{Refusal, check_log};
use crate::stopping;
use crate::vm::arch::Arch;
use crate::vm::dma::Devices;
use crate::vm::files::Files;
use crate::vm::gone::Leaving;
use crate::vm::load::Load;
use crate::vm::machine::Vm;
use crate::vm::shown::DEVICE_SLOT;
use crate::vm::space::{FlushScratch, MemoryJob};
use crate::vm::{CreateError, Host, end};

/// Sends the record of this number, or the next one that there is; returns the number after it.
type Send<A> = fn(&'static Host<A>, usize, &mut Answer) -> Option<usize>;

pub(super) enum Life<A: Arch> {
    /// Records are sent, from this one on.
    List(Send<A>, usize),
    /// One record is sent.
    Memory,
    /// What is typed for a guest.
    Input(Name, u16, Input),
    /// A guest is to be created.
    Create(Name),
    /// A guest's memory is being filled; then it starts, if it is to.
    Load {
        vm: &'static Vm<A>,
        load: Option<Load<A>>,
        starts: bool,
    },
    /// The devices of a guest that has ended are being reset, before it is loaded again.
    Again(&'static Vm<A>),
    /// A guest is to change its state.
    Change(Change, Name),
    /// All vCPUs of a guest are stopping.
    Pausing(&'static Vm<A>),
    /// A guest is being destroyed.
    Destroy(Box<Destroy<A>>),
    /// A guest is to be sent in this session.
    Send(Name, u64, SendWay),
    Sending(Box<Sending<A>>),
    /// A guest is to be received, with this generation id.
    Receive(Name, u128),
    Receiving(Box<Receiving<A>>),
    /// The request is done.
    Over,
}

#[derive(Clone, Copy)]
pub(super) enum Change {
    Start,
    Pause,
    Resume,
    Wake,
    Reset,
    Destroy,
}

pub(super) struct Destroy<A: Arch> {
    vm: &'static Vm<A>,
    stage: Stage<A>,
    scratch: FlushScratch,
    /// Why, if it is not because of a request: it could not be loaded.
    because: Option<Refusal>,
}

enum Stage<A: Arch> {
    Stop,
    /// Its devices are cut off from its memory.
    Devices,
    /// Its slots are removed, one after the other.
    Slots,
    Slot(Box<MemoryJob<'static, A>>),
    /// Freed memory is being cleaned.
    Clean,
    /// Its devices are reset, for others.
    Reset,
    /// CPUs leave the address space.
    Leave(Leaving<A>),
}

impl<A: Arch> Life<A> {
    /// How a request is served, and which guest it is about, if it is about a single one; `None` if
    /// it is about one guest's memory or counters.
    pub(super) fn new(request: Request) -> Option<(Option<Name>, Self)> {
        let change = |guest, change| Some((Some(guest), Self::Change(change, guest)));
        match request {
            Request::Vms => Some((None, Self::List(send_vm, 0))),
            Request::Guests => Some((None, Self::List(send_guest, 0))),
            Request::Memory => Some((None, Self::Memory)),
            Request::Input { guest, port, bytes } => Some((Some(guest), Self::Input(guest, port, bytes))),
            Request::Create { guest } => Some((Some(guest), Self::Create(guest))),
            Request::Start { guest } => change(guest, Change::Start),
            Request::Pause { guest } => change(guest, Change::Pause),
            Request::Resume { guest } => change(guest, Change::Resume),
            Request::Wake { guest } => change(guest, Change::Wake),
            Request::Reset { guest } => change(guest, Change::Reset),
            Request::Destroy { guest } => change(guest, Change::Destroy),
            Request::Send { guest, session, way } => Some((Some(guest), Self::Send(guest, session, way))),
            Request::Receive { guest, generation } => Some((Some(guest), Self::Receive(guest, generation))),
            Request::Slots
            | Request::Add { .. }
            | Request::Delete { .. }
            | Request::LogStart { .. }
            | Request::LogFetch { .. }
            | Request::LogStop { .. }
            | Request::Stats => None,
        }
    }

    pub(super) fn step(&mut self, host: &'static Host<A>, answer: &mut Answer) -> Result<Progress, Refusal> {
        match self {
            Self::Over => return Ok(Progress::Done),
            Self::List(send, index) => {
                let Some(next) = send(host, *index, answer) else { return Ok(Progress::Done) };
                *index = next;
            }
            Self::Memory => {
                let free = host.free.lock().total();
                let (heap, stack) = (A::heap_used(), A::stack_left());
                answer.record::<A>(&record::Memory { free, heap, stack });
                *self = Self::Over;
            }
            Self::Input(guest, port, bytes) => {
                let number = host.number_of(*guest);
                let vm = number.and_then(|number| host.guest(number)).ok_or(Refusal::NoGuest(*guest))?;
                let taken = A::type_in(vm, *port, bytes.bytes()).ok_or(Refusal::NoPort(*port))?;
                answer.record::<A>(&record::Taken { taken: taken as u32 });
                *self = Self::Over;
            }
            Self::Create(guest) => {
                let loads = |vm, load| Ok(Self::Load { vm, load: Some(load), starts: false });
                *self = create(host, *guest, loads)?;
            }
            Self::Load { vm, load, starts } => {
                let Some(mut loading) = load.take() else { return Ok(Progress::Done) };
                if loading.step(vm) != Progress::Done {
                    *load = Some(loading);
                    return Ok(Progress::More);
                }
                vm.finish_load(loading);
                if *starts {
                    host.start(vm);
                }
                return Ok(Progress::Done);
            }
            Self::Again(vm) => {
                // Its end is recorded right before the last vCPU has left.
                let begun = if vm.has_stopped() { vm.power_on() } else { None };
                let Some(load) = begun else { return Ok(Progress::Waiting) };
                let load = load.map_err(|why| {
                    host.set_state(vm, GuestState::Failed, ExitCode::BadConfig as u32);
                    Refusal::Create(CreateError::Load(why))
                })?;
                let load = Some(load);
                *self = Self::Load { vm, load, starts: true };
            }
            Self::Change(change, guest) => *self = change.begin(host, *guest)?,
            Self::Pausing(vm) => {
                if !vm.has_stopped() {
                    return Ok(Progress::Waiting);
                }
                // It may have ended meanwhile.
                if vm.attention() & stopping::END == 0 {
                    host.set_state(vm, GuestState::Paused, 0);
                }
                return Ok(Progress::Done);
            }
            Self::Destroy(destroy) => return destroy.step(host),
            Self::Send(guest, session, way) => *self = send(host, (*guest, *session, *way), answer)?,
            Self::Sending(sending) => return sending.step(answer),
            &mut Self::Receive(guest, generation) => {
                *self = create(host, guest, |vm, _| {
                    Ok(Self::Receiving(Box::new(Receiving::new(vm, generation, answer)?)))
                })?;
            }
            Self::Receiving(receiving) => return receiving.step(answer),
        }
        Ok(Progress::More)
    }
}

fn send_vm<A: Arch>(host: &'static Host<A>, from: usize, answer: &mut Answer) -> Option<usize> {
    let vm = host.next_guest(from as u32)?;
    let mut memory = 0;
    vm.space.slots().memory().for_each(|slot| {
        if slot.id != DEVICE_SLOT && !slot.is_device() {
            memory += slot.size;
        }
    });
    let generation = vm.space.slots().generation().number();
    answer.record::<A>(&record::Vm { vm: vm.number as u16, vcpus: vm.vcpu_count(), memory, generation });
    Some(vm.number as usize + 1)
}

/// Sends a guest that the bundle describes.
fn send_guest<A: Arch>(host: &'static Host<A>, number: usize, answer: &mut Answer) -> Option<usize> {
    let config = &host.bundle.guests.get(number)?.config;
    answer.record::<A>(&record::Guest {
        guest: config.name,
        state: host.state_of(number as u32),
        vcpus: config.vcpus,
        memory: config.memory,
        weight: config.weight,
        used: host.used_by(number as u32),
    });
    Some(number + 1)
}

/// A guest that does not exist: its number and its files.
fn empty<A: Arch>(host: &'static Host<A>, name: Name) -> Result<(u32, &'static Files), Refusal> {
    let (number, state) = number_of(host, name)?;
    if state != GuestState::Empty {
        return Err(Refusal::State { guest: name, state, wanted: "empty" });
    }
    host.bundle.guests.get(number as usize).map(|files| (number, files)).ok_or(Refusal::NoGuest(name))
}

fn send<A: Arch>(
    host: &'static Host<A>,
    (name, session, way): (Name, u64, SendWay),
    answer: &mut Answer,
) -> Result<Life<A>, Refusal> {
    let (number, state) = number_of(host, name)?;
    let may = matches!(state, GuestState::Running | GuestState::Paused | GuestState::Given);
    let vm = host.guest(number);
    vm.map_or(Ok(()), check_log)?;
    let vm = vm.filter(|_| may).ok_or(Refusal::State { guest: name, state, wanted: "running or paused" })?;
    Ok(Life::Sending(Box::new(Sending::new(vm, session, way, answer)?)))
}

/// Creates a guest that does not exist, and goes on as `then` says if it can be loaded. Otherwise
/// it is destroyed.
fn create<A: Arch>(
    host: &'static Host<A>,
    name: Name,
    then: impl FnOnce(&'static Vm<A>, Load<A>) -> Result<Life<A>, Refusal>,
) -> Result<Life<A>, Refusal> {
    let (number, files) = empty(host, name)?;
    let (vm, planned) = host.create_guest(number, files).map_err(Refusal::Create)?;
    let planned = planned.map_err(|why| Refusal::Create(CreateError::Load(why)));
    Ok(planned.and_then(|load| then(vm, load)).unwrap_or_else(|why| {
        Life::Destroy(Box::new(Destroy { because: Some(why), ..Destroy::of(vm, false) }))
    }))
}

fn number_of<A: Arch>(host: &Host<A>, name: Name) -> Result<(u32, GuestState), Refusal> {
    let number = host.number_of(name).ok_or(Refusal::NoGuest(name))?;
    Ok((number, host.state_of(number)))
}

impl Change {
    fn begin<A: Arch>(self, host: &'static Host<A>, guest: Name) -> Result<Life<A>, Refusal> {
        use GuestState::{Failed, Loaded, Off, Paused, Running};
        let (number, state) = number_of(host, guest)?;
        let refused = |wanted| Refusal::State { guest, state, wanted };
        let Some(vm) = host.guest(number) else { return Err(refused("there: create it first")) };
        match (self, state) {
            (Self::Start, Loaded) | (Self::Resume, Paused) => host.start(vm),
            (Self::Start, Off | Failed) => {
                // From now on, so that the run does not end meanwhile.
                host.set_state(vm, Running, 0);
                return Ok(Life::Again(vm));
            }
            (Self::Pause, Running) => {
                vm.stop_soon();
                return Ok(Life::Pausing(vm));
            }
            (Self::Wake, Running) => A::wake(vm),
            (Self::Reset, Running) => vm.begin_stop(stopping::RESET),
            (Self::Destroy, _) => {
                if state == Running {
                    vm.stop_soon();
                }
                return Ok(Life::Destroy(Box::new(Destroy::of(vm, state != Loaded))));
            }
            (Self::Start, _) => return Err(refused("loaded, off or failed")),
            (Self::Resume, _) => return Err(refused("paused")),
            (Self::Pause | Self::Wake | Self::Reset, _) => return Err(refused("running")),
        }
        Ok(Life::Over)
    }
}

impl<A: Arch> Destroy<A> {
    /// Begins to destroy a guest that stops, or that has never run.
    pub(super) fn of(vm: &'static Vm<A>, has_run: bool) -> Self {
        vm.host.set_state(vm, GuestState::Leaving, 0);
        let stage = if has_run { Stage::Stop } else { Stage::Devices };
        Self { vm, stage, scratch: FlushScratch::new(), because: None }
    }

    pub(super) fn step(&mut self, host: &'static Host<A>) -> Result<Progress, Refusal> {
        let vm = self.vm;
        self.stage = match &mut self.stage {
            Stage::Stop if !vm.has_stopped() => return Ok(Progress::Waiting),
            Stage::Stop => Stage::Devices,
            Stage::Devices => {
                A::Devices::detach(vm).unwrap_or_else(|stuck| end::end_stalled_run::<A>(&stuck));
                Stage::Slots
            }
            // A change that the guest has begun comes first.
            Stage::Slots if vm.step_change(None) != Progress::Done => return Ok(Progress::More),
            Stage::Slots => match self.next_slot() {
                None => Stage::Clean,
                Some(id) => match vm.space.remove(id) {
                    Ok(job) => Stage::Slot(Box::new(job)),
                    Err(SlotError::Busy) => return Ok(Progress::Waiting),
                    Err(why) => return Err(Refusal::Slot(why)),
                },
            },
            Stage::Slot(job) => match vm.step_job(&mut **job, &mut self.scratch) {
                Progress::Done => Stage::Slots,
                progress => return Ok(progress),
            },
            Stage::Clean if vm.clean_some() => return Ok(Progress::More),
            Stage::Clean => Stage::Reset,
            Stage::Reset => {
                let progress = A::Devices::give_back(vm);
                if progress != Progress::Done {
                    return Ok(progress);
                }
                // The tables that are left have no entries: nothing is cached by them afterwards.
                Stage::Leave(Leaving::new(vm, vm.flush_space(Invalidation::Everything, &mut self.scratch)))
            }
            Stage::Leave(leaving) => {
                let Some(gone) = leaving.gone() else { return Ok(Progress::Waiting) };
                // SAFETY: all vCPUs have stopped, the slots are gone, and this was the last use.
                unsafe { host.free_guest(&gone) };
                return self.because.take().map_or(Ok(Progress::Done), Err);
            }
        };
        Ok(Progress::More)
    }

    fn next_slot(&self) -> Option<SlotId> {
        let mut first = None;
        self.vm.space.slots().memory().for_each(|slot| first = first.max(Some(slot.id)));
        first
    }
}
