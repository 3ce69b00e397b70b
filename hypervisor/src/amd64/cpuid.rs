//! CPUID: the features of this machine, and the ones that a guest is shown.
//!
//! A guest sees the processor that it runs on, minus features that the hypervisor does not provide,
//! plus its own (x2APIC, TSC deadline, the Hyper-V leaves). Every bit that is shown works.

use super::processor::Amd64;
use crate::hyperv::cpuid::CpuidResult;

const EMPTY: CpuidResult = CpuidResult { eax: 0, ebx: 0, ecx: 0, edx: 0 };

/// Highest leaves that a guest is shown.
const MAX_BASIC: u32 = 0xd;
const MAX_EXTENDED: u32 = 0x8000_001e;

mod leaf1 {
    // ECX: MONITOR, VMX, SMX, EIST, TM2, SDBG, PDCM, DCA, OSXSAVE (follows CR4).
    pub(crate) const ECX_HIDDEN: u32 =
        1 << 3 | 1 << 5 | 1 << 6 | 1 << 7 | 1 << 8 | 1 << 11 | 1 << 15 | 1 << 18 | 1 << 27;
    pub(crate) const ECX_OSXSAVE: u32 = 1 << 27;
    // x2APIC, TSC deadline, hypervisor present: provided by the hypervisor.
    pub(crate) const ECX_SHOWN: u32 = 1 << 21 | 1 << 24 | 1 << 31;
    // EDX: MCE, MTRR, MCA, DS, ACPI, TM, PBE: no machine checks, memory types or thermal control
    // here.
    pub(crate) const EDX_HIDDEN: u32 = 1 << 7 | 1 << 12 | 1 << 14 | 1 << 21 | 1 << 22 | 1 << 29 | 1 << 31;
    pub(crate) const EDX_APIC: u32 = 1 << 9;
    pub(crate) const EDX_MULTI: u32 = 1 << 28;
}

mod leaf7 {
    // EBX: FSGSBASE, TSC_ADJUST (provided here), BMI1, AVX2, SMEP, BMI2, ERMS, INVPCID, AVX-512
    // F/DQ/IFMA, RDSEED, ADX, SMAP, CLFLUSHOPT, CLWB, AVX-512 CD, SHA, AVX-512 BW/VL.
    pub(crate) const EBX_KEPT: u32 = 1
        | 1 << 3
        | 1 << 5
        | 1 << 7
        | 1 << 8
        | 1 << 9
        | 1 << 10
        | 1 << 16
        | 1 << 17
        | 1 << 18
        | 1 << 19
        | 1 << 20
        | 1 << 21
        | 1 << 23
        | 1 << 24
        | 1 << 28
        | 1 << 29
        | 1 << 30
        | 1 << 31;
    pub(crate) const EBX_TSC_ADJUST: u32 = 1 << 1;
    // ECX: AVX-512 VBMI, UMIP, AVX-512 VBMI2, GFNI, VAES, VPCLMULQDQ, VNNI, BITALG, VPOPCNTDQ,
    // RDPID.
    pub(crate) const ECX_KEPT: u32 =
        1 << 1 | 1 << 2 | 1 << 6 | 1 << 8 | 1 << 9 | 1 << 10 | 1 << 11 | 1 << 12 | 1 << 14 | 1 << 22;
    // EDX: FSRM.
    pub(crate) const EDX_KEPT: u32 = 1 << 4;
}

mod extended1 {
    // ECX: SVM, extended APIC space, OSVW, IBS, SKINIT, WDT, LWP, NodeId, topology extensions,
    // performance counters, DBX, PTSC, MWAITX.
    pub(crate) const ECX_HIDDEN: u32 = 1 << 2
        | 1 << 3
        | 1 << 9
        | 1 << 10
        | 1 << 12
        | 1 << 13
        | 1 << 15
        | 1 << 19
        | 1 << 22
        | 1 << 23
        | 1 << 24
        | 1 << 26
        | 1 << 27
        | 1 << 28
        | 1 << 29;
    /// Machine checks, MTRRs; 1 GiB pages, because guest memory may be mapped by smaller ones: see
    /// [`stay::amd64::obey`].
    pub(crate) const EDX_HIDDEN: u32 = 1 << 7 | 1 << 12 | 1 << 14 | 1 << 26;
}

