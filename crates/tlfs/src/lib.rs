//! The Hyper-V hypercall ABI for TLB flushing, from both ends.
//!
//! Layouts and rules follow Microsoft's *Hypervisor Top Level Functional Specification* (TLFS); each
//! item names the chapter it comes from. The crate has three layers:
//!
//! * layouts: [`Control`], [`HvResult`], [`FlushFlags`], [`GvaEntry`], [`msr`], [`cpuid`];
//! * sets: [`VpSet`] and [`GvaList`], views of memory that was copied from the guest;
//! * [`decode()`], which turns the registers of a hypercall and one copy of its input into a [`Call`].
//!
//! What a guest passes is an allegation until it was checked. A [`Call`] is checked: its targets,
//! flags and list have been held against every rule that does not need to know the partition. Only
//! the caller knows which virtual processors exist; indices without one are to be ignored.
//!
//! Nothing here allocates, panics on what a guest passed, or loops without a bound.
#![no_std]
#![forbid(unsafe_code)]

#[cfg(test)]
extern crate std;

mod call;
mod control;
pub mod cpuid;
mod decode;
mod gva;
pub mod msr;
mod status;
mod vp_set;

pub use call::{Call, FlushCall, FlushFlags, FlushScope, Targets};
pub use control::{CallCode, CallShape, Control, HvResult};
pub use decode::{CallRegisters, EmptyTargets, InputError, InputPage, InputSource, Profile, Reject, decode};
pub use gva::{GvaEntry, GvaList, PageRange, VaWidth};
pub use status::Status;
pub use vp_set::{BankCountError, MAX_BANKS, MAX_VPS, VPS_PER_BANK, VpSet, VpSetMembers};

/// Bytes in a page of guest memory, as hypercalls count them on every architecture.
pub const PAGE_SIZE: usize = 4096;

/// The ABI is little-endian, and so is every machine that this crate is built for; words are used as
/// they come out of memory.
const _: () = assert!(cfg!(target_endian = "little"));
