//! Whether a vCPU is on: the state that PSCI's CPU_ON and CPU_OFF race for.
//!
//! ```text
//!    any vCPU: turn_on                              the owner of the target: take_start
//!    A  the state: off to claimed (RMW, Acquire)    D  takes the notify word     (RMW, Acquire)
//!    B  entry, context (relaxed stores)             E  the state: pending to on  (RMW, Acquire)
//!    C  the state: pending (store, Release)         F  entry, context (relaxed loads)
//!       then the notify word (RMW, Release)
//! ```
//!
//! B before C, E before F. A admits one caller; the others find the vCPU on or pending. If E finds
//! pending, F sees B of the caller that wrote it. Only the owner leaves `on`, by `turn_off`
//! (Release), whose partner is A: the next start is written after the vCPU has read its last. The
//! models beside this module run it under loom.

use migration::{Archive, Described, Flaw};

use super::Status;
use crate::sched::notify::Published;
use crate::sync::{AtomicU32, AtomicU64, Ordering};

const OFF: u32 = 0;
/// A caller is writing entry and context.
const CLAIMED: u32 = 1;
const PENDING: u32 = 2;
const ON: u32 = 3;

/// How a vCPU starts: at EL1 with MMU and caches off, interrupts masked, PC and X0 as given here,
/// other registers unknown.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Start {
    /// Guest physical address of the first instruction.
    pub entry: u64,
    /// X0.
    pub context: u64,
}

/// The result of AFFINITY_INFO.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u64)]
pub enum AffinityState {
    /// It runs, or waits in WFI.
    On = 0,
    /// It is off.
    Off = 1,
    /// It was told to start and has not started yet.
    OnPending = 2,
}

/// Why a vCPU cannot be started.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CpuOnError {
    /// It runs.
    AlreadyOn,
    /// Another caller is already starting it.
    OnPending,
}

impl From<CpuOnError> for Status {
    fn from(error: CpuOnError) -> Self {
        match error {
            CpuOnError::AlreadyOn => Self::AlreadyOn,
            CpuOnError::OnPending => Self::OnPending,
        }
    }
}

/// The power state of one vCPU.
#[derive(Debug, Default)]
pub struct Power {
    state: AtomicU32,
    entry: AtomicU64,
    context: AtomicU64,
}

impl Power {
    /// A vCPU that is off.
    pub fn off() -> Self {
        Self { state: AtomicU32::new(OFF), entry: AtomicU64::new(0), context: AtomicU64::new(0) }
    }

    /// Describes the state of a vCPU that is on or not: whether it was told to start, and where.
    /// Nobody turns it on or off meanwhile.
    ///
    /// # Errors
    ///
    /// That it cannot be read, or that a vCPU that is on was told to start.
    pub fn describe(&self, is_on: bool, archive: &mut Archive<'_>) -> Result<(), Flaw> {
        let Self { state, entry, context } = self;
        let mut pends = state.load(Ordering::Relaxed) == PENDING;
        archive.fixed(&mut pends, |pends| pends && !is_on).map_err(|flaw| flaw.named("power"))?;
        let now = if is_on {
            ON
        } else if pends {
            PENDING
        } else {
            OFF
        };
        state.store(now, Ordering::Relaxed);
        (entry, context).describe(archive)
    }

    /// Posts that the vCPU is to start.
    ///
    /// # Errors
    /// It is on, or is about to start. Nothing has changed then.
    pub fn turn_on(&self, start: Start) -> Result<Published, CpuOnError> {
        // Pairs with `turn_off`: the vCPU has read its last start.
        match self.state.compare_exchange(OFF, CLAIMED, Ordering::Acquire, Ordering::Relaxed) {
            Ok(_) => {
                self.entry.store(start.entry, Ordering::Relaxed);
                self.context.store(start.context, Ordering::Relaxed);
                // Pairs with `take_start`.
                self.state.store(PENDING, Ordering::Release);
                Ok(Published::here())
            }
            Err(ON) => Err(CpuOnError::AlreadyOn),
            Err(_) => Err(CpuOnError::OnPending),
        }
    }

    /// If the vCPU was told to start, marks it as on and returns how it starts. For its owner,
    /// after it has taken the notify word, while the vCPU is off.
    #[must_use]
    pub fn take_start(&self) -> Option<Start> {
        // Pairs with `turn_on`.
        self.state.compare_exchange(PENDING, ON, Ordering::Acquire, Ordering::Relaxed).ok()?;
        Some(Start {
            entry: self.entry.load(Ordering::Relaxed),
            context: self.context.load(Ordering::Relaxed),
        })
    }

    /// Marks the vCPU as off. For its owner, while it is on, as its last action.
    pub fn turn_off(&self) {
        // Pairs with `turn_on` and `affinity`.
        self.state.store(OFF, Ordering::Release);
    }

    /// The VM is reset or stopped: the vCPU is off regardless of what was posted. No vCPU of the VM
    /// may be running.
    pub fn reset(&self) {
        self.turn_off();
    }

    /// Whether it is on.
    pub fn is_on(&self) -> bool {
        // Relaxed: no other read depends on it.
        self.state.load(Ordering::Relaxed) == ON
    }

    /// The result of AFFINITY_INFO.
    pub fn affinity(&self) -> AffinityState {
        // Acquire: a caller that sees a vCPU off sees its earlier stores. It pairs with `turn_off`.
        match self.state.load(Ordering::Acquire) {
            ON => AffinityState::On,
            OFF => AffinityState::Off,
            _ => AffinityState::OnPending,
        }
    }
}

#[cfg(all(test, loom))]
mod model;
