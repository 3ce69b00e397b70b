//! A guest arrives.
//!
//! It is created as others are, and its memory becomes zero. Then frames are taken as they come:
//! what the guest is made of once, in order; pages at any time before the clock. When all is there
//! and checked, it is [`TargetState::Ready`], and runs when it hears that it may.

use alloc::boxed::Box;
use core::ops::Range;
use hostlink::ctl::{Access, record};
use hostlink::guests::GuestState;
use memslots::{Gpa, SlotId, Sweep};
use migration::channel::Sizes;
use migration::frame::{Clock, Header, Kind, MemorySlot, PAGE, Section, is_same_rate};
use migration::handover::{Action, Message, TargetState};
use migration::{Described, Flaw};
use paging::Progress;

use super::super::Answer;
use super::super::life::Destroy;
use super::super::refusal::Refusal;
use super::super::requests::{Work, add_as};
use super::frames::{FrameChannel, PAGES_MAX};
use super::{STEP_US, describe, describe_beginning, next_section};
use crate::vm::Vm;
use crate::vm::arch::Arch;
use crate::vm::host::Host;
use crate::vm::shown::DEVICE_SLOT;
use crate::vm::slot_memory::CLEAR_BYTES;

enum Stage<A: Arch> {
    /// All memory becomes zero.
    Zero(Sweep),
    Hello,
    /// Slots, pages, and the clock behind them.
    Memory,
    /// A slot is being added.
    Adding(Box<Work<A>>),
    State(Section),
    End,
    /// Slots of devices follow the devices' states.
    Devices,
    /// The hand-over decides.
    Complete,
    Destroy(Box<Destroy<A>>),
    /// The tool has to leave the channel.
    Closes,
}

/// A guest that is being received.
pub(in super::super) struct Receiving<A: Arch> {
    host: &'static Host<A>,
    /// The guest. It is gone in [`Stage::Closes`], unless it runs.
    vm: &'static Vm<A>,
    channel: FrameChannel<A>,
    handover: TargetState,
    stage: Stage<A>,
    frames: u64,
    pages: u64,
    /// From this address on all is still zero.
    written: u64,
    clock: Clock,
    /// Its generation id here.
    generation: u128,
    /// It paused at the source, and does so here.
    pauses: bool,
    /// Ticks for which it stood still, by its own clock.
    stopped: u64,
    because: Option<Refusal>,
    is_closed: bool,
}

impl<A: Arch> Receiving<A> {
    /// Receives the guest, which was just created. This is its generation id here.
    pub(in super::super) fn new(
        vm: &'static Vm<A>,
        generation: u128,
        answer: &mut Answer,
    ) -> Result<Self, Refusal> {
        let host = vm.host;
        let channel = FrameChannel::take(host, Sizes::TARGET)?;
        host.set_state(vm, GuestState::Arriving, 0);
        answer.record::<A>(&record::Channel { channel: channel.place(), session: 0, given: 0 });
        Ok(Self {
            host,
            vm,
            channel,
            handover: TargetState::default(),
            stage: Stage::Zero(Sweep::new(CLEAR_BYTES)),
            frames: 0,
            pages: 0,
            written: 0,
            clock: Clock::default(),
            generation,
            pauses: false,
            stopped: 0,
            because: None,
            is_closed: false,
        })
    }

    /// Makes a short step.
    pub(in super::super) fn step(&mut self, answer: &mut Answer) -> Result<Progress, Refusal> {
        let start = A::now();
        self.channel.show_clock();
        if answer.is_abandoned && !self.is_closed {
            self.is_closed = true;
            self.told(Message::Cut);
        }
        if self.is_closed && matches!(self.stage, Stage::Closes) {
            return self.end(answer);
        }
        let mut progress = Ok(Progress::More);
        while matches!(progress, Ok(Progress::More)) && A::now() - start < A::ticks_of_us(STEP_US) {
            progress = self.advance();
        }
        // Nothing else ends the request: until the tool has left the channel, it is not freed, and
        // neither is a guest that was dropped before it is destroyed.
        Ok(progress.unwrap_or_else(|why| {
            if matches!(self.handover, TargetState::Arriving | TargetState::Ready) {
                self.fail(why);
            }
            Progress::Waiting
        }))
    }

    /// What came is no guest: tells the tool, and destroys it.
    fn fail(&mut self, why: Refusal) {
        let text = alloc::format!("{why}");
        // If the channel is broken the tool learns it at the request's end.
        let _ = self.channel.put(Kind::Failed, 0, text.as_bytes());
        self.because = Some(why);
        self.told(Message::Cut);
    }

