//! A TLB flush engine for hypervisors: issue, dispatch, wait.
//!
//! An *initiator* (a hypercall handler on one physical CPU) makes a set of [`Target`]s (one per
//! virtual CPU) drop translations. It publishes the request ([`issue`]), interrupts only the
//! targets that are in guest mode ([`Issued::dispatch`]), and waits only for those
//! ([`Dispatched::wait`]). A target that is not running is neither interrupted nor waited for: it
//! flushes before it next enters the guest, because [`Owner::try_enter`] refuses to enter while a
//! request is pending. vCPUs may be removed and added meanwhile ([`Owner::remove`],
//! [`Target::add`]).
//!
//! All the state that both sides depend on is in one word per target, which both change by
//! read-modify-write.
//!
//! | you write | begin with |
//! |---|---|
//! | a hypervisor for AMD64 or Intel 64 | [`issue`], [`Owner`]; ASIDs and VPIDs: [`asid`] |
//! | a hypervisor for Arm64, where the hardware broadcasts invalidations | [`tlbi`]: operands and sequences; [`fn@broadcast`]: translations that software is using; [`vmid`]: tags |
//! | a kernel, whose targets are CPUs that use its address spaces | [`shootdown`] |
//!
//! # Ordering
//!
//! Each protocol has a table of its events and of the order between them, with the reason:
//!
//! | protocol | table |
//! |---|---|
//! | requests to vCPUs, entry, waiting | [`Target`] |
//! | the list of ranges that a request adds to | [`Generation`] |
//! | flushes by broadcast, and walks by software | [`fn@broadcast`] |
//! | VMIDs, and running out of them | [`vmid`] |
//! | a kernel's own address spaces | [`shootdown`] |
//!
//! The project's `docs/coherence.md` states the guarantees (G1 and so on) and names the test that
//! holds each; `docs/pitfalls.md` lists the mistakes (O1 and so on).
//!
//! The crate neither allocates nor contains unsafe code. It supplies the protocol; the caller
//! supplies the machine through [`Hardware`]. On AMD64 and Intel 64, [`asid`] allocates the tags.
#![no_std]
// Only declarations are allowed (a function, two traits, an impl for no devices): they make callers
// vouch for conditions that the crate cannot check.
#![deny(unsafe_code)]

#[cfg(any(test, loom))]
extern crate std;

pub mod asid;
#[cfg(all(test, not(loom)))]
mod bench;
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

#[cfg(loom)]
#[doc(hidden)]
pub mod interleave;
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
pub use space::{DeviceTlbs, NoDevices, SpaceReceipt, SpaceUnfinished, Unfinished, Walkers, flush_space};
pub use target::{Notify, Space, Target};

/// Number of a physical CPU, as assigned by the caller.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct CpuId(pub u32);

// Tests the examples in the README that is packaged with the crate.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;
