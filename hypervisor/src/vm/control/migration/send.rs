//! A guest leaves.
//!
//! ```text
//!  Log ─▶ Hello ─▶ round 0 ─▶ Awaits ─┬─ Next ───▶ the next round ─▶ Awaits
//!   (while it runs)                   └─ Finish ─▶ it stops, the last round
//!                                                       │
//!  it stood still from the beginning: round 0 is the last one
//!                                                       ▼
//!                   clock, states, end ─▶ Offered ─▶ Given ─▶ it is destroyed
//!                                            │ cut      │ absent
//!                                            └──────────┴──▶ it goes on, logs are stopped
//! ```
//!
//! A cut in any stage lets the guest go on at once; then its logs are stopped, and small pages
//! become large ones again, in steps.

use alloc::boxed::Box;
use alloc::vec::Vec;
use core::sync::atomic::Ordering;
use hostlink::ctl::{LogWay, SendWay, record};
use hostlink::guests::GuestState;
use memslots::{Slot, SlotError};
use migration::Flaw;
use migration::channel::Sizes;
use migration::frame::{Kind, Round, Section};
use migration::handover::{Action, Message, SourceState};
use paging::Progress;

use super::super::Answer;
use super::super::life::Destroy;
use super::super::refusal::{Refusal, refusal};
use super::super::requests::begin_log;
use super::frames::FrameChannel;
use super::rounds::slots;
use super::stop::Stop;
use super::throttle::Throttle;
use super::{STEP_US, go_on, leave_inner};
use crate::stopping;
use crate::vm::arch::Arch;
use crate::vm::host::Host;
use crate::vm::space::{DirtyFetch, FlushScratch, MemoryJob};
use crate::vm::{CreateError, Vm};

