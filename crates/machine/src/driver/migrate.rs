//! A guest that is sent by its dirty logs, and goes on from what was sent, or where it was.
//!
//! ```text
//! A  logs are started, slot by slot         E  a last round
//! B  all pages are copied                   F  what was copied is compared with memory
//! C  rounds: a log is fetched, with its     G  the guest is destroyed; another one gets the
//!    flush; then its pages are copied          copies for memory, and the vCPUs' registers
//! D  all vCPUs stop                         H  if cut: vCPUs go on, logs are stopped
//! ```
//!
//! Until D the guest runs. The mistakes in A to H are made by name; G is a new life in the same
//! place (`life`), so the oracle knows what must not be used any more.

use std::collections::BTreeMap;

use memslots::space::FetchJob;
use memslots::{Slot, SlotError, SlotId};
use paging::{Invalidation, Progress};

use super::flush::FlushProof;
use super::guest::PendingCall;
use super::vm::{Architecture, GuestTables, Log, Vm};
use crate::bug::Bug;
use crate::layout::{AREA_PAGES, AREA_SIZE, AREAS, PAGE_SIZE, PAGES};
use crate::machine::TablePool;
use crate::program::{GpaPage, HostOp};

/// A bit for each page of the largest slot.
pub(super) const LOG_WORDS: usize = AREA_PAGES / 64;
/// The most turns between two rounds.
const TURNS_MAX: usize = 30;

/// Of a page, by its slot and its number: the words up to the last one that is not zero.
type Pages = BTreeMap<(u16, usize), Vec<u64>>;

/// A guest as it was sent.
#[derive(Debug)]
pub(crate) struct Image {
    pub(super) slots: Vec<Slot>,
    pages: Pages,
    tables: GuestTables,
    /// Of each vCPU: its address space, how long it has been spinning, and its hypercall.
    vcpus: Vec<(usize, u16, Option<PendingCall>)>,
}

/// A guest that is being sent.
struct Sending<'v, 'm, F: Architecture> {
    vm: &'v Vm<'m, F>,
    slots: Vec<Slot>,
    pages: Pages,
    /// Steps until it is cut.
    left: Option<u8>,
}

impl<F: Architecture> Vm<'_, F> {
    /// Fetches a log. `at_flush` is called when a flush is due.
    pub(super) fn fetch(&self, id: u16, mut at_flush: impl FnMut()) -> Result<[u64; LOG_WORDS], SlotError> {
        let (machine, slot) = (self.machine, self.slot(id)?);
        let mut words = [0; LOG_WORDS];
        let begin = machine.now();
        let mut job: FetchJob<'_, '_, F, TablePool<'_>> = self.space.fetch_log(SlotId(id), &mut words)?;
        loop {
            let flush = |invalidation: Invalidation<'_>| {
                at_flush();
                match machine.has(Bug::FetchWithoutFlush) {
                    true => FlushProof::forged(),
                    false => self.flush(invalidation),
                }
            };
            match stay::step(&mut job, machine.config.step, flush, |_| ()) {
                Progress::Waiting => machine.give_way(),
                Progress::More | Progress::Flush => machine.point(),
                Progress::OutOfTables => unreachable!("a job zaps what it cannot split"),
                Progress::Done => break,
            }
        }
        drop(job);
        machine.note(|| format!("dirty: {:x?}", words));
        let result = machine.oracle.borrow_mut().fetched(slot.host.0, &words, begin);
        machine.demand(result.map_err(|what| format!("{id:?} of machine {}: {what}", self.index)));
        Ok(words)
    }

    /// Sends the guest. Returns what was sent if it is to go on from that.
    pub(super) fn migrate(&self, rounds: u8, cut: Option<u8>) -> Option<Image> {
        let mut slots = Vec::new();
        self.space.slots().memory().for_each(|slot| slots.push(*slot));
        // The stores of devices leave no trace; a log has one user.
        if self.behind.has_devices() || slots.iter().any(Slot::is_logged) {
            return None;
        }
        let mut sending = Sending { vm: self, slots, pages: Pages::new(), left: cut };
        let is_sent = sending.send(rounds).is_some();
        if !is_sent || cut.is_some() {
            sending.go_back();
            return None;
        }
        let Sending { slots, pages, .. } = sending;
        let registers = self.vcpus.iter().map(|vcpu| {
            let vcpu = vcpu.borrow();
            (vcpu.space, vcpu.spin, vcpu.call.clone())
        });
        let vcpus = registers.collect();
        Some(Image { slots, pages, tables: self.tables.borrow().clone(), vcpus })
    }

    /// G: a new guest is the one that was sent.
    pub(super) fn restore(&self, image: &Image) {
        let mut stores = Vec::new();
        self.space.slots().memory().for_each(|slot| {
            let pages = image.pages.range((slot.id.0, 0)..(slot.id.0 + 1, 0));
            for (&(_, page), words) in pages {
                let start = slot.host.0 + page as u64 * PAGE_SIZE;
                stores.extend((start..).step_by(8).zip(words.iter().copied()));
            }
        });
        self.machine.hw.borrow_mut().memory.store_together(stores);
        *self.tables.borrow_mut() = image.tables.clone();
        for (vcpu, registers) in self.vcpus.iter().zip(&image.vcpus) {
            let mut vcpu = vcpu.borrow_mut();
            (vcpu.space, vcpu.spin, vcpu.call) = registers.clone();
        }
    }
}

