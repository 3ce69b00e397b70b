//! The steps of a vCPU's stay on a processor, as far as they concern translations.
//!
//! [`coherence`] has the protocol between initiators and targets of flushes, [`paging`] and
//! [`memslots`] have the tables and the memory. A hypervisor connects them: it enters the guest,
//! calls an entry off, takes a flush, handles a nested fault, moves a vCPU to another processor.
//! Mistakes there are as bad as mistakes in the protocol, and as hard to see. So this crate has
//! these steps, over the few operations that only a processor can do. They run in two places: in
//! Quell on bare metal, and in `quell-machine`, whose processors use every freedom that an
//! architecture gives them and whose oracle knows the guarantees.
//!
//! | step | [`tagged`]: AMD64, Intel 64 | [`broadcast`]: Arm64 |
//! |---|---|---|
//! | a vCPU arrives at a processor | by its tag: `coherence::asid`; [`tagged::two_flushes`] on VMX | [`broadcast::CpuStage2::arrive`] |
//! | a processor lets go of a machine's tables | at each exit; on VMX [`tagged::two_flushes::Roots::let_go`] | [`broadcast::leave_address_space`] |
//! | entry, which may be called off | [`tagged::enter`] | [`broadcast::enter_address_space`], [`broadcast::enter`] |
//! | take a requested flush | [`tagged::take_flush`] | [`broadcast::take_flush`] |
//! | a section in which software uses translations | [`in_section`] | [`in_section`] |
//! | a nested fault | [`nested_fault`] | [`nested_fault`] |
//! | a remembered walk | [`tagged::Walks`] | |
//! | a flush that a guest requests by hypercall | [`tagged::serve`] | |
//! | a flush of a whole space | [`coherence::flush_space`] | [`broadcast::flush_space`] |
//! | the devices' part of it | [`iommu::nested::begin`], [`iommu::finish`] | [`iommu::mirror`], [`iommu::smmu::begin`] |
//! | devices are given to a machine, and taken away | [`iommu::nested`] | [`iommu::smmu::Smmu`] |
//! | a change of guest memory | [`step`] | [`step`] |
//! | a vCPU that starts over | [`tagged::start_over`] | |
//! | the address space of a vCPU that halts | [`tagged::TranslationControls::space`] | |
//!
//! A [`Mistake`] can be injected, so that tests can show that it is detected.
#![no_std]
#![deny(unsafe_code)]

extern crate alloc;
#[cfg(test)]
extern crate std;

pub mod broadcast;
mod change;
mod cost;
mod fault;
#[cfg(test)]
mod heap;
pub mod iommu;
mod mistake;
mod section;
pub mod tagged;
mod vcpus;

pub use change::{Proof, step};
pub use cost::{Cost, Instruments, Measured};
pub use fault::{Answer, MMIO_PAGES, Source, nested_fault};
pub use mistake::{Mistake, Mistakes};
pub use section::{Stay, in_section};
pub use vcpus::{for_each_target, in_bank};
