//! The life of a guest: it is created and loaded, runs, pauses, ends, and is destroyed, while
//! others run.
//!
//! ```text
//!              create            start                  end
//!   (nothing) ────────▶ loaded ────────▶ running ─────────────────▶ off, failed
//!       ▲                                 │    ▲                         │   start: loaded again
//!       │                           pause ▼    │ resume                  │
//!       │                                paused                          │
//!       └───────────────── destroy, from every state ────────────────────┘
//!
//!   (nothing) ─── receive ──▶ arriving ───▶ running      running, paused ─── send ──▶ given
//!                                 └───────▶ (nothing)    given ───▶ (nothing), or running again
//! ```
//!
//! The boot CPU alone makes these transitions, except for `end`, which a vCPU causes: the last vCPU
//! to leave its CPU then records it.

use alloc::boxed::Box;
use core::ptr::NonNull;
use core::sync::atomic::{Ordering, fence};
use hostlink::config::{Config, MAX_GUESTS, Start};
use hostlink::exit::ExitCode;
use hostlink::guests::{Facts, GONE, GuestEntry, GuestState};

use super::arch::Arch;
use super::context::Context;
use super::files::{CreateError, Files};
use super::freed;
use super::gone::Gone;
use super::host::Host;
use super::load::Load;
use super::machine::{self, Vm};
use super::switch::Leave;
use crate::loader::LoadError;
use crate::sched::{CpuIndex, Share, VcpuIndex};

/// More of the heap than a guest needs, beside its vCPUs, and than each vCPU needs.
const HEAP_PER_GUEST: u64 = 1 << 20;
pub(crate) const HEAP_PER_VCPU: u64 = 48 << 10;
/// The same of a vCPU whose guest may have guests: two blocks, a map of two pages, walks to code,
/// and what an auditor keeps.
const HEAP_PER_NESTED: u64 = 56 << 10;

fn share(config: &Config<'_>) -> Share {
    Share { weight: config.weight, cap: config.cap, cpus: config.cpus }
}

pub(super) struct Guest<A: Arch>(NonNull<Vm<A>>);

// SAFETY: it stands for a shared reference to the machine, which all CPUs use.
unsafe impl<A: Arch> Send for Guest<A> {}

impl<A: Arch> Guest<A> {
    /// The machine. It exists until [`Host::free_guest`].
    pub(super) fn vm(&self) -> &'static Vm<A> {
        // SAFETY: made from a box in `create_guest_in`, which `free_guest` frees when nobody uses
        // it.
        unsafe { self.0.as_ref() }
    }
}

/// The host tool sees that a guest runs. That is before the guest goes on: its end may follow at
/// once, and is what the tool sees then.
#[must_use = "the guest does not go on"]
pub(super) struct Shown(());

/// The host tool sees a guest no more.
#[must_use = "its rings are not freed"]
pub(super) struct Unlisted(());

