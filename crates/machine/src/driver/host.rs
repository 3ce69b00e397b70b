//! Operations of the host on a virtual machine: changes of its memory while it runs.

use std::rc::Rc;
use std::sync::atomic::AtomicU64;

use memslots::space::{Job, LogWay};
use memslots::{DirtyLog, Gpa, Retired, Slot, SlotError, SlotId};
use paging::{Flushed, Invalidation, Level, MapError, Permissions, Progress, Tables};
use stay::Proof;

use super::flush::FlushProof;
use super::life::{Row, new_slot};
use super::migrate::{Image, LOG_WORDS};
use super::vm::{Architecture, Log, Vm};
use crate::bug::Bug;
use crate::layout::{AREA_SIZE, PAGE_SIZE, PAGES, area};
use crate::machine::TablePool;
use crate::program::{Backing, GpaPage, HostOp, Track};

/// An audit follows one operation in this many.
const AUDIT_ONE_IN: usize = 50;
/// The most turns before the host of a new guest continues.
const LIFE_TURNS_MAX: usize = 100;

/// The actor of the host for one virtual machine: performs its operations in order.
pub(crate) fn run_host<F: Architecture>(row: &Row<'_, F>, ops: &[HostOp]) {
    row.attach_devices();
    for &op in ops {
        let Some(vm) = row.vm() else { return };
        let machine = vm.machine;
        machine.give_way();
        machine.note(|| format!("begins {op:?}"));
        vm.is_changing.set(true);
        match op {
            HostOp::Recreate => begin_another(row, vm, None),
            HostOp::Migrate { rounds, cut } => match vm.migrate(rounds, cut) {
                Some(image) => begin_another(row, vm, Some(image)),
                None => vm.is_changing.set(false),
            },
            _ => vm.perform(op),
        }
        machine.count();
    }
}

/// Destroys the guest, and creates another one in its place, which lives for a while.
fn begin_another<F: Architecture>(row: &Row<'_, F>, vm: Rc<Vm<'_, F>>, image: Option<Image>) {
    let machine = vm.machine;
    drop(vm);
    match image {
        None => row.recreate(None, Vm::load),
        Some(image) => row.recreate(Some(&image.slots), |vm| vm.restore(&image)),
    }
    let turns = machine.below(LIFE_TURNS_MAX);
    (0..turns).take_while(|_| !row.is_over()).for_each(|_| machine.give_way());
}

type SpaceJob<'a, 'm, F> = Job<'a, F, TablePool<'m>>;

impl<'m, F: Architecture> Vm<'m, F> {
    /// Performs an operation on the guest that is here.
    fn perform(&self, op: HostOp) {
        let machine = self.machine;
        let result = self.host_op(op);
        self.fill_mirror_up();
        self.is_changing.set(false);
        machine.note(|| format!("ends {op:?}: {result:?}"));
        if machine.below(AUDIT_ONE_IN) == 0 {
            machine.demand(self.audit());
        }
    }