    fn told(&mut self, heard: Message) {
        match self.handover.hear(heard) {
            Action::Run(then) => {
                let now = A::now();
                self.stopped = match self.clock.at {
                    Clock::NOW => 0,
                    at => now.saturating_sub(at),
                };
                self.vm.renew(self.generation);
                self.vm.begin(self.pauses);
                self.stage = Stage::Closes;
                if let Some(what) = then {
                    // The ring to the tool has held one frame so far.
                    let _ = self.channel.say(what);
                }
            }
            Action::Destroy => {
                // A change of the slots ends first.
                if !matches!(self.stage, Stage::Adding(_)) {
                    self.stage = Stage::Destroy(Box::new(Destroy::of(self.vm, false)));
                }
            }
            Action::Wait | Action::Say(_) => {}
        }
    }

    fn advance(&mut self) -> Result<Progress, Refusal> {
        let vm = self.vm;
        match &mut self.stage {
            Stage::Zero(sweep) => {
                let memory = vm.space.slots().memory();
                match sweep.next(&memory) {
                    Some(piece) if piece.slot.is_read_only() => {}
                    Some(piece) => {
                        // SAFETY: the slot's memory is the guest's alone, and no vCPU runs.
                        unsafe { A::zero(piece.host.start, piece.host.end - piece.host.start) };
                        clean::<A>(piece.host);
                    }
                    None => self.stage = Stage::Hello,
                }
            }
            Stage::Adding(work) => {
                let progress = work.step(vm, &mut Answer::unheard());
                if matches!(progress, Ok(Progress::More | Progress::Waiting | Progress::OutOfTables)) {
                    return progress;
                }
                self.stage = match self.handover {
                    TargetState::Dropped => Stage::Destroy(Box::new(Destroy::of(vm, false))),
                    _ => Stage::Memory,
                };
                progress?;
            }
            Stage::Devices => match vm.step_change(None) {
                Progress::Done if A::follow_state(vm, A::this_cpu()) => {
                    self.stage = Stage::Complete;
                    if let Action::Say(what) = self.handover.complete() {
                        self.channel.say(what)?;
                    }
                }
                Progress::Waiting => return Ok(Progress::Waiting),
                _ => {}
            },
            Stage::Destroy(destroy) => {
                let progress = destroy.step(self.host)?;
                if progress != Progress::Done {
                    return Ok(progress);
                }
                self.stage = Stage::Closes;
            }
            _ => return self.take(),
        }
        Ok(Progress::More)
    }

    /// Takes the next frame.
    fn take(&mut self) -> Result<Progress, Refusal> {
        let next = match self.channel.next() {
            Err(_) if self.because.is_some() || self.handover == TargetState::Running => None,
            next => next?,
        };
        let Some((header, kind)) = next else { return Ok(Progress::Waiting) };
        match kind {
            Kind::Cut => {
                self.is_closed = true;
                self.told(Message::Cut);
            }
            // What was under way when it could not go on.
            _ if matches!(self.stage, Stage::Closes) => {}
            Kind::Go => self.told(Message::Go),
            _ => {
                self.place(header, kind)?;
                self.frames += 1;
            }
        }
        self.channel.done(header);
        Ok(Progress::More)
    }