/// A new guest, and how its memory is loaded. If that is impossible it must be destroyed.
pub(super) type Created<A> = (&'static Vm<A>, Result<Load<A>, LoadError>);

impl<A: Arch> Host<A> {
    /// Creates the guests of the bundle that start with the machine.
    ///
    /// # Errors
    ///
    /// What the machine lacks, or what is wrong with the files.
    pub fn create_guests(&'static self) -> Result<(), CreateError> {
        for (number, files) in (0..).zip(&self.bundle.guests) {
            if files.config.start == Start::Auto {
                let (vm, planned) = self.create_guest(number, files)?;
                vm.load_at_once(planned.map_err(CreateError::Load)?);
            }
        }
        Ok(())
    }

    /// Creates the guest of this number, which does not exist. Its start is planned, as each reset
    /// will do: one that cannot be loaded may not run, wherever its memory comes from.
    ///
    /// # Errors
    ///
    /// What the machine lacks, or what is wrong with the files.
    pub(super) fn create_guest(&'static self, number: u32, files: &Files) -> Result<Created<A>, CreateError> {
        self.create_guest_in(number, self.first_row(number), files)
    }

    /// The same in these rows, from the first one on, which are free.
    pub(super) fn create_guest_in(
        &'static self,
        number: u32,
        first: VcpuIndex,
        files: &Files,
    ) -> Result<Created<A>, CreateError> {
        let per_vcpu = HEAP_PER_VCPU + if files.config.nested { HEAP_PER_NESTED } else { 0 };
        if A::heap_left() < HEAP_PER_GUEST + u64::from(files.config.vcpus) * per_vcpu {
            return Err(CreateError::NoHeap);
        }
        if !files.config.cpus.iter().any(|cpu| self.sched.has_cpu(CpuIndex(cpu))) {
            return Err(CreateError::NoCpuFor(files.config.name));
        }
        let guest = Guest(NonNull::from(Box::leak(machine::create(self, number, first, *files)?)));
        let vm = guest.vm();
        self.enter_rows(vm);
        let config = &vm.files.config;
        self.sched.add_group(number, vm.rows(), share(config));
        let facts = Facts {
            name: config.name,
            vcpus: config.vcpus,
            counters: self.counters_of(first).as_ptr().addr() as u64,
            weight: config.weight,
            cap: config.cap,
            memory: config.memory,
            consoles: vm.rings.as_ref().map_or_else(Default::default, |rings| rings.places()),
        };
        self.entry(number).fill(&facts, GuestState::Loaded);
        vm.set_requests_wait(self.requests_wait());
        if let Some(place) = self.guests.lock().get_mut(number as usize) {
            *place = Some(guest);
        }
        Ok((vm, Load::new(vm)))
    }

    /// The first row of the guest with this number. Each guest that the bundle describes has rows
    /// of its own, whether or not it exists; a bundle for whose guests there are not enough is
    /// refused.
    fn first_row(&self, number: u32) -> VcpuIndex {
        VcpuIndex(self.bundle.guests.iter().take(number as usize).map(|files| files.config.vcpus).sum())
    }

    /// What the host tool sees of a guest.
    pub(super) fn entry(&self, number: u32) -> &GuestEntry {
        &self.entries[number as usize]
    }

    /// What a guest does.
    pub fn state_of(&self, number: u32) -> GuestState {
        // Acquire: pairs with `set_state`.
        let code = self.entry(number).state.load(Ordering::Acquire);
        GuestState::from_code(code).unwrap_or_default()
    }

    /// Ticks of the clock for which a guest's vCPUs have had CPUs.
    pub(super) fn used_by(&self, number: u32) -> u64 {
        self.sched.used(number, A::now())
    }

    pub(super) fn set_state(&self, vm: &Vm<A>, state: GuestState, exit: u32) {
        self.entry(vm.number).set_state(state, exit);
    }

    pub(super) fn start(&self, vm: &Vm<A>) {
        self.set_state(vm, GuestState::Running, 0);
        vm.pauses.store(false, Ordering::Relaxed); // By the boot CPU alone.
        vm.go_on(Shown(()));
    }

    /// What [`Vm::go_on`] takes, if the guest is in this state.
    pub(super) fn shown_as_running(&self, vm: &Vm<A>) -> Option<Shown> {
        (self.state_of(vm.number) == GuestState::Running).then_some(Shown(()))
    }

    /// Frees a guest.
    ///
    /// # Safety
    ///
    /// Its vCPUs have all left their CPUs, its slots have been removed, and the caller does not use
    /// the guest any more.
    pub(super) unsafe fn free_guest(&self, gone: &Gone<A>) {
        let vm = gone.vm();
        let number = vm.number;
        self.sched.remove_group(number);
        self.leave_rows(vm);
        let mut guests = self.guests.lock();
        let Some(guest) = guests.get_mut(number as usize).and_then(Option::take) else { return };
        drop(guests);
        // SAFETY: made from a box in `create_guest_in`. No vCPU of it is on a CPU or in a queue, so
        // no CPU uses it (see `host.rs`); the caller is the boot CPU, the only one that finds it by
        // its number.
        let vm = unsafe { freed::take(guest.0) };
        let unlisted = self.unlist(number);
        let Vm { tables, rings, vcpus, .. } = vm; // Everything else is dropped.
        freed::drop_all(vcpus);
        let mut free = self.free.lock();
        // SAFETY: no CPU has loaded the address space (`Gone`), and nobody uses the machine's
        // memory, which has the other copy of `tables`, any more; to drop it frees no table.
        unsafe { tables.give_back(&mut free) };
        if let Some(rings) = rings {
            rings.give_back(&mut free, unlisted);
        }
    }

    /// Readers of a guest's rings notice from now on that the memory may be in use again.
    fn unlist(&self, number: u32) -> Unlisted {
        self.entry(number).clear();
        Unlisted(())
    }

    /// The end of a guest has been recorded. The run ends with its last guest.
    pub(super) fn end_with_last(&self) {
        // Pairs with itself: of guests that end at the same time, one finds the other's end.
        fence(Ordering::SeqCst);
        if !self.lives_beside(MAX_GUESTS) {
            A::exit(self.verdict());
        }
    }

    /// The guest of this entry, which is free, has gone elsewhere: the tool learns it if no guest
    /// is left that lives.
    pub(super) fn note_last_gone(&self, number: u32) {
        if !self.lives_beside(MAX_GUESTS) {
            self.entry(number).set_state(GuestState::Empty, GONE);
        }
    }

    pub(super) fn record_end(&self, number: u32, code: ExitCode) {
        let state = match code {
            ExitCode::GuestPowerOff | ExitCode::GuestReset => GuestState::Off,
            _ => GuestState::Failed,
        };
        self.entry(number).set_state(state, code as u32);
    }

    /// Whether a guest with another number runs, or may go on.
    fn lives_beside(&self, number: u32) -> bool {
        use GuestState::{Arriving, Given, Offered, Paused, Running};
        let lives = |other| matches!(self.state_of(other), Running | Paused | Arriving | Given | Offered);
        (0..MAX_GUESTS).any(|other| other != number && lives(other))
    }

    /// The end of the run when all guests have ended: that of the first one that failed, in the
    /// order of their numbers; otherwise a reset if one was ended by that.
    fn verdict(&self) -> ExitCode {
        let ends = || {
            self.entries
                .iter()
                .filter_map(|entry| ExitCode::from_code(entry.exit.load(Ordering::Relaxed).cast_signed()))
        };
        let failed = ends().find(|code| !matches!(code, ExitCode::GuestPowerOff | ExitCode::GuestReset));
        failed
            .or_else(|| ends().find(|code| *code == ExitCode::GuestReset))
            .unwrap_or(ExitCode::GuestPowerOff)
    }
}

impl<A: Arch> Vm<A> {
    /// Whether its devices are about to get the state that they had elsewhere: until then it hears
    /// nothing.
    pub fn is_arriving(&self) -> bool {
        self.host.state_of(self.number) == GuestState::Arriving
    }

    /// The guest ends, in the way that `code` says: its vCPUs stop at their next check for events.
    /// The run ends with its last guest, at once.
    #[cold]
    pub fn end(&self, code: ExitCode) {
        if !self.host.lives_beside(self.number) {
            self.host.record_end(self.number, code);
            A::exit(self.host.verdict());
        }
        self.begin_end(code);
    }
}

impl<A: Arch> Context<'_, A> {
    #[cold]
    pub(super) fn end(&mut self, code: ExitCode) -> Option<Leave> {
        self.vm.end(code);
        self.stop()
    }
}
