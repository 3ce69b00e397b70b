//! MSRs that a guest may find. APM volume 2, appendix A; SDM volume 3, table 12-6 (x2APIC); TLFS,
//! appendix F.

use super::Kind::{self, Constant, Kept, Moves, Own, Written};

/// MSRs of a kind.
pub type Row = super::Row<u32, Kind>;

/// The row of an MSR.
pub fn find(number: u32) -> Option<&'static Row> {
    ROWS.iter().find(|row| row.has(number, number))
}

const fn one(number: u32, name: &'static str, kind: Kind, why: &'static str) -> Row {
    many(number, number, name, kind, why)
}

const fn many(first: u32, last: u32, name: &'static str, kind: Kind, why: &'static str) -> Row {
    Row::new(first, last, name, kind, why)
}

const OURS: &str = "emulated, per vCPU";
const PARTITION: &str = "emulated, one for all vCPUs";
const SWITCHED: &str = "in the VMCB: goes with the vCPU by VMLOAD and VMSAVE";
const IN_NAME: &str = "configuration that guests may have in name: constant, writes are ignored";
/// The bits of page addresses that tests change, with the pages disabled.
const PAGES: u64 = 0xf000;

/// The table, in ascending order.
pub const ROWS: &[Row] = &[
    one(0x10, "TSC", Moves, "by the TSC offset, per vCPU"),
    one(0x1b, "APIC_BASE", Kept, OURS),
    one(0x3a, "FEATURE_CONTROL", Constant, "Intel's: locked, without VMX"),
    one(0x3b, "TSC_ADJUST", Own(0xff0), OURS),
    one(0x8b, "PATCH_LEVEL", Constant, IN_NAME),
    one(0x174, "SYSENTER_CS", Own(0xff), SWITCHED),
    many(0x175, 0x176, "SYSENTER_ESP, SYSENTER_EIP", Own(0xffff), SWITCHED),
    one(0x1a0, "MISC_ENABLE", Constant, "Intel's: configuration in name, writes are ignored"),
    one(0x1d9, "DEBUG_CONTROL", Constant, IN_NAME),
    one(0x277, "PAT", Own(1 << 56), "in the VMCB"),
    one(0x6e0, "TSC_DEADLINE", Moves, OURS),
    many(0x802, 0x803, "APIC: ID, version", Constant, OURS),
    one(0x808, "APIC: TPR", Own(0x10), OURS),
    one(0x80a, "APIC: PPR", Moves, OURS),
    one(0x80b, "APIC: EOI", Written(0), OURS),
    one(0x80d, "APIC: LDR", Constant, OURS),
    one(0x80f, "APIC: SVR", Own(0x10), OURS),
    many(0x810, 0x827, "APIC: ISR, TMR, IRR", Moves, OURS),
    one(0x828, "APIC: ESR", Written(0), OURS),
    one(0x830, "APIC: ICR", Moves, OURS),
    many(0x832, 0x837, "APIC: LVT", Own(0x10), OURS),
    one(0x838, "APIC: initial count", Own(0xff00), OURS),
    one(0x839, "APIC: current count", Moves, OURS),
    one(0x83e, "APIC: divide configuration", Own(1), OURS),
    one(0x83f, "APIC: self IPI", Written(0xf0), OURS),
    many(0x4000_0000, 0x4000_0001, "GUEST_OS_ID, HYPERCALL", Kept, PARTITION),
    one(0x4000_0002, "VP_INDEX", Constant, OURS),
    one(0x4000_0003, "RESET", Moves, "resets the machine, if it is written to"),
    one(0x4000_0010, "VP_RUNTIME", Moves, OURS),
    one(0x4000_0020, "TIME_REF_COUNT", Moves, PARTITION),
    one(0x4000_0021, "REFERENCE_TSC", Kept, PARTITION),
    many(0x4000_0022, 0x4000_0023, "TSC_FREQUENCY, APIC_FREQUENCY", Constant, PARTITION),
    one(0x4000_0070, "EOI", Written(0), OURS),
    one(0x4000_0071, "ICR", Moves, OURS),
    one(0x4000_0072, "TPR", Own(0x10), OURS),
    one(0x4000_0073, "VP_ASSIST_PAGE", Own(PAGES), OURS),
    one(0x4000_0080, "SCONTROL", Own(1), OURS),
    one(0x4000_0081, "SVERSION", Constant, OURS),
    many(0x4000_0082, 0x4000_0083, "SIEFP, SIMP", Own(PAGES), OURS),
    one(0x4000_0084, "EOM", Written(0), OURS),
    many(0x4000_0090, 0x4000_009f, "SINT0 to SINT15", Own(1 << 17), OURS),
    many(0x4000_00b0, 0x4000_00b7, "synthetic timers", Own(0), OURS),
    many(0x4000_0100, 0x4000_0104, "CRASH_P0 to CRASH_P4", Kept, PARTITION),
    one(0x4000_0105, "CRASH_CTL", Moves, "writes are reports of crashes, which are counted"),
    one(0x4000_0118, "TSC_INVARIANT_CONTROL", Kept, PARTITION),
    one(0xc000_0080, "EFER", Own(1), "in the VMCB"),
    one(0xc000_0081, "STAR", Own(0xffff << 32), SWITCHED),
    many(0xc000_0082, 0xc000_0083, "LSTAR, CSTAR", Own(0xffff), SWITCHED),
    one(0xc000_0084, "SFMASK", Own(0xff), SWITCHED),
    one(0xc000_0100, "FS_BASE", Own(0xffff), SWITCHED),
    one(0xc000_0101, "GS_BASE", Kept, "the program's number of its processor"),
    one(0xc000_0102, "KERNEL_GS_BASE", Own(0xffff), SWITCHED),
    one(0xc000_0103, "TSC_AUX", Own(0xff), "exchanged with the vCPU"),
    many(0xc001_0000, 0xc001_0007, "performance events and counters", Constant, IN_NAME),
    one(0xc001_0010, "SYSCFG", Constant, IN_NAME),
    one(0xc001_0015, "HWCR", Constant, IN_NAME),
    one(0xc001_001f, "NB_CFG", Constant, IN_NAME),
    one(0xc001_1020, "LS_CFG", Constant, IN_NAME),
    one(0xc001_1022, "DC_CFG", Constant, IN_NAME),
    many(0xc001_1029, 0xc001_102a, "DE_CFG, BU_CFG2", Constant, IN_NAME),
];
