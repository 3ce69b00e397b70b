//! EL2's controls: they hide processor features from the guest, and override settings of the
//! firmware.
//!
//! Every feature that a processor has and the guest does not is trapped, or disabled by a control
//! that is 0. A control is written where the ID registers say that it exists, regardless of its
//! previous value: no EL2 register that affects the guest keeps the firmware's value.
//!
//! Source: Arm DDI 0487, D24.2: HCR_EL2, HCRX_EL2, CPTR_EL2, MDCR_EL2, CNTHCTL_EL2, HFGRTR_EL2 and
//! similar ones; for MPAM Arm DDI 0598; for the list of registers to consider, Linux'
//! Documentation/arch/arm64/booting.

mod processor;
#[cfg(test)]
mod tests;

pub use processor::{IdRegisters, STAGE2_BITS, data_line, zeroed_block};

/// Bits of HCR_EL2.
#[allow(missing_docs, reason = "the architecture's names")]
pub mod hcr {
    pub const VM: u64 = 1 << 0;
    pub const SWIO: u64 = 1 << 1;
    pub const FMO: u64 = 1 << 3;
    pub const IMO: u64 = 1 << 4;
    pub const AMO: u64 = 1 << 5;
    /// A virtual SError is pending.
    pub const VSE: u64 = 1 << 8;
    pub const FB: u64 = 1 << 9;
    pub const BSU_INNER: u64 = 1 << 10;
    pub const TWI: u64 = 1 << 13;
    pub const TWE: u64 = 1 << 14;
    pub const TID1: u64 = 1 << 16;
    pub const TID3: u64 = 1 << 18;
    pub const TSC: u64 = 1 << 19;
    pub const TIDCP: u64 = 1 << 20;
    pub const TACR: u64 = 1 << 21;
    pub const TSW: u64 = 1 << 22;
    pub const RW: u64 = 1 << 31;
    pub const E2H: u64 = 1 << 34;
    pub const TLOR: u64 = 1 << 35;
    pub const TERR: u64 = 1 << 36;
    pub const TEA: u64 = 1 << 37;
    pub const APK: u64 = 1 << 40;
    pub const API: u64 = 1 << 41;
    pub const FWB: u64 = 1 << 46;
    pub const TID5: u64 = 1 << 58;
}

/// CPTR_EL2 without VHE: bits 13, 9 and 7:0 are ones; SME and SVE (12, 8) are not shown.
const CPTR_BASE: u64 = 0x33ff;
/// Trace registers, and those of activity monitors.
const CPTR_TTA: u64 = 1 << 20;
const CPTR_TAM: u64 = 1 << 30;

/// MDCR_EL2: the performance monitor, debug registers, OS lock, debug ROM, statistical profiling,
/// trace filters, the debug channel. Where these bits are 0, the buffers of profiling and tracing
/// (E2PB, E2TB) belong to EL2, and debug exceptions (TDE) to the guest.
mod mdcr {
    pub(super) const TPMCR: u64 = 1 << 5;
    pub(super) const TPM: u64 = 1 << 6;
    pub(super) const TDA: u64 = 1 << 9;
    pub(super) const TDOSA: u64 = 1 << 10;
    pub(super) const TDRA: u64 = 1 << 11;
    pub(super) const TPMS: u64 = 1 << 14;
    pub(super) const TTRF: u64 = 1 << 19;
    pub(super) const TDCC: u64 = 1 << 27;
}

/// CNTHCTL_EL2: the guest has the physical counter and EL1's physical timer itself.
const CNTHCTL: u64 = 1 << 0 | 1 << 1;
/// HCRX_EL2: writes of PSTATE.ALLINT. All its other features are off where their bit is 0.
const HCRX_TALLINT: u64 = 1 << 6;
/// HDFGRTR_EL2: the ID registers of the buffers of profiling and tracing.
const HDFGRTR_PMBIDR: u64 = 1 << 63;
const HDFGRTR_TRBIDR: u64 = 1 << 56;
/// MPAM2_EL2: MPAM0_EL1, MPAM1_EL1, and where it can be trapped here, MPAMIDR_EL1.
const MPAM2_TRAPS: u64 = 1 << 48 | 1 << 49;
const MPAM2_TIDR: u64 = 1 << 58;
/// MPAMHCR_EL2: MPAMIDR_EL1.
const MPAMHCR_TRAP_ID: u64 = 1 << 31;
/// MPAMIDR_EL1: MPAMHCR_EL2 exists; MPAM2_EL2 has TIDR.
const MPAMIDR_HAS_HCR: u64 = 1 << 17;
const MPAMIDR_HAS_TIDR: u64 = 1 << 58;
/// VSESR_EL2: the syndrome of the guest's SErrors is not one that the architecture defines (IDS).
const VSESR_DEFINED_BY_NOBODY: u64 = 1 << 24;