    /// Puts what a frame brings where it belongs.
    fn place(&mut self, header: Header, kind: Kind) -> Result<(), Refusal> {
        let vm = self.vm;
        match (kind, &self.stage) {
            (Kind::Hello, Stage::Hello) => {
                self.channel.read_state(header, |archive| describe_beginning(vm, archive))?;
                self.stage = Stage::Memory;
            }
            (Kind::Slot, Stage::Memory) => {
                let mut slot = MemorySlot::default();
                self.channel.read_state(header, |archive| slot.describe(archive))?;
                let (id, at) = (SlotId(slot.id), Gpa(header.argument));
                if id == DEVICE_SLOT {
                    return Err(Flaw::Value("the number of a slot").into());
                }
                let work = add_as(vm, id, at, slot.size, Access::ReadWrite)?;
                self.stage = Stage::Adding(Box::new(work));
            }
            (Kind::Zeros, Stage::Memory) if header.len() as u64 <= PAGES_MAX => {
                let is_new = header.argument >= self.written;
                pieces(vm, header.argument, (header.len() * PAGE) as u64, |host| {
                    if !is_new {
                        // SAFETY: the page is in a slot of the guest, whose memory nobody else
                        // uses, and no vCPU runs.
                        unsafe { A::zero(host.start, host.end - host.start) };
                        clean::<A>(host);
                    }
                })?;
            }
            (Kind::Pages, Stage::Memory) => {
                let (mut at, bytes) = (header.argument, header.len() as u64);
                pieces(vm, at, bytes, |_| ())?;
                let memory = vm.space.slots().memory();
                self.channel.body(header, |piece| {
                    // All of it is memory.
                    let _ = memory.write(Gpa(at), piece);
                    at += piece.len() as u64;
                })?;
                pieces(vm, header.argument, bytes, clean::<A>)?;
                self.written = self.written.max(at);
                self.pages += bytes / PAGE as u64;
            }
            // The tool's to look at.
            (Kind::Round, Stage::Memory) => {}
            (Kind::Clock, Stage::Memory) => {
                self.channel.read_state(header, |archive| self.clock.describe(archive))?;
                self.pauses = header.argument != 0;
                self.set_clock()?;
                self.stage = Stage::State(Section::Shared);
            }
            (Kind::State, &Stage::State(section)) => {
                if Section::of(header.argument) != Some(section) {
                    return Err(Flaw::Value("the order of the states").into());
                }
                self.channel.read_state(header, |archive| describe(vm, section, archive))?;
                self.stage = next_section(vm, section).map_or(Stage::End, Stage::State);
            }
            (Kind::End, Stage::End) if header.argument == self.frames => self.stage = Stage::Devices,
            _ => return Err(Flaw::Value("the order of the frames").into()),
        }
        Ok(())
    }

    /// The guest's clocks go on from where they were at a time of this machine's.
    fn set_clock(&self) -> Result<(), Flaw> {
        let Clock { ticks, wall_ns, at, hz } = self.clock;
        if !is_same_rate(A::hz(), hz) {
            return Err(Flaw::Rates("the rate of the clock", A::hz(), hz));
        }
        // Never later than now: time would go back.
        let at = at.min(A::now());
        self.vm.clock.set(&self.vm.host.wall, at, ticks, wall_ns);
        Ok(())
    }

    fn end(&mut self, answer: &mut Answer) -> Result<Progress, Refusal> {
        self.channel.give_back(self.host);
        if self.handover == TargetState::Running {
            answer.record::<A>(&record::Received {
                pages: self.pages,
                stopped: self.stopped,
                paused: self.pauses.into(),
                hz: A::hz(),
            });
            return Ok(Progress::Done);
        }
        Err(self.because.unwrap_or(Refusal::Dropped))
    }
}

/// Lets `act` have the memory behind so many bytes of the guest's, to all of which it can store.
fn pieces<A: Arch>(vm: &Vm<A>, gpa: u64, bytes: u64, mut act: impl FnMut(Range<u64>)) -> Result<(), Flaw> {
    let wrong = Flaw::Value("the address of a page");
    let end = gpa.checked_add(bytes).filter(|_| gpa.is_multiple_of(PAGE as u64)).ok_or(wrong)?;
    let memory = vm.space.slots().memory();
    let mut at = gpa;
    while at < end {
        let slot = memory.next_memory(Gpa(at)).filter(|slot| slot.contains(Gpa(at)) && !slot.is_read_only());
        let slot = slot.ok_or(wrong)?;
        let host = slot.host.0 + (at - slot.gpa.0);
        let len = (end - at).min(slot.range().end - at);
        act(host..host + len);
        at += len;
    }
    Ok(())
}

/// Memory that was written is seen by a guest that runs without caches, or executes it.
fn clean<A: Arch>(host: Range<u64>) {
    if A::must_clean_code() {
        A::clean(host);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::vm::tests::migration;

    #[test]
    fn m8_a_slot_that_cannot_be_added_after_a_cut_leaves_nothing() {
        let host = migration::board().host();
        let free = || host.free.lock().total();
        let (before, mut answer) = (free(), Answer::unheard());
        let Ok((vm, _)) = host.create_guest(1, &host.bundle.guests[1]) else { panic!("there is room") };
        let mut receiving = Receiving::new(vm, 0, &mut answer).unwrap_or_else(|why| panic!("{why}"));
        receiving.stage = Stage::Adding(Box::new(Work::Refused(Refusal::NoTables)));
        let end = (0..1000).find_map(|_| receiving.step(&mut answer).err());
        assert_eq!(end, Some(Refusal::Dropped));
        assert_eq!((host.state_of(1), free()), (GuestState::Empty, before));
    }
}
