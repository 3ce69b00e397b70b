//! A processor by its ID registers: the features that decide about EL2's controls.
//!
//! Source: Arm DDI 0487, D24.2: the ID registers.

use crate::arm64::processor::Features;

/// The processor's description of itself: ID registers by their names.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[allow(missing_docs, reason = "the architecture's names")]
pub struct IdRegisters {
    pub midr: u64,
    pub pfr0: u64,
    pub pfr1: u64,
    pub dfr0: u64,
    pub mmfr0: u64,
    pub mmfr1: u64,
    pub mmfr2: u64,
    pub isar0: u64,
    pub isar1: u64,
    pub isar2: u64,
    /// MPAMIDR_EL1; 0 without MPAM.
    pub mpamidr: u64,
    /// CTR_EL0.
    pub ctr: u64,
    /// DCZID_EL0.
    pub dczid: u64,
    /// PMCR_EL0.N; 0 without performance monitor.
    pub counters: u64,
}

/// A field of an ID register: four bits.
const fn field(register: u64, shift: u32) -> u64 {
    register >> shift & 0xf
}

macro_rules! features {
    ($($name:ident: $register:ident[$shift:literal] >= $least:literal,)*) => {
        #[allow(missing_docs, reason = "the table says it")]
        impl IdRegisters {
            $(pub const fn $name(&self) -> bool { field(self.$register, $shift) >= $least })*
        }
    };
}

features! {
    has_ranges: isar0[56] >= 2, // FEAT_TLBIRANGE
    has_level_hints: mmfr2[48] >= 1, // FEAT_TTL
    replaces_in_place: mmfr2[52] >= 2, // FEAT_BBM, level 2
    has_vhe: mmfr1[8] >= 1, // FEAT_VHE
    has_matrices: pfr1[24] >= 1, // FEAT_SME
    has_ras: pfr0[28] >= 1, // FEAT_RAS
    has_amu: pfr0[44] >= 1, // FEAT_AMUv1
    has_mte: pfr1[8] >= 2, // FEAT_MTE2, which adds registers
    has_nmi: pfr1[36] >= 1, // FEAT_NMI
    has_lor: mmfr1[16] >= 1, // FEAT_LOR
    has_hcx: mmfr1[40] >= 1, // FEAT_HCX
    has_fgt: mmfr0[56] >= 1, // FEAT_FGT
    has_fgt2: mmfr0[56] >= 2, // FEAT_FGT2
    has_counter_offset: mmfr0[60] >= 2, // FEAT_ECV with CNTPOFF_EL2
    has_spe: dfr0[32] >= 1, // FEAT_SPE
    has_trf: dfr0[40] >= 1, // FEAT_TRF
    has_trbe: dfr0[44] >= 1, // FEAT_TRBE
    has_brbe: dfr0[52] >= 1, // FEAT_BRBE
    has_forced_write_back: mmfr2[40] >= 1, // FEAT_S2FWB
    has_gic_registers: pfr0[24] >= 1, // System registers of the interrupt controller
    has_wide_vmids: mmfr1[4] >= 2, // FEAT_VMID16
    has_access_flag: mmfr1[0] >= 1, // FEAT_HAFDBS: the access flag
    has_dirty_state: mmfr1[0] >= 2, // FEAT_HAFDBS: the dirty state, too
}

impl IdRegisters {
    /// FEAT_MPAM.
    pub const fn has_mpam(&self) -> bool {
        field(self.pfr0, 40) != 0 || field(self.pfr1, 16) != 0
    }

    /// FEAT_PMUv3, and not an implementation-defined one.
    pub const fn has_pmu(&self) -> bool {
        !matches!(field(self.dfr0, 8), 0 | 0xf)
    }

    /// Instructions are fetched as data was stored, without cleaning (CTR_EL0.IDC).
    pub const fn fetches_data(&self) -> bool {
        self.ctr >> 28 & 1 != 0
    }

    /// FEAT_DoubleLock, whose field has the inverse meaning.
    pub const fn has_double_lock(&self) -> bool {
        field(self.dfr0, 36) == 0
    }

    /// FEAT_PAuth, with any algorithm.
    pub const fn has_pointer_keys(&self) -> bool {
        const BY_ISAR1: u64 = 0xf << 4 | 0xf << 8 | 0xf << 24 | 0xf << 28;
        const BY_ISAR2: u64 = 0xf << 8 | 0xf << 12;
        self.isar1 & BY_ISAR1 != 0 || self.isar2 & BY_ISAR2 != 0
    }
}

impl IdRegisters {
    /// Why guests cannot run on this processor.
    pub const fn lacks(&self) -> Option<&'static str> {
        if !self.has_gic_registers() {
            return Some("the GIC has no system registers: QEMU takes -M virt,gic-version=3");
        }
        if field(self.mmfr0, 28) == 0xf {
            return Some("the processor has no pages of 4 KiB");
        }
        // FEAT_LPA2 has another encoding; without either value stage 2 supports what stage 1 does.
        if field(self.mmfr0, 40) == 1 {
            return Some("the processor has no pages of 4 KiB in stage 2");
        }
        None
    }

    /// The features that matter to the hypervisor.
    pub fn features(&self) -> Features {
        /// CTR_EL0.L1Ip: physically indexed and tagged. All other kinds have virtual properties.
        const PHYSICAL: u64 = 3;
        let all = [
            (Features::RANGE, self.has_ranges()),
            (Features::LEVEL_HINT, self.has_level_hints()),
            (Features::VMID16, self.has_wide_vmids()),
            (Features::FORCED_WRITE_BACK, self.has_forced_write_back()),
            (Features::ACCESS_FLAG, self.has_access_flag()),
            (Features::DIRTY_STATE, self.has_dirty_state()),
            (Features::REPLACES_IN_PLACE, self.replaces_in_place()),
            (Features::POINTER_KEYS, self.has_pointer_keys()),
            (Features::VHE, self.has_vhe()),
            (Features::VIRTUAL_INSTRUCTION_CACHE, self.ctr >> 14 & 3 != PHYSICAL),
            (Features::ERRORS, self.has_ras()),
            (Features::MATRICES, self.has_matrices()),
        ];
        all.into_iter().filter(|&(_, there)| there).map(|(feature, _)| feature).collect()
    }

    /// ID_AA64MMFR0_EL1.PARange as the code of a size that the tables' format has: more than 48
    /// bits need another one.
    pub(super) const fn size_code(&self) -> u64 {
        let range = field(self.mmfr0, 0);
        if range < 5 { range } else { 5 }
    }

    /// Width of the physical addresses that are used.
    pub const fn physical_bits(&self) -> u32 {
        match self.size_code() {
            0 => 32,
            1 => 36,
            2 => 40,
            3 => 42,
            4 => 44,
            _ => 48,
        }
    }
}

/// Size of the smallest data-cache line in bytes, by CTR_EL0 (DminLine, in words).
pub const fn data_line(ctr: u64) -> u64 {
    4 << (ctr >> 16 & 0xf)
}

/// Bytes that DC ZVA zeroes, by DCZID_EL0 (BS, in words); `None` if it is prohibited (DZP).
pub const fn zeroed_block(dczid: u64) -> Option<u64> {
    if dczid & 0x10 == 0 { Some(4 << (dczid & 0xf)) } else { None }
}

/// Width of the intermediate physical addresses that stage 2 translates: the capacity of three
/// levels of tables.
pub const STAGE2_BITS: u32 = 39;