const fn when(there: bool, bits: u64) -> u64 {
    if there { bits } else { 0 }
}

/// The constant part of HCR_EL2: everything except [`hcr::TWE`], [`hcr::VSE`] and the configured
/// treatment of the guest's TLB instructions.
///
/// Stage 2 stays on while the hypervisor runs: EL2's own translation does not use it. Bits that
/// could be 1 and are 0: bits of features that are not shown, whose registers trap where the bit is
/// 0 (ATA, EnSCXT, FIEN, AMVOFFEN, TME, NV), and traps of registers and operations that belong to
/// the guest (TVM, TRVM, TTLB, TPU, TPC, TDZ, TID2, TID4, HCD).
pub const fn hcr_base(processor: &IdRegisters) -> u64 {
    hcr::VM
        | hcr::SWIO
        | hcr::FMO
        | hcr::IMO
        | hcr::AMO
        | hcr::TWI
        | hcr::TID1
        | hcr::TID3
        | hcr::TSC
        | hcr::TIDCP
        | hcr::TACR
        | hcr::TSW
        | hcr::RW
        | when(processor.has_ras(), hcr::TERR | hcr::TEA)
        | when(processor.has_lor(), hcr::TLOR)
        | when(processor.has_mte(), hcr::TID5)
        | when(processor.has_pointer_keys(), hcr::APK | hcr::API)
        | when(processor.has_forced_write_back(), hcr::FWB)
}

const fn cptr(processor: &IdRegisters) -> u64 {
    CPTR_BASE | CPTR_TTA | when(processor.has_amu(), CPTR_TAM)
}

const fn mdcr(processor: &IdRegisters) -> u64 {
    mdcr::TPMCR
        | mdcr::TPM
        | mdcr::TDA
        | mdcr::TDOSA
        | mdcr::TDRA
        | when(processor.has_spe(), mdcr::TPMS)
        | when(processor.has_trf(), mdcr::TTRF)
        | when(processor.has_fgt(), mdcr::TDCC)
        // HPMN: all counters belong to the trapped part.
        | processor.counters & 0x1f
}

/// VTCR_EL2: three levels, 4 KiB pages, walks through the caches, inner shareable; bit 31 is always
/// one.
const fn vtcr(processor: &IdRegisters) -> u64 {
    (64 - STAGE2_BITS as u64)
        | 1 << 6
        | 1 << 8
        | 1 << 10
        | 3 << 12
        | processor.size_code() << 16
        | when(processor.has_wide_vmids(), 1 << 19)
        | when(processor.has_access_flag(), 1 << 21)
        | when(processor.has_dirty_state(), 1 << 22)
        | 1 << 31
}

