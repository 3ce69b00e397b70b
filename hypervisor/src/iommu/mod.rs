//! The machine's IOMMUs, and the interrupts of PCI functions that guests own: drivers over
//! [`iommu`].

pub mod amd_vi;
pub mod lines;
pub mod messages;
pub mod mirror;
#[cfg(test)]
pub(crate) mod mock;
pub mod remapping;
pub mod remaps;
mod ring;
pub mod routes;
pub mod smmu;
#[cfg(test)]
pub(crate) mod tests;
pub mod vtd;

pub use ring::Registers;
