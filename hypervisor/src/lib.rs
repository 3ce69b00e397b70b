//! Quell, a small type-1 hypervisor built around TLB coherence.
//!
//! The library has two kinds of code. Everything outside `arch` and `image` compiles for the host
//! and is tested there: plain state with effects returned as values, and the [core](vm) of the
//! program, generic over the traits that an architecture implements. `arch` implements them on bare
//! metal, and `image` has the other parts that both images need.
#![cfg_attr(not(any(test, loom, feature = "mock")), no_std)]

extern crate alloc;

// As `vm`.
#[cfg(not(loom))]
#[macro_use]
pub mod arm64;
#[cfg(target_os = "none")]
pub mod arch;
pub mod bringup;
pub mod devices;
pub mod free_memory;
#[cfg(target_os = "none")]
mod image;
pub mod index;
#[cfg(not(loom))]
pub mod iommu;
pub mod loader;
#[cfg(all(test, loom))]
mod model;
#[cfg(not(loom))]
pub mod owned;
pub mod page_pool;
#[cfg(not(loom))]
pub mod pages;
pub mod quota;
pub mod red_zones;
pub mod sched;
pub mod stopping;
#[cfg(not(loom))]
pub mod svm;
mod sync;
pub mod tag_users;
// It is not model-checked: its CPUs communicate through `sched::notify`.
#[cfg(not(loom))]
pub mod vm;
#[cfg(not(loom))]
pub mod vmx;
// Under loom, the parts of the Hyper-V interface that need no vCPU.
pub mod x86;
