//! System registers and instructions of Arm64 that a guest at EL1 may find. Names and fields: DDI
//! 0487 M.b, chapters C5 and D24.

use super::Kind;
use super::Kind::{Constant, Instruction, Kept, Moves, Own, Written};

/// Registers: op0, op1, CRn, the range of CRm, the range of op2.
#[derive(Clone, Copy, Debug)]
pub struct Row {
    op0: u32,
    op1: u32,
    crn: u32,
    crm: (u32, u32),
    op2: (u32, u32),
    /// Its name in the manual.
    pub name: &'static str,
    /// Its kind.
    pub kind: Kind,
    /// Why it may be there.
    pub why: &'static str,
}

/// op0, op1, CRn, CRm and op2 of an encoding in MRS's order, which ends at bit 0.
pub const fn fields(encoding: u32) -> [u32; 5] {
    [encoding >> 14 & 3, encoding >> 11 & 7, encoding >> 7 & 15, encoding >> 3 & 15, encoding & 7]
}

impl Row {
    /// Whether it covers this encoding.
    pub const fn has(&self, encoding: u32) -> bool {
        let [op0, op1, crn, crm, op2] = fields(encoding);
        op0 == self.op0
            && op1 == self.op1
            && crn == self.crn
            && crm >= self.crm.0
            && crm <= self.crm.1
            && op2 >= self.op2.0
            && op2 <= self.op2.1
    }

    /// Its encodings.
    pub fn encodings(self) -> impl Iterator<Item = u32> + Clone {
        let first = self.op0 << 14 | self.op1 << 11 | self.crn << 7;
        let all =
            (self.crm.0..=self.crm.1).flat_map(move |crm| (0..8).map(move |op2| first | crm << 3 | op2));
        all.filter(move |encoding| self.has(*encoding))
    }
}

/// The row of an encoding: the first that covers it.
pub fn find(encoding: u32) -> Option<&'static Row> {
    ROWS.iter().find(|row| row.has(encoding))
}

const fn one(place: [u32; 5], name: &'static str, kind: Kind, why: &'static str) -> Row {
    let [op0, op1, crn, crm, op2] = place;
    Row { op0, op1, crn, crm: (crm, crm), op2: (op2, op2), name, kind, why }
}

/// Several registers with common fields.
const fn many(
    place: [u32; 3],
    crm: (u32, u32),
    op2: (u32, u32),
    name: &'static str,
    kind: Kind,
    why: &'static str,
) -> Row {
    let [op0, op1, crn] = place;
    Row { op0, op1, crn, crm, op2, name, kind, why }
}

const ALL: u64 = u64::MAX;
const WORD: u64 = 0xffff_ffff;
/// SCTLR_EL1: UMA, DZE, UCT, nTWI, nTWE, UCI, which affect EL0 alone.
const SCTLR_EL0: u64 = 1 << 9 | 1 << 14 | 1 << 15 | 1 << 16 | 1 << 18 | 1 << 26;

const SHOWN: &str = "an ID register; features that guests do not have are taken out";
const STATE: &str = "EL1's or EL0's own state: exchanged with the vCPU";
const PSTATE: &str = "a part of PSTATE, which goes with SPSR_EL2";
const VIRTUAL: &str = "the virtual CPU interface's: state is in ICH registers, exchanged with the vCPU";
const DEBUG: &str = "the vCPU's own: exchanged, or trapped and emulated";
const NO_DEBUGGER: &str = "trapped: 0, for there is no external debugger";
const COUNTER: &str = "a counter that all vCPUs have in common";
const TIMER: &str = "the vCPU's own timer: exchanged, or trapped and emulated";
const ADDRESS: &str = "by address, which stage 2 translates";
const CACHES: &str = "describes the caches";
const MODEL: &str = "the model's own: HCR_EL2.TIDCP traps it, which QEMU heeds from 8.0 on; constant there";