/// The part of a vCPU's state that CPUID depends on.
#[derive(Clone, Copy)]
pub struct View {
    /// Its APIC id.
    pub apic_id: u32,
    /// Number of vCPUs.
    pub vcpus: u32,
    /// Its local APIC is on.
    pub apic: bool,
    /// CR4.OSXSAVE.
    pub osxsave: bool,
    /// The guest has asked to be shown that its TSC is invariant, and it is.
    pub invariant_tsc: bool,
}

impl View {
    /// Number of bits in an APIC id that number the vCPUs.
    fn id_bits(self) -> u32 {
        (self.vcpus - 1).checked_ilog2().map_or(0, |bit| bit + 1)
    }
}

/// The answer to CPUID for architectural leaves. Leaves of the hypervisor's range are
/// [`crate::hyperv`]'s.
pub fn answer<A: Amd64>(leaf: u32, subleaf: u32, view: View) -> CpuidResult {
    match leaf {
        0 => {
            let host = A::cpuid(0, 0);
            CpuidResult { eax: host.eax.min(MAX_BASIC), ..host }
        }
        1 => identity::<A>(view),
        // The APIC timer does not stop in any idle state.
        6 => CpuidResult { eax: 1 << 2, ..EMPTY },
        7 if subleaf == 0 => features::<A>(),
        0xb => topology(subleaf, view),
        0xd => extended_state::<A>(subleaf),
        0x8000_0000 => {
            let host = A::cpuid(0x8000_0000, 0);
            CpuidResult { eax: host.eax.min(MAX_EXTENDED), ..host }
        }
        0x8000_0001 => {
            let host = A::cpuid(leaf, 0);
            CpuidResult {
                ecx: host.ecx & !extended1::ECX_HIDDEN,
                edx: host.edx & !extended1::EDX_HIDDEN,
                ..host
            }
        }
        // Brand string, caches, TLBs.
        0x8000_0002..=0x8000_0006 | 0x8000_0019 | 0x8000_001a => A::cpuid(leaf, 0),
        // The invariant TSC, which a Hyper-V guest must ask for.
        0x8000_0007 => CpuidResult { edx: u32::from(view.invariant_tsc) << 8, ..EMPTY },
        0x8000_0008 => capacities::<A>(view),
        _ => EMPTY,
    }
}

fn identity<A: Amd64>(view: View) -> CpuidResult {
    let host = A::cpuid(1, 0);
    let osxsave = if view.osxsave { leaf1::ECX_OSXSAVE } else { 0 };
    let apic = if view.apic { leaf1::EDX_APIC } else { 0 };
    let multi = if view.vcpus > 1 { leaf1::EDX_MULTI } else { 0 };
    CpuidResult {
        eax: host.eax,
        // The CLFLUSH line size is kept; ids and counts have eight bits here, leaf 0xb has all
        // bits.
        ebx: host.ebx & 0xff00 | (view.vcpus.min(255)) << 16 | (view.apic_id & 0xff) << 24,
        ecx: host.ecx & !(leaf1::ECX_HIDDEN | A::wrong()) | leaf1::ECX_SHOWN | osxsave,
        edx: host.edx & !(leaf1::EDX_HIDDEN | leaf1::EDX_MULTI | leaf1::EDX_APIC) | multi | apic,
    }
}

fn features<A: Amd64>() -> CpuidResult {
    let host = if A::cpuid(0, 0).eax >= 7 { A::cpuid(7, 0) } else { EMPTY };
    CpuidResult {
        eax: 0,
        ebx: host.ebx & leaf7::EBX_KEPT | leaf7::EBX_TSC_ADJUST,
        ecx: host.ecx & leaf7::ECX_KEPT,
        edx: host.edx & leaf7::EDX_KEPT,
    }
}

/// Extended topology: one thread per core, all cores in one package.
fn topology(subleaf: u32, view: View) -> CpuidResult {
    let (shift, count, kind) = match subleaf {
        0 => (0, 1, 1),
        1 => (view.id_bits(), view.vcpus, 2),
        _ => (0, 0, 0),
    };
    CpuidResult { eax: shift, ebx: count, ecx: subleaf & 0xff | kind << 8, edx: view.apic_id }
}

