//! DMA through emulated IOMMUs, driven by the crate `iommu`: what an IOMMU keeps, and what makes it
//! forget. AMD-Vi, VT-d and SMMUv3, with the crate's tables, commands and ring.

mod amd;
mod arm;
mod board;
mod edu;
mod intel;
mod kept;
mod ring;
mod smmu;

use crate::test::prelude::*;

pub(super) const ACTS: &[Named] = &[
    ("p16_an_iommu_keeps_translations_until_it_is_told", amd::keeps_until_told),
    ("p16_vtd_keeps_translations_until_it_is_told", intel::keeps_until_told),
    ("p16_an_smmu_keeps_translations_until_it_is_told", arm::keeps_until_told),
];
