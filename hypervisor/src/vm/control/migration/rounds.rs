//! What is sent of a guest: round by round, and its state at the end.

use alloc::boxed::Box;
use alloc::vec::Vec;
use core::sync::atomic::Ordering;
use hostlink::ctl::record;
use hostlink::guests::GuestState;
use memslots::{Slot, SlotError, SlotId};
use migration::Described;
use migration::frame::{Clock, Kind, MemorySlot, PAGE, Round, Section};
use migration::handover::SourceState;
use paging::Progress;

use super::super::Answer;
use super::super::refusal::Refusal;
use super::super::requests::begin_fetch;
use super::super::runs::find_run;
use super::frames::PAGES_MAX;
use super::send::{Sending, Stage};
use super::stop::Stop;
use super::{describe_beginning, is_devices};
use crate::vm::Vm;
use crate::vm::arch::Arch;
use crate::vm::shown::DEVICE_SLOT;

impl<A: Arch> Sending<A> {
    pub(super) fn begin_round(&mut self) {
        self.round = Round::default();
        self.begun = A::now();
        self.stage = Stage::Slot(0);
    }

    /// Sends something; the stages with frames of their own.
    pub(super) fn send(&mut self) -> Result<Progress, Refusal> {
        let vm = self.vm;
        if !self.channel.has_room()? {
            return Ok(Progress::Waiting);
        }
        match &mut self.stage {
            Stage::Hello => {
                self.send_hello()?;
                self.begin_round();
            }
            Stage::Stops if self.rounds == 0 && self.logged == 0 => self.stage = Stage::Hello,
            Stage::Stops => self.begin_round(),
            Stage::Slot(place) => match self.slots.get(*place) {
                None => self.end_round()?,
                Some(_) if self.rounds == 0 => self.stage = Stage::Whole(*place, 0),
                Some(slot) => {
                    let job = begin_fetch(vm, slot.id)?;
                    self.stage = Stage::Fetching(*place, Box::new(job));
                }
            },
            Stage::Whole(place, page) => {
                let Some(slot) = self.slots.get(*place) else { return Ok(Progress::Waiting) };
                let left = slot.size / PAGE as u64 - *page;
                if left == 0 {
                    self.stage = Stage::Slot(*place + 1);
                    return Ok(Progress::More);
                }
                let from = slot.gpa.0 + *page * PAGE as u64;
                let (count, zeros) = self.channel.put_pages(&vm.space.slots().memory(), from, left)?;
                *page += count;
                self.round.add(count, zeros);
            }
            Stage::Pages(place, marks, page) => {
                let Some(slot) = self.slots.get(*place) else { return Ok(Progress::Waiting) };
                let Some(run) = find_run(marks, *page, PAGES_MAX) else {
                    vm.memory_of_slots.lock().put_result(slot.id);
                    self.stage = Stage::Slot(*place + 1);
                    return Ok(Progress::More);
                };
                let (from, end) =
                    (slot.gpa.0 + run.start * PAGE as u64, run.end.min(slot.size / PAGE as u64));
                let memory = vm.space.slots().memory();
                let (count, zeros) = self.channel.put_pages(&memory, from, end - run.start)?;
                *page = run.start + count;
                self.round.add(count, zeros);
            }
            Stage::Clock => {
                let now = A::now();
                let mut clock =
                    Clock { ticks: vm.clock.at(now), wall_ns: vm.wall_ns(), at: now, hz: A::hz() };
                let pauses = vm.pauses.load(Ordering::Relaxed).into();
                self.channel.put_state(Kind::Clock, pauses, |archive| clock.describe(archive))?;
                self.stage = Stage::State(Section::Shared);
            }
            Stage::State(section) => {
                let section = *section;
                self.channel.put_state(Kind::State, section.argument(), |archive| {
                    super::describe(vm, section, archive)
                })?;
                self.stage = match super::next_section(vm, section) {
                    Some(next) => Stage::State(next),
                    None => {
                        self.channel.put(Kind::End, self.channel.frames, &[])?;
                        self.offer()
                    }
                };
            }
            // The other stages send nothing.
            _ => return Ok(Progress::Waiting),
        }
        Ok(Progress::More)
    }

