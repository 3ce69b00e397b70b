//! The hardware: memory, and processors with adversarial TLBs and walk caches.

pub mod bytes;
pub mod cache;
pub mod cpu;
pub mod dma;
pub mod format;
mod history;
pub mod instruction;
pub mod iommu;
pub mod lives;
mod marks;
pub mod memory;
#[cfg(test)]
mod tests;
pub mod walk;
