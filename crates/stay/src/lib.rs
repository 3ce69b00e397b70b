//! The steps of a vCPU's stay on a processor, as far as they concern translations.
//!
//! [`coherence`] has the protocol between those that ask for a flush and those that have to obey,
//! [`paging`] and [`memslots`] have the tables and the memory. A hypervisor joins them: it enters
//! the guest, is called off, takes a flush, answers a nested fault, comes to another processor.
//! Mistakes there are as bad as mistakes in the protocol, and as hard to see. So these steps are
//! here, over the few operations that only a processor can do, and run in two places: in Quell on
//! bare metal, and in `quell-machine`, whose processors use every freedom that an architecture
//! gives them and whose oracle knows what was promised.
//!
//! | step | AMD64 | Arm64 |
//! |---|---|---|
//! | a vCPU comes to a processor | by its tag: `coherence::asid` | [`arm64::Place::arrive`] |
//! | entry, which may be called off | [`amd64::enter`] | [`arm64::enter_address_space`], [`arm64::enter`] |
//! | take a flush that was asked for | [`amd64::take_flush`] | [`arm64::take_flush`] |
//! | a section in which software uses translations | [`in_section`] | [`in_section`] |
//! | a nested fault | [`nested_fault`] | [`nested_fault`] |
//! | a walk that is remembered | [`amd64::Walks`] | |
//! | a flush that a guest asks for by hypercall | [`amd64::serve`] | |
//! | a flush of a whole space | [`coherence::flush_space`] | [`arm64::flush_space`] |
//! | a change of guest memory | [`step`] | [`step`] |
//! | a vCPU that starts over | [`amd64::start_over`] | |
//! | what a vCPU that halts may hold | [`amd64::TranslationControls::space`] | |
//!
//! A [`Mistake`] can be made on purpose, so that tests show that it is found.
#![no_std]
#![deny(unsafe_code)]

#[cfg(test)]
extern crate std;

pub mod amd64;
pub mod arm64;
mod change;
mod cost;
mod fault;
mod mistake;
mod section;
mod vcpus;

pub use change::{Proof, step};
pub use cost::{Cost, Instruments, Measured};
pub use fault::{Answer, MMIO_PAGES, Source, nested_fault};
pub use mistake::{Mistake, Mistakes};
pub use section::{Stay, in_section};
pub use vcpus::{for_each_target, in_bank};