    /// Performs an operation. An operation that the slots do not allow is refused and changes
    /// nothing.
    pub(super) fn host_op(&self, op: HostOp) -> Result<(), SlotError> {
        match op {
            HostOp::Add { slot, area, backing, read_only } => self.add(slot, area, backing, read_only),
            HostOp::Remove(slot) => self.remove(slot),
            HostOp::Replace(slot, backing) => {
                let former = self.slot(slot)?;
                self.remove(slot)?;
                let at = crate::layout::area_of(former.gpa.0).map_or(0, |(area, _)| area);
                self.add(slot, at, backing, former.is_read_only())
            }
            HostOp::Move(slot, to) => self.run_job(op, self.space.move_to(SlotId(slot), Gpa(area(to)))?),
            HostOp::SetReadOnly(slot, read_only) => {
                self.run_job(op, self.space.set_read_only(SlotId(slot), read_only)?)
            }
            // The stores of devices leave no trace.
            HostOp::StartLog(_) if self.behind.has_devices() => Err(SlotError::NoLog),
            HostOp::StartLog(slot) => self.start_log(op, slot),
            HostOp::Fetch(slot) => self.fetch(slot, || ()).map(drop),
            HostOp::StopLog(slot) => {
                let former = self.slot(slot)?;
                let job = self.space.stop_log(SlotId(slot))?;
                self.machine.oracle.borrow_mut().stop_log(former.host.0);
                self.run_job(op, job)
            }
            HostOp::Split(slot) => self.split(slot),
            HostOp::Collapse(slot) => self.collapse(slot),
            HostOp::Zap(at) => {
                self.zap(at);
                Ok(())
            }
            HostOp::Write(page) => {
                self.write(page);
                Ok(())
            }
            HostOp::Toggle(slot, count) => {
                let backing = if self.machine.config.large_only { Backing::Large } else { Backing::Small };
                for _ in 0..count {
                    self.add(slot, slot.into(), backing, false)?;
                    self.remove(slot)?;
                }
                Ok(())
            }
            // They concern the row: see `run_host`.
            HostOp::Recreate | HostOp::Migrate { .. } => Ok(()),
            HostOp::Wake(vcpu) => {
                self.post_event(vcpu);
                Ok(())
            }
        }
    }

    pub(super) fn slot(&self, id: u16) -> Result<Slot, SlotError> {
        self.space.slots().memory().get(SlotId(id)).ok_or(SlotError::UnknownId)
    }

    fn add(&self, id: u16, to: usize, backing: Backing, read_only: bool) -> Result<(), SlotError> {
        let Some(slot) = new_slot(self.machine, id, to, backing, read_only) else {
            return Err(SlotError::Full);
        };
        let op = HostOp::Add { slot: id, area: to, backing, read_only };
        // SAFETY: the memory lives as long as the machine, and is freed only after it was returned.
        match unsafe { self.space.add(slot) } {
            Ok(job) => self.run_job(op, job)?,
            Err(error) => {
                self.machine.hw.borrow_mut().memory.free_region(slot.host.0);
                return Err(error);
            }
        }
        if to == 0 {
            self.load();
        }
        Ok(())
    }

    pub(super) fn remove(&self, id: u16) -> Result<(), SlotError> {
        let former = self.slot(id)?;
        if self.machine.has(Bug::DevicesToldEarly) {
            self.tell_devices();
        }
        let job = self.space.remove(SlotId(id))?;
        self.machine.oracle.borrow_mut().stop_log(former.host.0);
        self.run_job(HostOp::Remove(id), job)
    }

