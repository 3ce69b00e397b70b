//! A TLB flush engine for hypervisors: issue, dispatch, wait.
//!
//! An *initiator* (a hypercall handler on one physical CPU) asks a set of [`Target`]s (one per
//! virtual CPU) to drop translations. It publishes the request ([`issue`]), interrupts only the
//! targets that are in guest mode ([`Issued::dispatch`]), and waits only for those
//! ([`Dispatched::wait`]). A target that is not running is neither interrupted nor waited for: it
//! flushes before it next enters the guest, because [`Owner::try_enter`] refuses to enter while
//! a request is pending. vCPUs may come and go meanwhile ([`Owner::remove`], [`Target::add`]).
//!
//! Everything both sides depend on lies in one word per target that both change by
//! read-modify-write.
//!
//! On Arm64 the hardware broadcasts: [`tlbi`] has its operands and sequences, [`fn@broadcast`]
//! waits for those translations that are software's, and [`vmid`] hands out the tags.
//!
//! [`shootdown`] does the same for a kernel's own address spaces, where a target is a CPU.
//!
//! # Ordering
//!
//! Each protocol has a table of its events, and of which comes before which and why:
//!
//! | protocol | table |
//! |---|---|
//! | requests to vCPUs, entry, waiting | [`Target`] |
//! | the list of what a request asks for | [`Generation`] |
//! | flushes by broadcast, and walks by software | [`fn@broadcast`] |
//! | VMIDs, when they run out | [`vmid`] |
//! | a kernel's own address spaces | [`shootdown`] |
//!
//! The project's `docs/coherence.md` states the guarantees (G1 and so on) and names the test that
//! holds each; `docs/pitfalls.md` has the mistakes (O1 and so on).
//!
//! The crate neither allocates nor contains unsafe code. It supplies the protocol; the caller
//! supplies the machine through [`Hardware`] and, on AMD64, the address space tags of [`asid`].
#![no_std]
// Declarations alone are allowed, of a function and a trait: they make callers vouch for what the
// crate cannot see.
#![deny(unsafe_code)]

#[cfg(any(test, loom))]
extern crate std;

pub mod asid;
mod broadcast;
mod flush;
mod mailbox;
mod owner;
mod presence;
mod set;
pub mod shootdown;
mod space;
mod sync;
mod target;
pub mod tlbi;
pub mod vmid;
mod word;

#[cfg(all(test, loom))]
mod model;

pub use broadcast::broadcast;
pub use flush::{
    Dispatched, FlushOutcome, Hardware, Issued, Ledger, Receipt, Stalled, Targets, flush, issue,
    issue_in_space,
};
pub use mailbox::{Generation, GvaRange, RANGE_CAPACITY, Scope};
pub use owner::{FlushWork, InGuest, Owner, Pending, Translation};
pub use set::{Members, TargetSet};
pub use space::{SpaceReceipt, Walkers, flush_space};
pub use target::{Notify, Space, Target};

/// Number of a physical CPU, as the caller counts them.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct CpuId(pub u32);

// The examples of what is packed with the crate.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;
