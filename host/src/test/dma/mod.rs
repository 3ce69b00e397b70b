//! DMA through emulated IOMMUs, driven by the crate `iommu`: what an IOMMU keeps, and what makes it
//! forget. AMD-Vi and SMMUv3, with the crate's tables, commands and ring.

mod amd;
mod arm;
mod board;
mod edu;
mod ring;
mod smmu;
mod vi;

use crate::test::prelude::*;

pub(super) const ROWS: [Case; 2] = [
    act("p16_an_iommu_keeps_translations_until_it_is_told", amd::keeps_until_told)
        .about("DMA of an emulated device reaches an unmapped page, and no longer after the invalidation"),
    act("p16_an_smmu_keeps_translations_until_it_is_told", arm::keeps_until_told)
        .about("the same with an emulated SMMUv3, by page and by range; it logs what it refuses"),
];
