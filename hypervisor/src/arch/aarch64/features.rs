//! What the processor can do, and what every CPU is set up for.
//!
//! Source: Arm DDI 0487, D24.2: the ID registers, HCR_EL2, VTCR_EL2, CPTR_EL2, MDCR_EL2, CNTHCTL_EL2.

use core::fmt;
use core::sync::atomic::{AtomicU32, Ordering};

use bitflags::bitflags;

use super::sysreg::{field, isb, read, write};

bitflags! {
    /// What matters to us and differs between processors.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub(crate) struct Features: u32 {
        /// TLBI by range of addresses (FEAT_TLBIRANGE).
        const RANGE = 1 << 0;
        /// TLBI takes a hint of the level (FEAT_TTL).
        const LEVEL_HINT = 1 << 1;
        /// 16 bits of VMID (FEAT_VMID16).
        const VMID16 = 1 << 2;
        /// Stage 2 decides alone how memory is cached (FEAT_S2FWB).
        const FORCED_WRITE_BACK = 1 << 3;
        /// The processor sets the access flag by itself (FEAT_HAFDBS).
        const ACCESS_FLAG = 1 << 4;
        /// It sets the dirty state, too.
        const DIRTY_STATE = 1 << 5;
        /// A table may replace a block, and a block a table, without an invalid entry in between (FEAT_BBM, level 2).
        const REPLACES_IN_PLACE = 1 << 6;
        /// Pointer authentication, whose keys are the guest's.
        const POINTER_KEYS = 1 << 7;
        /// Virtualization host extensions, which are not used.
        const VHE = 1 << 8;
        /// An instruction cache whose lines are tagged by VMID or found by virtual index: it is not enough to drop lines by
        /// address.
        const VIRTUAL_INSTRUCTION_CACHE = 1 << 9;
    }
}

static FEATURES: AtomicU32 = AtomicU32::new(0);

impl Features {
    /// What [`probe`] has found.
    #[inline(always)]
    pub(crate) fn get() -> Self {
        Self::from_bits_retain(FEATURES.load(Ordering::Relaxed))
    }
}

impl fmt::Display for Features {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let names = [
            (Self::RANGE, "TLBIRANGE"),
            (Self::LEVEL_HINT, "TTL"),
            (Self::VMID16, "VMID16"),
            (Self::FORCED_WRITE_BACK, "S2FWB"),
            (Self::DIRTY_STATE, "HAFDBS"),
            (Self::REPLACES_IN_PLACE, "BBM2"),
            (Self::VHE, "VHE (not used)"),
        ];
        let mut separator = "with ";
        for (_, name) in names.into_iter().filter(|&(bit, _)| self.contains(bit)) {
            core::write!(f, "{separator}{name}")?;
            separator = ", ";
        }
        if separator == "with " { f.write_str("with nothing optional") } else { Ok(()) }
    }
}

/// Finds out what the processor can do. Once, on the boot CPU; the others are taken to be the same.
pub(crate) fn probe() -> Result<(), &'static str> {
    let isar0 = read!("id_aa64isar0_el1");
    let isar1 = read!("id_aa64isar1_el1");
    let mmfr0 = read!("id_aa64mmfr0_el1");
    let mmfr1 = read!("id_aa64mmfr1_el1");
    let mmfr2 = read!("id_aa64mmfr2_el1");
    if field(read!("id_aa64pfr0_el1"), 24) == 0 {
        return Err("the GIC has no system registers: QEMU takes -M virt,gic-version=3");
    }
    if field(mmfr0, 28) == 0xf {
        return Err("the processor has no pages of 4 KiB");
    }
    // FEAT_LPA2 says so in another number; without either stage 2 has what stage 1 has.
    if field(mmfr0, 40) == 1 {
        return Err("the processor has no pages of 4 KiB in stage 2");
    }
    let mut found = Features::empty();
    found.set(Features::RANGE, field(isar0, 56) >= 2);
    found.set(Features::LEVEL_HINT, field(mmfr2, 48) >= 1);
    found.set(Features::VMID16, field(mmfr1, 4) >= 2);
    found.set(Features::FORCED_WRITE_BACK, field(mmfr2, 40) >= 1);
    found.set(Features::ACCESS_FLAG, field(mmfr1, 0) >= 1);
    found.set(Features::DIRTY_STATE, field(mmfr1, 0) >= 2);
    found.set(Features::REPLACES_IN_PLACE, field(mmfr2, 52) >= 2);
    found.set(Features::VHE, field(mmfr1, 8) >= 1);
    let keys = [4, 8, 24, 28].into_iter().any(|shift| field(isar1, shift) != 0);
    let keys3 = field(read!("s3_0_c0_c6_2"), 12) != 0 || field(read!("s3_0_c0_c6_2"), 8) != 0;
    found.set(Features::POINTER_KEYS, keys || keys3);
    // CTR_EL0.L1Ip: 3 is physical; anything else has virtual properties.
    found.set(Features::VIRTUAL_INSTRUCTION_CACHE, read!("ctr_el0") >> 14 & 3 != 3);
    FEATURES.store(found.bits(), Ordering::Relaxed);
    enable_el2();
    if read!("hcr_el2") & hcr::E2H != 0 {
        return Err("the processor has no EL2 but with VHE (HCR_EL2.E2H cannot be cleared)");
    }
    Ok(())
}