/// Passes on the registers that are written on each CPU before its first guest, in the order of the
/// writes: names, and encodings for those that the assembler may not know. A register that cannot
/// be read has another one that tells.
macro_rules! for_each_control {
    ($callback:ident) => {
        $callback! {
            Hcr: "HCR_EL2" "hcr_el2", // Traps
            Vtcr: "VTCR_EL2" "vtcr_el2", // The format of stage 2
            Vpidr: "VPIDR_EL2" "vpidr_el2", // MIDR_EL1, as the guest reads it
            IccSre2: "ICC_SRE_EL2" "icc_sre_el2", // EL2's access to the interrupt controller's registers
            IccSre1: "ICC_SRE_EL1" "icc_sre_el1", // EL1's, for which EL2's must be in effect
            Cptr: "CPTR_EL2" "cptr_el2", // Floating point, trace, activity monitors
            Mdcr: "MDCR_EL2" "mdcr_el2", // Debug, performance monitor, profiling
            Hstr: "HSTR_EL2" "hstr_el2", // AArch32's coprocessor registers
            Hacr: "HACR_EL2" "hacr_el2", // Implementation-defined
            Cnthctl: "CNTHCTL_EL2" "cnthctl_el2", // Counters and timers
            Cntvoff: "CNTVOFF_EL2" "cntvoff_el2", // The virtual counter's offset
            Cntpoff: "CNTPOFF_EL2" "s3_4_c14_c0_6", // The physical counter's offset
            Hcrx: "HCRX_EL2" "s3_4_c1_c2_2", // Features from ARMv8.7 on
            Hfgrtr: "HFGRTR_EL2" "s3_4_c1_c1_4", // Fine-grained traps of reads
            Hfgwtr: "HFGWTR_EL2" "s3_4_c1_c1_5", // Fine-grained traps of writes
            Hfgitr: "HFGITR_EL2" "s3_4_c1_c1_6", // Fine-grained traps of instructions
            Hdfgrtr: "HDFGRTR_EL2" "s3_4_c3_c1_4", // Fine-grained traps of reads of debug registers
            Hdfgwtr: "HDFGWTR_EL2" "s3_4_c3_c1_5", // Fine-grained traps of writes of debug registers
            Hafgrtr: "HAFGRTR_EL2" "s3_4_c3_c1_6", // Fine-grained traps of activity monitors
            Hfgrtr2: "HFGRTR2_EL2" "s3_4_c3_c1_2", // Fine-grained traps of reads, second register
            Hfgwtr2: "HFGWTR2_EL2" "s3_4_c3_c1_3", // Fine-grained traps of writes, second register
            Hfgitr2: "HFGITR2_EL2" "s3_4_c3_c1_7", // Fine-grained traps of instructions, second register
            // Fine-grained traps of reads of debug registers, second register.
            Hdfgrtr2: "HDFGRTR2_EL2" "s3_4_c3_c1_0",
            // Fine-grained traps of writes of debug registers, second register.
            Hdfgwtr2: "HDFGWTR2_EL2" "s3_4_c3_c1_1",
            Mpam2: "MPAM2_EL2" "s3_4_c10_c5_0", // Memory partitioning: traps, and EL2's own partition
            Mpamhcr: "MPAMHCR_EL2" "s3_4_c10_c4_0", // Its virtual partitions
            Mpam1: "MPAM1_EL1" "s3_0_c10_c5_0", // The guest's partition at EL1
            Mpam0: "MPAM0_EL1" "s3_0_c10_c5_1", // The guest's partition at EL0
            Lorc: "LORC_EL1" "s3_0_c10_c4_3", // LORegions are off
            Pmscr: "PMSCR_EL2" "s3_4_c9_c9_0", // Profiling of EL2
            Trfcr: "TRFCR_EL2" "s3_4_c1_c2_1", // Tracing of EL2
            Brbcr: "BRBCR_EL2" "s2_4_c9_c0_0", // Branch records of EL2
            Pmuserenr: "PMUSERENR_EL0" "s3_3_c9_c14_0", // The performance monitor at EL0, which is disabled
            Amuserenr: "AMUSERENR_EL0" "s3_3_c13_c2_3", // The activity monitors at EL0, which are disabled
            Vsesr: "VSESR_EL2" "s3_4_c5_c2_3", // The syndrome of a virtual SError
            Vdisr: "VDISR_EL2" "s3_4_c12_c1_1", // A deferred virtual SError
            Mdscr: "MDSCR_EL1" "mdscr_el1", // Breakpoints are off
            Mdccint: "MDCCINT_EL1" "mdccint_el1", // The debug channel's interrupts
            OsLock: "OSLAR_EL1" "oslar_el1" "oslsr_el1", // The OS lock would keep breakpoints from working
            DoubleLock: "OSDLR_EL1" "osdlr_el1", // So would the double lock
        }
    };
}

macro_rules! controls {
    ($($name:ident: $register:literal $encoding:literal $($status:literal)?,)*) => {
        /// A register that is written on each CPU before its first guest.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
        #[allow(missing_docs, reason = "the table says it")]
        pub enum Control { $($name,)* }

        impl Control {
            /// All of them.
            pub const ALL: &[Self] = &[$(Self::$name,)*];

            /// The architecture's name.
            pub const fn name(self) -> &'static str {
                match self { $(Self::$name => $register,)* }
            }
        }
    };
}