    /// What the guest is, and the slots that were added to it.
    fn send_hello(&mut self) -> Result<(), Refusal> {
        let vm = self.vm;
        self.channel.put_state(Kind::Hello, 0, |archive| describe_beginning(vm, archive))?;
        for slot in self.slots.iter().filter(|slot| vm.memory_of_slots.lock().was_added(slot.id)) {
            let mut said = MemorySlot { id: slot.id.0, size: slot.size };
            self.channel.put_state(Kind::Slot, slot.gpa.0, |archive| said.describe(archive))?;
        }
        Ok(())
    }

    pub(super) fn fetched(&mut self, place: usize) -> Result<(), Refusal> {
        let id = self.slots.get(place).map_or(DEVICE_SLOT, |slot| slot.id);
        let mut memory = self.vm.memory_of_slots.lock();
        memory.put_result(id);
        if self.is_cancelled {
            drop(memory);
            self.stage = Stage::Undo;
            return Ok(());
        }
        let marks = memory.take_result(id).ok_or(Refusal::NoSlot(id.0))?;
        drop(memory);
        self.stage = Stage::Pages(place, marks, 0);
        Ok(())
    }

    fn end_round(&mut self) -> Result<(), Refusal> {
        self.round.ticks = A::now() - self.begun;
        self.round.hz = A::hz();
        self.sent.pages += self.round.pages;
        self.sent.zeros += self.round.zeros;
        if self.is_last {
            self.stage = Stage::Clock;
        } else {
            let (mut round, number) = (self.round, self.rounds.into());
            self.channel.put_state(Kind::Round, number, |archive| round.describe(archive))?;
            self.stage = Stage::Awaits;
        }
        self.rounds += 1;
        Ok(())
    }

    /// All has been sent.
    fn offer(&mut self) -> Stage<A> {
        self.handover.offer();
        self.vm.host.set_state(self.vm, GuestState::Offered, 0);
        Stage::Offered
    }

    /// A slot whose log is still on.
    pub(super) fn first_logged(&self) -> Option<SlotId> {
        let memory = self.vm.space.slots().memory();
        let is_logged = |id| memory.get(id).is_some_and(|slot| slot.is_logged());
        self.slots.iter().map(|slot| slot.id).find(|&id| is_logged(id))
    }

    /// The request is over: says what was sent.
    pub(super) fn end(&mut self, answer: &mut Answer) -> Result<Progress, Refusal> {
        self.channel.give_back(self.host);
        let away = u8::from(self.handover == SourceState::Away);
        if away != 0 {
            self.host.note_last_gone(self.number);
        }
        let Self { rounds, sent: Round { pages, zeros, .. }, .. } = *self;
        let hz = A::hz();
        let Stop { ticks: stopped, worked, longest, .. } = self.stop;
        answer.record::<A>(&record::Sent { away, rounds, pages, zeros, stopped, worked, longest, hz });
        self.because.map_or(Ok(Progress::Done), Err)
    }
}

/// The slots to send, in ascending order.
pub(super) fn slots<A: Arch>(vm: &Vm<A>, is_given: bool) -> Result<Vec<Slot>, Refusal> {
    let (mut slots, mut refused) = (Vec::new(), None);
    vm.space.slots().memory().for_each(|slot| match slot {
        slot if is_devices(slot) => {}
        slot if slot.is_read_only() => refused = Some(Refusal::ReadOnly(slot.id.0)),
        slot if slot.is_logged() && !is_given => refused = Some(Refusal::Slot(SlotError::HasLog)),
        slot => slots.push(*slot),
    });
    refused.map_or(Ok(slots), Err)
}
