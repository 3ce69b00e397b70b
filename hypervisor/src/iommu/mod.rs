//! The machine's IOMMUs, and the interrupts of PCI functions that guests own: drivers over
//! [`iommu`].
//!
//! | module | contents |
//! |---|---|
//! | [`amd_vi`] | the driver of AMD-Vi |
//! | [`messages`] | interrupt messages of owned functions |
//! | [`routes`] | where they go: from the machine's vector to the guest's message |
//! | [`smmu`], [`mirror`] | the driver of SMMUs; the tables by which they translate for a guest |
//! | [`lines`] | interrupts of owned functions by their pins, on Arm64 |

pub mod amd_vi;
pub mod lines;
pub mod messages;
pub mod mirror;
pub mod routes;
pub mod smmu;
