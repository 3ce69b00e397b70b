//! Leaves of CPUID that are not all zeroes, and the bits that may be set in them. APM volume 3,
//! appendix E; TLFS, section 2.4.

/// Leaves, and the bits of EAX, EBX, ECX and EDX that may be set in them.
pub type Row = super::Row<u32, [u32; 4]>;

/// The row of a leaf.
pub fn find(leaf: u32) -> Option<&'static Row> {
    ROWS.iter().find(|row| row.has(leaf, leaf))
}

const fn row(first: u32, last: u32, bits: [u32; 4], name: &'static str, why: &'static str) -> Row {
    Row::new(first, last, name, bits, why)
}

const ALL: u32 = u32::MAX;
/// Leaf 1, ECX: MONITOR, VMX, SMX, EIST, TM2, SDBG, PDCM, DCA.
const HIDDEN_1C: u32 = 1 << 3 | 1 << 5 | 1 << 6 | 1 << 7 | 1 << 8 | 1 << 11 | 1 << 15 | 1 << 18;
/// Leaf 1, EDX: MCE, MTRR, MCA, DS, ACPI, TM, PBE.
const HIDDEN_1D: u32 = 1 << 7 | 1 << 12 | 1 << 14 | 1 << 21 | 1 << 22 | 1 << 29 | 1 << 31;
/// Leaf 7, EBX: features that are instructions alone, SMEP, SMAP, TSC_ADJUST; not PQM, MPX, PT.
const SHOWN_7B: u32 = 0xf1bf_07ab;
/// Leaf 7, ECX: vector instructions, UMIP, RDPID; not PKU, LA57 and similar ones.
const SHOWN_7C: u32 = 0x0040_5f46;
/// Leaf 8000_0001, ECX: SVM, extended APIC space, OSVW, IBS, SKINIT, WDT, LWP, NodeId, topology,
/// counters, DBX, PTSC, MWAITX.
const HIDDEN_E1C: u32 = 0x3dc8_b60c;
/// Leaf 8000_0001, EDX: MCE, MTRR, MCA, 1 GiB pages.
const HIDDEN_E1D: u32 = 1 << 7 | 1 << 12 | 1 << 14 | 1 << 26;

/// The table, in ascending order.
pub const ROWS: &[Row] = &[
    row(0, 0, [0xd, ALL, ALL, ALL], "vendor", "the processor's, up to leaf 0xd"),
    row(1, 1, [ALL, ALL, !HIDDEN_1C, !HIDDEN_1D], "features", "the processor's, less what is not provided"),
    row(2, 2, [ALL; 4], "TLBs and caches", "the processor's, Intel's"),
    row(4, 4, [ALL; 4], "caches", "the processor's, Intel's"),
    row(6, 6, [1 << 2, 0, 0, 0], "power", "the APIC timer never stops"),
    row(7, 7, [0, SHOWN_7B, SHOWN_7C, 1 << 4], "features", "instructions, and TSC_ADJUST"),
    row(0xb, 0xb, [ALL; 4], "topology", "one thread a core, one package"),
    row(0xd, 0xd, [ALL; 4], "extended state", "the processor's, without supervisor components"),
    row(0x4000_0000, 0x4000_0000, [0x4000_0006, ALL, ALL, ALL], "Hyper-V's vendor", "our interface"),
    row(0x4000_0001, 0x4000_0006, [ALL; 4], "Hyper-V's features", "ours; its bits have own tests"),
    row(0x8000_0000, 0x8000_0000, [0x8000_001f, ALL, ALL, ALL], "vendor", "up to leaf 0x8000001e"),
    row(0x8000_0001, 0x8000_0001, [ALL, ALL, !HIDDEN_E1C, !HIDDEN_E1D], "features", "as leaf 1"),
    row(0x8000_0002, 0x8000_0006, [ALL; 4], "brand, caches, TLBs", "the processor's"),
    row(0x8000_0007, 0x8000_0007, [0, 0, 0, 1 << 8], "invariant TSC", "if the guest has asked"),
    row(0x8000_0008, 0x8000_0008, [0xffff, 5, 0xf0ff, 0], "capacities", "widths of addresses, CLZERO, vCPUs"),
    row(0x8000_0019, 0x8000_001a, [ALL; 4], "TLBs, hints", "the processor's"),
];