/// The table, one register per row where that adds information. The first fitting row applies.
pub const ROWS: &[Row] = &[
    // Debug.
    one([2, 0, 1, 0, 4], "OSLAR_EL1", Written(0), DEBUG),
    many([2, 0, 0], (0, 15), (4, 4), "DBGBVR", Own(0xf000), DEBUG),
    many([2, 0, 0], (0, 15), (5, 5), "DBGBCR", Own(1 << 5), DEBUG),
    many([2, 0, 0], (0, 15), (6, 6), "DBGWVR", Own(0xf000), DEBUG),
    many([2, 0, 0], (0, 15), (7, 7), "DBGWCR", Own(1 << 5), DEBUG),
    one([2, 0, 0, 2, 0], "MDCCINT_EL1", Own(1 << 30), DEBUG),
    one([2, 0, 0, 2, 2], "MDSCR_EL1", Own(1 << 12), DEBUG),
    one([2, 0, 1, 0, 0], "MDRAR_EL1", Constant, DEBUG),
    one([2, 0, 1, 1, 4], "OSLSR_EL1", Kept, DEBUG),
    one([2, 0, 1, 3, 4], "OSDLR_EL1", Kept, DEBUG),
    one([2, 0, 0, 0, 2], "OSDTRRX_EL1", Constant, NO_DEBUGGER),
    one([2, 0, 0, 3, 2], "OSDTRTX_EL1", Constant, NO_DEBUGGER),
    one([2, 0, 0, 6, 2], "OSECCR_EL1", Constant, NO_DEBUGGER),
    one([2, 3, 0, 1, 0], "MDCCSR_EL0", Constant, NO_DEBUGGER),
    many([2, 3, 0], (4, 5), (0, 0), "DBGDTR_EL0, DBGDTRRX_EL0", Constant, NO_DEBUGGER),
    one([2, 0, 7, 8, 6], "DBGCLAIMSET_EL1", Constant, "what can be claimed; claims are the vCPU's"),
    one([2, 0, 7, 9, 6], "DBGCLAIMCLR_EL1", Written(0xff), DEBUG),
    // Identification.
    many([3, 0, 0], (0, 7), (0, 7), "MIDR_EL1, MPIDR_EL1, ID_*", Constant, SHOWN),
    one([3, 1, 0, 0, 0], "CCSIDR_EL1", Constant, CACHES),
    one([3, 1, 0, 0, 1], "CLIDR_EL1", Constant, CACHES),
    one([3, 2, 0, 0, 0], "CSSELR_EL1", Own(1), STATE),
    one([3, 3, 0, 0, 1], "CTR_EL0", Constant, CACHES),
    one([3, 3, 0, 0, 7], "DCZID_EL0", Constant, CACHES),
    one([3, 1, 0, 0, 6], "SMIDR_EL1", Constant, "there where SME is, which the ID registers hide"),
    one([3, 1, 0, 0, 7], "AIDR_EL1", Constant, "the model's own identification: 0"),
    // Control.
    one([3, 0, 1, 0, 0], "SCTLR_EL1", Own(SCTLR_EL0), STATE),
    one([3, 0, 1, 0, 1], "ACTLR_EL1", Constant, "trapped: shows the processor's, ignores writes"),
    one([3, 0, 1, 0, 2], "CPACR_EL1", Own(3 << 20), STATE),
    one([3, 0, 1, 2, 4], "SMPRI_EL1", Own(0xf), "without SME nothing looks at it; exchanged"),
    // Translation.
    one([3, 0, 2, 0, 0], "TTBR0_EL1", Kept, STATE),
    one([3, 0, 2, 0, 1], "TTBR1_EL1", Own(0xffff_f000), STATE),
    one([3, 0, 2, 0, 2], "TCR_EL1", Kept, STATE),
    one([3, 0, 7, 4, 0], "PAR_EL1", Own(0xffff_f000), STATE),
    one([3, 0, 10, 2, 0], "MAIR_EL1", Own(0xff << 56), STATE),
    one([3, 0, 10, 3, 0], "AMAIR_EL1", Own(ALL), STATE),
    many([3, 0, 10], (4, 4), (0, 3), "LORSA to LORC", Constant, "there are no regions: LORID_EL1 says so"),
    one([3, 0, 10, 4, 7], "LORID_EL1", Constant, "there are no limited ordering regions"),
    // Pointer authentication.
    many([3, 0, 2], (1, 2), (0, 3), "APIA, APIB, APDA, APDB", Own(ALL), STATE),
    many([3, 0, 2], (3, 3), (0, 1), "APGA", Own(ALL), STATE),
    // Exceptions.
    one([3, 0, 4, 0, 0], "SPSR_EL1", Own(0xf000_0000), STATE),
    one([3, 0, 4, 0, 1], "ELR_EL1", Own(ALL), STATE),
    one([3, 0, 4, 1, 0], "SP_EL0", Own(ALL), STATE),
    one([3, 0, 5, 1, 0], "AFSR0_EL1", Own(WORD), STATE),
    one([3, 0, 5, 1, 1], "AFSR1_EL1", Own(WORD), STATE),
    one([3, 0, 5, 2, 0], "ESR_EL1", Own(WORD), STATE),
    one([3, 0, 5, 3, 0], "ERRIDR_EL1", Constant, "there are no error records"),
    one([3, 0, 6, 0, 0], "FAR_EL1", Own(ALL), STATE),
    one([3, 0, 12, 0, 0], "VBAR_EL1", Kept, STATE),
    one([3, 0, 12, 1, 0], "ISR_EL1", Moves, "what pends for this vCPU"),
    one([3, 0, 12, 1, 1], "DISR_EL1", Own(1 << 31), "HCR_EL2.AMO makes it VDISR_EL2: exchanged"),
    // PSTATE.
    one([3, 0, 4, 2, 0], "SPSel", Kept, PSTATE),
    one([3, 0, 4, 2, 2], "CurrentEL", Constant, PSTATE),
    one([3, 0, 4, 2, 3], "PAN", Own(1 << 22), PSTATE),
    one([3, 0, 4, 2, 4], "UAO", Own(1 << 23), PSTATE),
    one([3, 0, 4, 3, 0], "ALLINT", Constant, "a part of PSTATE; HCRX_EL2.TALLINT traps writes"),
    one([3, 3, 4, 2, 0], "NZCV", Kept, PSTATE),
    one([3, 3, 4, 2, 1], "DAIF", Own(1 << 9), PSTATE),
    one([3, 3, 4, 2, 5], "DIT", Own(1 << 24), PSTATE),
    one([3, 3, 4, 2, 6], "SSBS", Own(1 << 12), PSTATE),
    one([3, 3, 4, 2, 7], "TCO", Own(1 << 25), PSTATE),
    // Floating point.
    one([3, 3, 4, 4, 0], "FPCR", Own(1 << 22), STATE),
    one([3, 3, 4, 4, 1], "FPSR", Own(0x1f), STATE),
    // Threads.
    one([3, 0, 13, 0, 1], "CONTEXTIDR_EL1", Own(WORD), STATE),
    one([3, 0, 13, 0, 4], "TPIDR_EL1", Kept, "the program's number of its processor: exchanged"),
    one([3, 3, 13, 0, 2], "TPIDR_EL0", Own(ALL), STATE),
    one([3, 3, 13, 0, 3], "TPIDRRO_EL0", Own(ALL), STATE),
    one([3, 3, 13, 0, 5], "TPIDR2_EL0", Own(ALL), "there where SME is and FEAT_FGT is not: exchanged"),
    // Random numbers.
    many([3, 3, 2], (4, 4), (0, 1), "RNDR, RNDRRS", Moves, "random numbers"),
    // The interrupt controller's CPU interface.
    one([3, 0, 4, 6, 0], "ICC_PMR_EL1", Own(0xf8), VIRTUAL),
    one([3, 0, 12, 8, 0], "ICC_IAR0_EL1", Moves, VIRTUAL),
    one([3, 0, 12, 8, 1], "ICC_EOIR0_EL1", Written(1023), VIRTUAL),
    one([3, 0, 12, 8, 2], "ICC_HPPIR0_EL1", Moves, VIRTUAL),
    one([3, 0, 12, 8, 3], "ICC_BPR0_EL1", Own(4), VIRTUAL),
    one([3, 0, 12, 8, 4], "ICC_AP0R0_EL1", Own(1), VIRTUAL),
    one([3, 0, 12, 9, 0], "ICC_AP1R0_EL1", Own(1), VIRTUAL),
    one([3, 0, 12, 9, 5], "ICC_NMIAR1_EL1", Moves, "virtual: no interrupt is non-maskable"),
    one([3, 0, 12, 11, 1], "ICC_DIR_EL1", Written(1023), "trapped: what is in no list register, too"),
    one([3, 0, 12, 11, 3], "ICC_RPR_EL1", Moves, VIRTUAL),
    many([3, 0, 12], (11, 11), (5, 7), "ICC_SGI1R, ICC_ASGI1R, ICC_SGI0R", Written(0), "trapped"),
    one([3, 0, 12, 12, 0], "ICC_IAR1_EL1", Moves, VIRTUAL),
    one([3, 0, 12, 12, 1], "ICC_EOIR1_EL1", Written(1023), VIRTUAL),
    one([3, 0, 12, 12, 2], "ICC_HPPIR1_EL1", Moves, VIRTUAL),
    one([3, 0, 12, 12, 3], "ICC_BPR1_EL1", Own(4), VIRTUAL),
    one([3, 0, 12, 12, 4], "ICC_CTLR_EL1", Own(2), VIRTUAL),
    one([3, 0, 12, 12, 5], "ICC_SRE_EL1", Own(6), "registers are always on; exchanged, or constant"),
    many([3, 0, 12], (12, 12), (6, 7), "ICC_IGRPEN0_EL1, ICC_IGRPEN1_EL1", Own(1), VIRTUAL),
    // Time.
    one([3, 0, 14, 1, 0], "CNTKCTL_EL1", Own(0x303), STATE),
    one([3, 3, 14, 0, 0], "CNTFRQ_EL0", Constant, "the counters' frequency"),
    one([3, 3, 14, 0, 1], "CNTPCT_EL0", Moves, COUNTER),
    one([3, 3, 14, 0, 2], "CNTVCT_EL0", Moves, COUNTER),
    many([3, 3, 14], (0, 0), (5, 6), "CNTPCTSS_EL0, CNTVCTSS_EL0", Moves, COUNTER),
    many([3, 3, 14], (2, 3), (0, 0), "CNTP_TVAL_EL0, CNTV_TVAL_EL0", Moves, TIMER),
    many([3, 3, 14], (2, 3), (1, 1), "CNTP_CTL_EL0, CNTV_CTL_EL0", Own(2), TIMER),
    many([3, 3, 14], (2, 3), (2, 2), "CNTP_CVAL_EL0, CNTV_CVAL_EL0", Own(0xffff_0000), TIMER),
    // Model-specific registers.
    many([3, 1, 11], (0, 0), (2, 3), "L2CTLR_EL1, L2ECTLR_EL1", Constant, MODEL),
    many([3, 1, 15], (0, 3), (0, 7), "CPUACTLR_EL1 and more", Constant, MODEL),
    // Instructions.
    many([1, 0, 7], (1, 5), (0, 0), "IC IALLUIS, IALLU", Instruction, "caches of instructions"),
    one([1, 0, 7, 6, 1], "DC IVAC", Instruction, "cleans as well where EL1 may not write"),
    one([1, 0, 7, 6, 2], "DC ISW", Instruction, "trapped, and nothing done"),
    one([1, 0, 7, 10, 2], "DC CSW", Instruction, "trapped, and nothing done"),
    one([1, 0, 7, 14, 2], "DC CISW", Instruction, "trapped, and nothing done"),
    many([1, 0, 7], (8, 9), (0, 3), "AT", Instruction, "by both stages; the result is in PAR_EL1"),
    many([1, 3, 7], (3, 3), (4, 7), "CFP, DVP, COSP, CPP RCTX", Instruction, "of its own levels' context"),
    one([1, 3, 7, 4, 1], "DC ZVA", Instruction, "a store"),
    many([1, 3, 7], (4, 4), (3, 4), "DC GVA, DC GZVA", Instruction, "stores; HCR_EL2.ATA hides tags"),
    one([1, 3, 7, 5, 1], "IC IVAU", Instruction, ADDRESS),
    many([1, 3, 7], (10, 14), (1, 1), "DC CVAC to CIVAC", Instruction, ADDRESS),
    many([1, 3, 7], (10, 14), (3, 3), "DC CGVAC to CIGVAC", Instruction, "as DC CVAC; tags there are none"),
    many([1, 3, 7], (10, 14), (5, 5), "DC CGDVAC to CIGDVAC", Instruction, "as DC CVAC; tags there are none"),
    many([1, 0, 8], (1, 7), (0, 7), "TLBI of EL1 and EL0", Instruction, "of its own VMID alone"),
    many([1, 0, 9], (1, 7), (0, 7), "TLBI of EL1 and EL0, nXS", Instruction, "of its own VMID alone"),
];