/// Bits of HCR_EL2.
pub(crate) mod hcr {
    pub(crate) const VM: u64 = 1 << 0;
    pub(crate) const SWIO: u64 = 1 << 1;
    pub(crate) const FMO: u64 = 1 << 3;
    pub(crate) const IMO: u64 = 1 << 4;
    pub(crate) const AMO: u64 = 1 << 5;
    pub(crate) const FB: u64 = 1 << 9;
    pub(crate) const BSU_INNER: u64 = 1 << 10;
    pub(crate) const TWI: u64 = 1 << 13;
    pub(crate) const TWE: u64 = 1 << 14;
    pub(crate) const TID3: u64 = 1 << 18;
    pub(crate) const TSC: u64 = 1 << 19;
    pub(crate) const TIDCP: u64 = 1 << 20;
    pub(crate) const TACR: u64 = 1 << 21;
    pub(crate) const TSW: u64 = 1 << 22;
    pub(crate) const RW: u64 = 1 << 31;
    pub(crate) const E2H: u64 = 1 << 34;
    pub(crate) const APK: u64 = 1 << 40;
    pub(crate) const API: u64 = 1 << 41;
    pub(crate) const FWB: u64 = 1 << 46;
}

/// HCR_EL2 as it always is, but for [`hcr::TWE`] and what is wanted of the guest's TLB instructions.
///
/// Stage 2 stays on while the hypervisor runs: EL2's own translation does not pass it.
pub(crate) fn hypervisor_configuration() -> u64 {
    let features = Features::get();
    let mut value = hcr::VM
        | hcr::SWIO
        | hcr::FMO
        | hcr::IMO
        | hcr::AMO
        | hcr::TWI
        | hcr::TID3
        | hcr::TSC
        | hcr::TIDCP
        | hcr::TACR
        | hcr::TSW
        | hcr::RW;
    if features.contains(Features::POINTER_KEYS) {
        value |= hcr::APK | hcr::API;
    }
    if features.contains(Features::FORCED_WRITE_BACK) {
        value |= hcr::FWB;
    }
    value
}

/// Sizes of physical addresses by ID_AA64MMFR0_EL1.PARange.
fn physical_bits_of(range: u64) -> u32 {
    match range {
        0 => 32,
        1 => 36,
        2 => 40,
        3 => 42,
        4 => 44,
        // More than 48 take other table formats.
        _ => 48,
    }
}

/// Width of the intermediate physical addresses that stage 2 translates: what three levels of tables do.
pub(crate) const STAGE2_BITS: u32 = 39;

/// VTCR_EL2: three levels, 4 KiB pages, walks by way of the caches, inner shareable; bit 31 is always one.
fn stage2_control() -> u64 {
    let features = Features::get();
    let size = field(read!("id_aa64mmfr0_el1"), 0).min(5);
    let mut value =
        (64 - u64::from(STAGE2_BITS)) | 1 << 6 | 1 << 8 | 1 << 10 | 3 << 12 | size << 16 | 1 << 31;
    if features.contains(Features::VMID16) {
        value |= 1 << 19;
    }
    if features.contains(Features::ACCESS_FLAG) {
        value |= 1 << 21;
    }
    if features.contains(Features::DIRTY_STATE) {
        value |= 1 << 22;
    }
    value
}

/// Sets the calling CPU's EL2 up for guests, before the first.
pub(crate) fn enable() {
    enable_el2();
}

fn enable_el2() {
    // Traps: floating point is the guest's; SVE, SME and trace are not shown. Bits 13, 9 and 7:0 are ones.
    const FEATURE_TRAPS: u64 = 0x33ff | 1 << 20;
    // Debug registers, their ROM and OS lock, the performance monitor, sampling and trace filters.
    const DEBUG_TRAPS: u64 = 1 << 5 | 1 << 6 | 1 << 9 | 1 << 10 | 1 << 11 | 1 << 14 | 1 << 19;
    let counters = match field(read!("id_aa64dfr0_el1"), 8) {
        0 | 0xf => 0,
        _ => read!("pmcr_el0") >> 11 & 0x1f,
    };
    // SAFETY: EL2's control registers, which say what of the guest is trapped; no guest runs yet on this CPU.
    unsafe {
        write!("hcr_el2", hypervisor_configuration());
        write!("vtcr_el2", stage2_control());
        write!("cptr_el2", FEATURE_TRAPS);
        write!("mdcr_el2", DEBUG_TRAPS | counters);
        write!("hstr_el2", 0);
        // The guest has the physical counter and EL1's physical timer.
        write!("cnthctl_el2", 3);
        write!("vpidr_el2", read!("midr_el1"));
    }
    isb();
}

/// Affinity of the calling CPU, as in MPIDR_EL1.
pub(crate) fn affinity() -> u64 {
    read!("mpidr_el1") & 0xff_00ff_ffff
}

/// Width of physical addresses here.
pub(crate) fn physical_bits() -> u32 {
    physical_bits_of(field(read!("id_aa64mmfr0_el1"), 0))
}