pub(super) enum Stage<A: Arch> {
    /// The next slot's stores are to be logged.
    Log,
    Logging(MemoryJob<'static, A>),
    Hello,
    /// The slot of this place is next in the round.
    Slot(usize),
    Whole(usize, u64),
    Fetching(usize, Box<DirtyFetch<'static, A>>),
    Pages(usize, &'static mut [u64], u64),
    /// The tool decides.
    Awaits,
    /// vCPUs stop for the last round.
    Stops,
    Clock,
    State(Section),
    /// All has been sent: the hand-over decides.
    Offered,
    /// It stays: logs are stopped.
    Undo,
    Undoing(MemoryJob<'static, A>),
    Destroy(Box<Destroy<A>>),
    /// The tool has to leave the channel.
    Closes,
}

/// A guest that is being sent.
pub(in super::super) struct Sending<A: Arch> {
    pub(super) host: &'static Host<A>,
    /// The guest. It is gone when it has been destroyed.
    pub(super) vm: &'static Vm<A>,
    pub(super) number: u32,
    pub(super) channel: FrameChannel<A>,
    pub(super) handover: SourceState,
    pub(super) stage: Stage<A>,
    /// The slots with memory, to all of which the guest can store.
    pub(super) slots: Vec<Slot>,
    pub(super) logged: usize,
    pub(super) round: Round,
    pub(super) rounds: u32,
    /// All rounds together.
    pub(super) sent: Round,
    pub(super) is_last: bool,
    pub(super) is_cancelled: bool,
    pub(super) throttle: Throttle,
    pub(super) begun: u64,
    pub(super) stop: Stop,
    pub(super) scratch: Box<FlushScratch>,
    /// Why it could not go on.
    pub(super) because: Option<Refusal>,
    /// The tool has left the channel.
    pub(super) is_closed: bool,
}

impl<A: Arch> Sending<A> {
    /// Begins to send a guest that runs or pauses, or goes on with one that was given away.
    pub(in super::super) fn new(
        vm: &'static Vm<A>,
        session: u64,
        way: SendWay,
        answer: &mut Answer,
    ) -> Result<Self, Refusal> {
        let is_given = vm.host.state_of(vm.number) == GuestState::Given;
        let slots = slots(vm, is_given)?;
        let channel = FrameChannel::take(vm.host, Sizes::SOURCE)?;
        channel.show_clock();
        let session = if is_given { vm.given.load(Ordering::Relaxed) } else { session };
        vm.given.store(session, Ordering::Relaxed); // By the boot CPU alone.
        vm.pauses.fetch_or(vm.host.state_of(vm.number) == GuestState::Paused, Ordering::Relaxed);
        answer.record::<A>(&record::Channel { channel: channel.place(), session, given: is_given.into() });
        let (handover, stage) = match (is_given, way) {
            (true, _) => (SourceState::Given, Stage::Offered),
            (false, SendWay::Live) => (SourceState::Here, Stage::Log),
            (false, SendWay::Still) => (SourceState::Here, Stage::Stops),
        };
        let mut sending = Self {
            host: vm.host,
            vm,
            number: vm.number,
            channel,
            handover,
            stage,
            slots,
            logged: 0,
            round: Round::default(),
            rounds: 0,
            sent: Round::default(),
            is_last: way == SendWay::Still,
            is_cancelled: false,
            throttle: Throttle::default(),
            begun: A::now(),
            stop: Stop::default(),
            scratch: Box::new(FlushScratch::new()),
            because: None,
            is_closed: false,
        };
        if sending.is_last && !is_given {
            sending.stand_still();
        }
        Ok(sending)
    }

    /// Makes a short step.
    pub(in super::super) fn step(&mut self, answer: &mut Answer) -> Result<Progress, Refusal> {
        let (start, stood_still) = (A::now(), self.stop.is_now());
        self.channel.show_clock();
        if answer.is_abandoned && !self.is_closed {
            self.is_closed = true;
            self.cut();
        }
        match self.stage {
            Stage::Closes if self.is_closed && !self.stop.is_now() => return self.end(answer),
            Stage::Offered if self.is_closed => {
                self.channel.give_back(self.host);
                return Err(Refusal::Given(self.vm.given.load(Ordering::Relaxed)));
            }
            _ => {}
        }
        let mut progress = self.advance();
        while matches!(progress, Ok(Progress::More)) && self.hurries(start) {
            progress = self.advance();
        }
        self.stop.stepped(A::now() - start, stood_still);
        // Nothing else ends the request: until the tool has left the channel, it is not freed.
        Ok(progress.unwrap_or_else(|why| {
            match self.because {
                None if self.handover.may_cancel() => self.fail(why),
                None => self.because = Some(why),
                Some(_) => {}
            }
            Progress::Waiting
        }))
    }

    /// Whether more is done in a step that began at `start`. A step of a change is one of its own
    /// while the guest runs.
    fn hurries(&self, start: u64) -> bool {
        let copies = matches!(self.stage, Stage::Whole(..) | Stage::Pages(..));
        (copies || self.stop.is_now()) && A::now() - start < A::ticks_of_us(STEP_US)
    }

    /// It cannot be sent: tells the tool, and goes back.
    fn fail(&mut self, why: Refusal) {
        if self.channel.has_room() == Ok(true) {
            let text = alloc::format!("{why}");
            // Room was checked.
            let _ = self.channel.put(Kind::Failed, 0, text.as_bytes());
        }
        self.because = Some(why);
        self.cut();
    }

    /// The connection is cut, or the request is cancelled.
    fn cut(&mut self) {
        let act = self.handover.hear(Message::Cut);
        if self.handover != SourceState::Here {
            // What came of it is not known here.
            return;
        }
        debug_assert!(matches!(act, Action::Run(None) | Action::Wait));
        self.is_cancelled = true;
        if self.throttle.leave() {
            self.stop.begin(A::now());
            if !self.vm.has_stopped() {
                self.vm.hurry(true);
            }
        }
        self.go_on();
        match &self.stage {
            // These end first.
            Stage::Logging(_) | Stage::Fetching(..) | Stage::Undoing(_) | Stage::Closes => {}
            Stage::Pages(slot, ..) => {
                let id = self.slots.get(*slot).map(|slot| slot.id);
                id.into_iter().for_each(|id| self.vm.memory_of_slots.lock().put_result(id));
                self.stage = Stage::Undo;
            }
            _ => self.stage = Stage::Undo,
        }
    }

    /// Makes the guest stop for the last round.
    fn stand_still(&mut self) {
        self.is_last = true;
        self.throttle.leave();
        if self.vm.host.state_of(self.vm.number) == GuestState::Running {
            self.stop.begin(A::now());
            self.vm.stop_soon();
        }
        self.stage = Stage::Stops;
    }

    /// Lets the guest go on if it stands still for this.
    fn go_on(&mut self) {
        if self.vm.host.state_of(self.vm.number) == GuestState::Offered {
            let pauses = self.vm.pauses.load(Ordering::Relaxed);
            let state = if pauses { GuestState::Paused } else { GuestState::Running };
            self.vm.host.set_state(self.vm, state, 0);
        }
        // It goes on when the last vCPU has left its CPU.
        if self.stop.is_now() && self.vm.has_stopped() {
            self.stop.end(A::now());
            go_on(self.vm);
        }
    }

    fn advance(&mut self) -> Result<Progress, Refusal> {
        if let Some(progress) = self.hear()? {
            return Ok(progress);
        }
        if self.handover == SourceState::Away {
            return self.leave();
        }
        if self.is_cancelled && self.stop.is_now() {
            self.go_on();
        }
        let has_ended = self.vm.attention() & stopping::END != 0;
        if has_ended && self.because.is_none() && self.handover == SourceState::Here && !self.is_cancelled {
            return Err(Refusal::HasEnded);
        }
        if !self.is_last && !self.is_cancelled {
            self.throttle.step(self.vm);
        }
        let next = self.next();
        // The guest's own change comes first, and begins no other one before this one's.
        let is_later = matches!(next, Err(Refusal::Slot(SlotError::Busy)));
        self.vm.want_turn(is_later);
        match next {
            Err(_) if is_later => Ok(Progress::Waiting),
            next => next,
        }
    }

    /// Takes a frame of the tool's, if there is one.
    fn hear(&mut self) -> Result<Option<Progress>, Refusal> {
        if self.is_closed {
            return Ok(None);
        }
        let next = match self.channel.next() {
            // Nothing that the tool says counts any more.
            Err(_) if self.because.is_some() || !self.handover.may_cancel() => None,
            next => next?,
        };
        let Some((header, kind)) = next.filter(|_| self.channel.has_room() == Ok(true)) else {
            return Ok(None);
        };
        self.channel.done(header);
        match (kind, &self.stage) {
            (Kind::Cut, _) => {
                self.is_closed = true;
                self.cut();
            }
            (Kind::Next, Stage::Awaits) => self.begin_round(),
            (Kind::Finish, Stage::Awaits) => self.stand_still(),
            (Kind::Slow, _) => self.throttle.set(header.argument),
            (Kind::Ready, Stage::Offered) => self.told(Message::Ready)?,
            (Kind::Runs, Stage::Offered) => self.told(Message::Runs)?,
            (Kind::Absent, Stage::Offered) => self.told(Message::Absent)?,
            // It crossed the guest's end, or a cut.
            _ if self.is_cancelled => {}
            _ => return Err(Refusal::Moves(Flaw::Value("a frame of the tool's"))),
        }
        Ok(Some(Progress::More))
    }

    fn told(&mut self, heard: Message) -> Result<(), Refusal> {
        let former = self.handover;
        match self.handover.hear(heard) {
            Action::Say(what) => {
                // G: from here on it stands still until it is known what came of it.
                self.vm.host.set_state(self.vm, GuestState::Given, 0);
                self.stop.end(A::now());
                self.channel.say(what)?;
            }
            Action::Run(_) => {
                self.is_cancelled = true;
                if former == SourceState::Given {
                    self.vm.begin(self.vm.pauses.load(Ordering::Relaxed));
                } else {
                    self.go_on();
                }
                self.stage = Stage::Undo;
            }
            Action::Destroy => self.stage = Stage::Destroy(Box::new(Destroy::of(self.vm, true))),
            Action::Wait => {}
        }
        Ok(())
    }

    fn next(&mut self) -> Result<Progress, Refusal> {
        let vm = self.vm;
        match &mut self.stage {
            Stage::Log => match self.slots.get(self.logged) {
                Some(slot) => self.stage = Stage::Logging(begin_log(vm, slot.id.0, LogWay::DirtyBits)?),
                None => self.stage = Stage::Hello,
            },
            Stage::Logging(job) => {
                let progress = vm.step_job(job, &mut self.scratch);
                if progress != Progress::Done {
                    return Ok(progress);
                }
                self.logged += 1;
                self.stage = if self.is_cancelled { Stage::Undo } else { Stage::Log };
            }
            Stage::Fetching(place, job) => {
                let place = *place;
                let progress = vm.step_job(&mut **job, &mut self.scratch);
                if progress != Progress::Done {
                    return Ok(progress);
                }
                self.fetched(place)?;
            }
            Stage::Undo => match self.first_logged() {
                Some(id) => {
                    let job = vm.space.stop_log(id).map_err(|error| refusal(id.0, error))?;
                    self.stage = Stage::Undoing(job);
                }
                None => {
                    vm.audit_if_paranoid();
                    self.stage = Stage::Closes;
                }
            },
            Stage::Undoing(job) => {
                let progress = vm.step_job(job, &mut self.scratch);
                if progress != Progress::Done {
                    return Ok(progress);
                }
                self.stage = Stage::Undo;
            }
            Stage::Closes | Stage::Offered | Stage::Awaits => return Ok(Progress::Waiting),
            Stage::Stops if !vm.has_stopped() => return Ok(Progress::Waiting),
            Stage::Stops if vm.step_change(None) != Progress::Done => {}
            // The middle of a reset is not sent. A vCPU that pauses, or gets little time, does not
            // come to its end, or comes to the middle of the next one.
            Stage::Stops => match vm.step_reset_stopped() {
                Ok(Progress::Done) => {
                    leave_inner(vm)?;
                    return self.send();
                }
                Ok(progress) => return Ok(progress),
                Err(why) => return Err(Refusal::Create(CreateError::Load(why))),
            },
            _ => return self.send(),
        }
        Ok(Progress::More)
    }

    /// The guest has gone: it is destroyed here.
    fn leave(&mut self) -> Result<Progress, Refusal> {
        let Stage::Destroy(destroy) = &mut self.stage else { return Ok(Progress::Waiting) };
        let progress = destroy.step(self.host)?;
        if progress != Progress::Done {
            return Ok(progress);
        }
        self.stage = Stage::Closes;
        Ok(Progress::More)
    }
}
