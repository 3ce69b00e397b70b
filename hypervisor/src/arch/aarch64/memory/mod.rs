//! Translations: the hypervisor's own, and the guests' stage 2.

mod copy;
mod cost;
pub(super) mod flush;
pub(super) mod stage2;
pub(super) mod translation;