for_each_control!(controls);

/// The value of `control` before the first guest; `None` if the processor does not have it.
pub const fn at_start(control: Control, processor: &IdRegisters) -> Option<u64> {
    use Control as C;
    let (there, value) = match control {
        C::Hcr => (true, hcr_base(processor)),
        C::Vtcr => (true, vtcr(processor)),
        C::Vpidr => (true, processor.midr),
        C::IccSre2 => (processor.has_gic_registers(), ICC_SRE_EL2),
        C::IccSre1 => (processor.has_gic_registers(), ICC_SRE_EL1),
        C::Cptr => (true, cptr(processor)),
        C::Mdcr => (true, mdcr(processor)),
        C::Cnthctl => (true, CNTHCTL),
        C::Cntvoff => (true, 0),
        C::Hstr | C::Hacr | C::Mdscr | C::Mdccint | C::OsLock => (true, 0),
        C::Cntpoff => (processor.has_counter_offset(), 0),
        C::Hcrx => (processor.has_hcx(), when(processor.has_nmi(), HCRX_TALLINT)),
        // The bits for new features trap where they are 0. The features that the other bits could
        // trap are trapped otherwise, or belong to the guest.
        C::Hfgrtr | C::Hfgwtr | C::Hfgitr | C::Hdfgwtr => (processor.has_fgt(), 0),
        C::Hdfgrtr => {
            let buffers =
                when(processor.has_spe(), HDFGRTR_PMBIDR) | when(processor.has_trbe(), HDFGRTR_TRBIDR);
            (processor.has_fgt(), buffers)
        }
        C::Hafgrtr => (processor.has_fgt() && processor.has_amu(), 0),
        C::Hfgrtr2 | C::Hfgwtr2 | C::Hfgitr2 | C::Hdfgrtr2 | C::Hdfgwtr2 => (processor.has_fgt2(), 0),
        C::Mpam2 => {
            let id = when(processor.mpamidr & MPAMIDR_HAS_TIDR != 0, MPAM2_TIDR);
            (processor.has_mpam(), MPAM2_TRAPS | id)
        }
        C::Mpamhcr => (processor.has_mpam() && processor.mpamidr & MPAMIDR_HAS_HCR != 0, MPAMHCR_TRAP_ID),
        C::Mpam1 | C::Mpam0 => (processor.has_mpam(), 0),
        C::Lorc => (processor.has_lor(), 0),
        C::Pmscr => (processor.has_spe(), 0),
        C::Trfcr => (processor.has_trf(), 0),
        C::Brbcr => (processor.has_brbe(), 0),
        C::Pmuserenr => (processor.has_pmu(), 0),
        C::Amuserenr => (processor.has_amu(), 0),
        C::Vsesr => (processor.has_ras(), VSESR_DEFINED_BY_NOBODY),
        C::Vdisr => (processor.has_ras(), 0),
        C::DoubleLock => (processor.has_double_lock(), 0),
    };
    if there { Some(value) } else { None }
}

/// CNTVOFF_EL2 and CNTHCTL_EL2 for a guest whose counter is by `base` ticks ahead of the machine's,
/// modulo 2^64.
///
/// The virtual counter goes on by its offset. The physical one has none before FEAT_ECV, nor where
/// the firmware keeps the offset from EL2: so counter and timer trap. A guest that has not been
/// moved has the machine's own counters: an emulator (QEMU 7.2) adds offset and compare value of
/// the virtual timer without an overflow check, and then its timer fires forever.
pub const fn counter(base: u64) -> (u64, u64) {
    (base.wrapping_neg(), if base == 0 { CNTHCTL } else { 0 })
}

/// ICC_SRE_EL2: system registers (SRE), no bypass (DFB, DIB). Enable is 0, so that ICC_SRE_EL1
/// traps: otherwise a guest could change the next vCPU's state.
pub const ICC_SRE_EL2: u64 = 7;
/// ICC_SRE_EL1, likewise; a guest reads this.
pub const ICC_SRE_EL1: u64 = 7;
