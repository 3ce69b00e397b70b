//! The hardware: memory, and processors with adversarial TLBs and walk caches.

pub(crate) mod bytes;
pub(crate) mod cache;
pub(crate) mod cpu;
pub(crate) mod dma;
pub(crate) mod format;
mod history;
pub(crate) mod instruction;
pub(crate) mod iommu;
pub(crate) mod lives;
mod marks;
pub(crate) mod memory;
#[cfg(test)]
mod tests;
pub(crate) mod walk;
