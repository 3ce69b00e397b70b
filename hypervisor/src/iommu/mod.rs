//! The machine's IOMMUs, and the interrupts of PCI functions that guests own: drivers over
//! [`iommu`].

pub mod amd_vi;
pub mod lines;
pub mod messages;
pub mod mirror;
pub mod remaps;
pub mod routes;
pub mod smmu;