fn extended_state<A: Amd64>(subleaf: u32) -> CpuidResult {
    if A::components() == 0 {
        return EMPTY;
    }
    // The guest's XCR0 is in the processor, so the size for it is correct as reported.
    let host = A::cpuid(0xd, subleaf);
    match subleaf {
        // XSAVEOPT, XSAVEC, XGETBV 1; no supervisor components.
        1 => CpuidResult { eax: host.eax & 7, ..EMPTY },
        0 | 2..=63 => host,
        _ => EMPTY,
    }
}

fn capacities<A: Amd64>(view: View) -> CpuidResult {
    let host = A::cpuid(0x8000_0008, 0);
    // CLZERO and the always-saved error pointers; no speculation controls.
    const EBX_KEPT: u32 = 1 | 1 << 2;
    CpuidResult {
        eax: host.eax & 0xffff,
        ebx: host.ebx & EBX_KEPT,
        ecx: (view.vcpus - 1).min(255) | view.id_bits() << 12,
        edx: 0,
    }
}

/// The bits that a guest may set in CR4, given the CPUID leaves 1, 7 and 0xd that it is shown (APM
/// volume 2, section 3.1.3).
pub fn guest_cr4_mask<A: Amd64>() -> u64 {
    let one = A::cpuid(1, 0);
    let seven = features::<A>();
    let bit = |condition: bool, bit: u32| if condition { 1u64 << bit } else { 0 };
    // VME to PCE, FXSAVE and SIMD exceptions: every processor with long mode has them.
    0x7ff
        | bit(seven.ecx & 1 << 2 != 0, 11)
        | bit(seven.ebx & 1 != 0, 16)
        | bit(one.ecx & 1 << 17 != 0, 17)
        | bit(one.ecx & 1 << 26 != 0, 18)
        | bit(seven.ebx & 1 << 7 != 0, 20)
        | bit(seven.ebx & 1 << 20 != 0, 21)
}

/// Width of physical addresses in bits.
pub fn physical_address_bits<A: Amd64>() -> u32 {
    A::cpuid(0x8000_0008, 0).eax & 0xff
}

/// Whether the TSC counts at a constant rate in all processor states. QEMU's emulation does not say
/// so in its CPUID, but it takes the TSC from the host's clock, or counts instructions: the rate is
/// constant.
pub fn host_has_invariant_tsc<A: Amd64>() -> bool {
    const INVARIANT: u32 = 1 << 8;
    A::cpuid(0x8000_0007, 0).edx & INVARIANT != 0 || host_is_tcg::<A>()
}

/// Whether this machine is QEMU's emulation: the signature in the hypervisor leaves.
fn host_is_tcg<A: Amd64>() -> bool {
    let is_virtual = A::cpuid(1, 0).ecx & 1 << 31 != 0;
    let leaf = A::cpuid(0x4000_0000, 0);
    let part = u32::from_le_bytes(*b"TCGT");
    is_virtual
        && leaf.ebx == part
        && leaf.ecx == u32::from_le_bytes(*b"CGTC")
        && leaf.edx == u32::from_le_bytes(*b"GTCG")
}

/// Whether the machine has an x2APIC.
pub fn host_has_x2apic<A: Amd64>() -> bool {
    A::cpuid(1, 0).ecx & 1 << 21 != 0
}

/// Whether the machine's APIC timer has TSC deadline mode.
pub fn host_has_tsc_deadline<A: Amd64>() -> bool {
    A::cpuid(1, 0).ecx & 1 << 24 != 0
}

/// Whether page tables may hold 1 GiB pages.
pub fn host_has_1g_pages<A: Amd64>() -> bool {
    A::cpuid(0x8000_0001, 0).edx & 1 << 26 != 0
}

/// Whether the processor has RDTSCP, and so TSC_AUX.
pub fn host_has_rdtscp<A: Amd64>() -> bool {
    A::cpuid(0x8000_0001, 0).edx & 1 << 27 != 0
}

/// APIC id of the calling CPU.
pub fn host_apic_id<A: Amd64>() -> u32 {
    if host_has_x2apic::<A>() && A::cpuid(0, 0).eax >= 0xb {
        A::cpuid(0xb, 0).edx
    } else {
        A::cpuid(1, 0).ebx >> 24
    }
}