impl<F: Architecture> Sending<'_, '_, F> {
    /// A to F; `None` if it is cut.
    fn send(&mut self, rounds: u8) -> Option<()> {
        for slot in self.slots.clone() {
            self.take_step()?;
            let started = self.vm.start_log(HostOp::StartLog(slot.id.0), slot.id.0);
            self.vm.machine.demand(started.map_err(|error| format!("no log of {slot:?}: {error}")));
        }
        for slot in self.slots.clone() {
            self.take_step()?;
            copy(self.vm, &mut self.pages, &slot, |_| true);
        }
        for _ in 0..rounds {
            self.let_others_work();
            self.round()?;
        }
        let is_late = self.vm.machine.has(Bug::LastRoundRunning);
        if !is_late {
            self.vm.stand_still();
        }
        self.round()?;
        if is_late {
            self.vm.stand_still();
        }
        self.vm.machine.demand(self.compare());
        Some(())
    }

    fn take_step(&mut self) -> Option<()> {
        self.vm.machine.point();
        self.left = match self.left {
            Some(left) => Some(left.checked_sub(1)?),
            None => None,
        };
        Some(())
    }

    /// The guest runs, its memory is stored to, and a slot may come and go.
    fn let_others_work(&self) {
        let machine = self.vm.machine;
        (0..machine.below(TURNS_MAX)).for_each(|_| machine.give_way());
        let page = GpaPage { area: machine.below(AREAS), page: machine.below(PAGES.len()) };
        let op = match machine.below(3) {
            0 => HostOp::Toggle(AREAS as u16 - 1, 1),
            1 => HostOp::Write(page),
            _ => return,
        };
        // It may be in use.
        let _ = self.vm.host_op(op);
    }

    /// Fetches each log, and copies its pages.
    fn round(&mut self) -> Option<()> {
        let (vm, machine) = (self.vm, self.vm.machine);
        let is_running = !vm.is_still.get();
        let is_before_flush = is_running && machine.has(Bug::CopiedBeforeFlush);
        let is_before_fetch = is_running && machine.has(Bug::CopiedBeforeFetch);
        for slot in self.slots.clone() {
            self.take_step()?;
            let pages = &mut self.pages;
            if is_before_fetch {
                copy(vm, pages, &slot, |_| true);
            }
            let fetched = vm.fetch(slot.id.0, || {
                if is_before_flush {
                    copy(vm, pages, &slot, |_| true);
                }
                // The flush comes late.
                (0..machine.below(TURNS_MAX)).for_each(|_| machine.give_way());
            });
            let Ok(words) = fetched else {
                machine.fail(|| format!("the log of {slot:?} is gone"));
                return None;
            };
            if !is_before_fetch && !is_before_flush {
                copy(vm, pages, &slot, |page| words[page / 64] >> (page % 64) & 1 != 0);
            }
        }
        Some(())
    }

    /// F: whether each page was sent as it is.
    fn compare(&self) -> Result<(), String> {
        let memory = &self.vm.machine.hw.borrow().memory;
        for slot in &self.slots {
            for (page, start) in pages_of(slot) {
                let sent = self.pages.get(&(slot.id.0, page)).map_or(&[][..], Vec::as_slice);
                if memory.copy(start) != sent {
                    return Err(format!(
                        "M1: page {page} of slot {} of machine {} is not as it was sent",
                        slot.id.0, self.vm.index
                    ));
                }
            }
        }
        Ok(())
    }

    /// H: the guest goes on, and is as it was before.
    fn go_back(&self) {
        let (vm, machine) = (self.vm, self.vm.machine);
        machine.note(|| "goes back".into());
        vm.is_still.set(false);
        if machine.has(Bug::LogDroppedEarly) {
            vm.logs.borrow_mut().iter_mut().for_each(Log::retire);
        }
        let left_on = usize::from(machine.has(Bug::LogLeftOn));
        for slot in &self.slots[..self.slots.len().saturating_sub(left_on)] {
            // There may not have been one yet.
            if vm.host_op(HostOp::StopLog(slot.id.0)).is_ok() {
                machine.demand(self.is_large(slot));
            }
        }
        let mut logged = None;
        vm.space.slots().memory().for_each(|slot| logged = logged.or(slot.is_logged().then_some(*slot)));
        machine.demand(logged.map_or(Ok(()), |slot| Err(format!("M8: the log of {slot:?} is still on"))));
        machine.demand(vm.check_logs().and_then(|()| vm.audit()));
    }

    /// Whether no small page is left in a slot that can have a large one.
    fn is_large(&self, slot: &Slot) -> Result<(), String> {
        let can_be_large = slot.size == AREA_SIZE && slot.host.0.is_multiple_of(AREA_SIZE);
        let mut small = None;
        self.vm.space.tables().for_each(slot.range(), |found, _| {
            small = small.or((can_be_large && found.end - found.start < AREA_SIZE).then_some(found.start));
        });
        small.map_or(Ok(()), |gpa| Err(format!("M8: a small page is left at {gpa:#x}, in {slot:?}")))
    }
}

/// Copies pages as a reader of guest memory does, one after the other.
fn copy<F: Architecture>(vm: &Vm<'_, F>, into: &mut Pages, slot: &Slot, is_meant: impl Fn(usize) -> bool) {
    let machine = vm.machine;
    for (page, start) in pages_of(slot).filter(|&(page, _)| is_meant(page)) {
        let words = machine.hw.borrow().memory.copy(start);
        if words.is_empty() {
            into.remove(&(slot.id.0, page));
        } else {
            into.insert((slot.id.0, page), words);
            machine.point();
        }
    }
}

/// The pages of a slot, and where they are in memory.
fn pages_of(slot: &Slot) -> impl Iterator<Item = (usize, u64)> {
    (slot.host.0..slot.host.0 + slot.size).step_by(PAGE_SIZE as usize).enumerate()
}