    /// Steps a job to its end, with a flush whenever it requests one.
    pub(super) fn run_job(&self, op: HostOp, mut job: SpaceJob<'_, 'm, F>) -> Result<(), SlotError> {
        let machine = self.machine;
        self.updates.set(self.updates.get() + 1);
        machine.point();
        let protects = matches!(op, HostOp::SetReadOnly(..) | HostOp::StartLog(_));
        let is_put_together = machine.has(Bug::LargeBeforeFlush) && matches!(op, HostOp::StopLog(_));
        if machine.has(Bug::FlushBeforeUnmap) || is_put_together {
            self.flush(Invalidation::Everything);
        }
        let are_told_early = machine.has(Bug::DevicesToldEarly);
        let is_forged = matches!(machine.bug, Some(Bug::FlushBeforeUnmap | Bug::MemoryFreedEarly))
            || machine.ends_by(Bug::MemoryHandedOnEarly, self.index)
            || machine.ends_by(Bug::TagHandedOn, self.index)
            || machine.has(Bug::ProtectWithoutFlush) && protects
            || is_put_together;
        loop {
            let flush = |invalidation: Invalidation<'_>| match is_forged {
                true => self.forge(),
                false if machine.has(Bug::TableFreedEarly) => FlushProof::forged(),
                false if are_told_early => self.flush_with(None, invalidation),
                false => self.flush(invalidation),
            };
            match stay::step(&mut job, machine.config.step, flush, |what| self.retire(what)) {
                Progress::Waiting => machine.give_way(),
                Progress::More | Progress::Flush => machine.point(),
                Progress::OutOfTables => unreachable!("a job zaps what it cannot split"),
                Progress::Done => break,
            }
        }
        if matches!(machine.bug, Some(Bug::MemoryFreedEarly | Bug::TableFreedEarly)) {
            self.flush(Invalidation::Everything);
        }
        let Some(generation) = job.generation() else { return Ok(()) };
        machine.note(|| format!("generation {}", generation.number()));
        Ok(())
    }

    /// A receipt for a flush that was not made; its guarantees are promised nevertheless.
    fn forge(&self) -> FlushProof {
        let time = self.machine.now();
        self.machine.oracle.borrow_mut().promise_nested_all(self.index, time);
        FlushProof::forged()
    }

    /// Takes back memory or a log that an update has removed from use.
    pub(super) fn retire(&self, what: Retired) {
        match what {
            Retired::Log { .. } if self.machine.has(Bug::LogDroppedEarly) => {}
            Retired::Memory { slot, .. } => {
                let was_used = self.machine.hw.borrow_mut().memory.free_region(slot.host.0);
                if !was_used {
                    self.machine.fail(|| format!("the memory of {slot:?} is handed back twice"));
                }
            }
            Retired::Log { log, .. } => {
                let mut logs = self.logs.borrow_mut();
                match logs.iter_mut().find(|other| other.words.as_ptr() == log.as_ptr() && !other.is_retired)
                {
                    Some(log) => {
                        log.retire();
                    }
                    None => {
                        drop(logs);
                        self.machine.fail(|| "a dirty log is handed back twice".into());
                    }
                }
            }
        }
    }

    /// Whether the nested tables are as they would be after a zap of everything and new faults.
    pub(super) fn audit(&self) -> Result<(), String> {
        let audit = self.space.audit().map_err(|error| format!("no audit: {error}"))?;
        match audit.first {
            None => Ok(()),
            Some(first) => Err(format!(
                "not as after a full zap: {first} ({} of {})",
                audit.wrong_count, audit.leaf_count
            )),
        }
    }

    /// Whether no dirty log was written to after it was returned.
    pub(crate) fn check_logs(&self) -> Result<(), String> {
        match self.logs.borrow().iter().all(Log::is_as_it_was_left) {
            true => Ok(()),
            false => Err("a dirty log was written to after it was handed back".into()),
        }
    }

    pub(super) fn start_log(&self, op: HostOp, id: u16) -> Result<(), SlotError> {
        let slot = self.slot(id)?;
        let words: Box<[AtomicU64]> = (0..LOG_WORDS).map(|_| AtomicU64::new(0)).collect();
        let log = DirtyLog::new(&words);
        let way = match self.machine.config.track {
            Track::DirtyBits => LogWay::DirtyBits,
            Track::Lists => LogWay::Lists,
            Track::WriteProtection => LogWay::WriteFaults,
        };
        // SAFETY: the words live as long as the machine.
        let job = unsafe { self.space.start_log(SlotId(id), log, way) }?;
        self.logs.borrow_mut().push(Log { words, is_retired: false });
        self.run_job(op, job)?;
        self.machine.oracle.borrow_mut().start_log(slot.host.0, (slot.size / PAGE_SIZE) as usize);
        Ok(())
    }

    /// The permissions of leaves of a slot without a log.
    fn rights(slot: &Slot) -> Permissions {
        if slot.is_read_only() { Permissions::RX } else { Permissions::RWX }
    }

    fn split(&self, id: u16) -> Result<(), SlotError> {
        let slot = self.slot(id)?;
        if F::ARCH.is_x86() && !self.space.has_pieces() {
            // Only what the space knows of makes the first small pages.
            return Ok(());
        }
        let Some(editor) = self.space.tables().edit() else { return Err(SlotError::Busy) };
        let _ = self.finish(editor.split(slot.range(), Level::Page4K));
        Ok(())
    }

    fn collapse(&self, id: u16) -> Result<(), SlotError> {
        let slot = self.slot(id)?;
        if slot.is_logged() || slot.size != AREA_SIZE {
            return Ok(());
        }
        let Some(editor) = self.space.tables().edit() else { return Err(SlotError::Busy) };
        match editor.collapse(slot.range(), Level::Page2M, slot.host, Self::rights(&slot)) {
            Ok(change) => drop(self.finish(change)),
            Err(MapError::Unaligned) => {}
            Err(error) => self.machine.fail(|| format!("collapse: {error}")),
        }
        Ok(())
    }

    fn zap(&self, at: usize) {
        let range = area(at)..area(at) + AREA_SIZE;
        // The processors' dirty bits in leaves of a slot with a log would be lost.
        let mut has_log = false;
        self.space.slots().memory().for_each(|slot| {
            has_log |= slot.is_logged() && slot.gpa.0 < range.end && range.start <= slot.last().0;
        });
        if has_log {
            return;
        }
        let tables = match self.machine.below(4) {
            0 => Tables::Free,
            1 => Tables::Detach,
            _ => Tables::Keep,
        };
        let Some(editor) = self.space.tables().edit() else { return };
        let Some(flushed) = self.finish(editor.zap(range.clone(), tables)) else { return };
        if tables == Tables::Detach {
            loop {
                if let Some(editor) = self.space.tables().edit() {
                    let _ = editor.thaw(range, flushed).finish();
                    return;
                }
                self.machine.give_way();
            }
        }
    }

    /// Steps a change of the tables only to its end, flushes what it names, and frees what it
    /// holds. Returns the last flush.
    fn finish(&self, mut change: paging::Change<'_, F, TablePool<'m>>) -> Option<Flushed> {
        let machine = self.machine;
        let mut flushed = None;
        loop {
            match change.step(machine.config.step) {
                Progress::Done => break,
                Progress::OutOfTables => return self.owe(change.finish()).or(flushed),
                // A part may be flushed before the rest is begun.
                Progress::More if machine.below(16) == 0 => {
                    flushed = self.owe(change.take_gather()).or(flushed);
                }
                Progress::More | Progress::Flush | Progress::Waiting => machine.point(),
            }
        }
        self.owe(change.into_gather()).or(flushed)
    }

    /// Flushes what a gather requests, and frees what it holds. Returns the flush, if there was
    /// one.
    fn owe(&self, gather: paging::Gather<TablePool<'m>>) -> Option<Flushed> {
        let machine = self.machine;
        machine.note(|| format!("{gather:?}"));
        let is_nothing = matches!(gather.invalidation(), Invalidation::Nothing) && gather.table_count() == 0;
        let receipt = match machine.bug {
            _ if is_nothing => FlushProof::forged(),
            Some(Bug::FlushBeforeUnmap) => self.forge(),
            Some(Bug::TableFreedEarly) => FlushProof::forged(),
            _ => self.flush(gather.invalidation()),
        };
        match gather.release_in_steps(receipt.receipt()) {
            Ok(freeing) => {
                let flushed = freeing.flushed().filter(|_| !is_nothing);
                freeing.finish();
                flushed
            }
            Err(_) => {
                machine.fail(|| "a gather refuses the receipt for its flush".into());
                None
            }
        }
    }

    /// Stores to guest memory, like a device.
    fn write(&self, page: GpaPage) {
        let gpa = Gpa(area(page.area) + PAGES[page.page] * PAGE_SIZE);
        let memory = self.space.slots().memory();
        let memslots::Resolution::Ram { host, .. } = memory.resolve(gpa) else { return };
        self.machine.hw.borrow_mut().memory.touch(host.0);
        self.machine.point();
        let value = self.machine.now();
        if memory.write_u64(gpa, value).is_ok() {
            let now = self.machine.now();
            self.machine.oracle.borrow_mut().stored(host.0, now);
        }
    }
}
