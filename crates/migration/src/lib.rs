//! Guests that are saved and moved: their state as a stream, the pages beside it, who runs them.
//!
//! | module | contents |
//! |---|---|
//! | [`archive`] | one description of each device, by which its state is written and read |
//! | [`frame`] | the stream: pages, clock, states, and what both sides say |
//! | [`channel`] | memory through which hypervisor and host tool exchange it |
//! | [`handover`] | which of two machines runs the guest |
//!
//! Nothing here allocates or touches hardware. Whatever is read is hostile input: it leads to a
//! [`Flaw`], never to a panic or to a value that its type does not have.
#![cfg_attr(not(any(test, loom)), no_std)]

pub mod archive;
pub mod channel;
pub mod frame;
pub mod handover;

pub use archive::{Archive, Described, Flaw};
