//! The Hyper-V hypercall ABI for TLB flushing, from both ends.
//!
//! Layouts and rules follow Microsoft's *Hypervisor Top Level Functional Specification* (TLFS);
//! each item names the chapter it comes from. The crate has three layers:
//!
//! * layouts: [`Control`], [`HvResult`], [`FlushFlags`], [`GvaEntry`], [`ExtendedGvaEntry`],
//!   [`msr`], [`cpuid`];
//! * sets: [`VpSet`] and [`GvaList`], views of memory copied from the guest;
//! * the two ends: [`decode()`] turns the registers of a hypercall and one copy of its input into a
//!   [`Call`]; [`encode`] turns ranges and targets into the calls that a guest makes.
//!
//! Guest input is untrusted until it has been checked. A [`Call`] has been checked: its targets,
//! flags and list satisfy every rule that can be checked without knowledge of the partition. Only
//! the caller knows which virtual processors exist; it must ignore indices that name none.
//!
//! Nothing here allocates, panics on guest input, or loops without a bound.
#![no_std]
#![forbid(unsafe_code)]

#[cfg(test)]
extern crate std;

mod call;
mod control;
pub mod cpuid;
mod decode;
pub mod encode;
mod errors;
mod gva;
mod input;
pub mod msr;
mod profile;
mod status;
mod vp_set;

pub use call::{Call, ClusterIpi, FlushCall, FlushFlags, FlushScope, Targets};
pub use control::{CallCode, CallShape, Control, HvResult};
pub use decode::{Reject, decode};
pub use gva::{ExtendedGvaEntry, GvaEntry, GvaList, PageRange, PageSize, VaWidth};
pub use input::{
    CallRegisters, FAST_WORDS, InputError, InputPage, InputSource, PAGE_WORDS, XMM_FAST_WORDS, XMM_WORDS,
};
pub use profile::{EmptyTargets, Profile};
pub use status::Status;
pub use vp_set::{BankCountError, MAX_BANKS, MAX_VPS, VPS_PER_BANK, VpSet, VpSetMembers};

/// Bytes in a page of guest memory, as hypercalls count them on every architecture.
pub const PAGE_SIZE: usize = 4096;

/// The ABI is little-endian, and so is every machine that this crate is built for. Words are used
/// exactly as they are read from memory.
const _: () = assert!(cfg!(target_endian = "little"));

// Tests the examples in the README that is packaged with the crate.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;
