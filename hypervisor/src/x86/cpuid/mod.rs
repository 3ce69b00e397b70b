//! CPUID: the features of this machine, and the ones that a guest is shown.
//!
//! A guest sees those features of the processor that it runs on which are in the lists of [`kept`],
//! plus the hypervisor's own (x2APIC, TSC deadline, the Hyper-V leaves). Every bit that is shown
//! works.

pub mod kept;
pub mod same;

use arrayvec::ArrayString;
use baremetal::HardwareId;
use kept::{
    EXTENDED_1_ECX, EXTENDED_1_EDX, EXTENDED_1A_EAX, EXTENDED_8_EBX, Hidden, LEAF_1_ECX, LEAF_1_EDX,
    LEAF_7_EBX, LEAF_7_ECX, LEAF_7_EDX, XSAVE_EAX, enabled,
};

use super::hyperv::cpuid::CpuidResult;
use super::vcpu::fpu;
use crate::devices::pc::apic_ids::ApicId;
use crate::x86::processor::{Processor, Vendor};

const EMPTY: CpuidResult = CpuidResult { eax: 0, ebx: 0, ecx: 0, edx: 0 };

/// Highest leaves that a guest is shown.
const MAX_BASIC: u32 = 0xd;
const MAX_EXTENDED: u32 = 0x8000_001e;

const LEAF_1_ECX_OSXSAVE: u32 = 1 << 27;
/// x2APIC, TSC deadline, hypervisor present.
const LEAF_1_ECX_OWN: u32 = 1 << 21 | 1 << 24 | 1 << 31;
/// In leaf 0x8000_0001, too.
const EDX_APIC: u32 = 1 << 9;
const LEAF_1_EDX_MULTI: u32 = 1 << 28;
/// AMD's: the several processors that leaf 1 counts are cores, not threads of one.
const EXTENDED_1_ECX_CORES: u32 = 1 << 1;
const EXTENDED_1_ECX_SVM: u32 = 1 << 2;
const LEAF_7_EBX_TSC_ADJUST: u32 = 1 << 1;

/// The bits of `word` that a guest is shown.
macro_rules! keep {
    ($features:ident, $word:expr) => {
        $word & const { kept::kept($features) }
    };
}

/// The part of a vCPU's state that CPUID depends on.
#[derive(Clone, Copy, Debug)]
pub struct View {
    /// Its APIC id.
    pub apic_id: ApicId,
    /// Number of vCPUs.
    pub vcpus: u32,
    /// Its local APIC is on.
    pub apic: bool,
    /// CR4.OSXSAVE.
    pub osxsave: bool,
    /// The guest has asked to be shown that its TSC is invariant, and it is.
    pub invariant_tsc: bool,
    /// The guest may have guests.
    pub may_nest: bool,
}

impl View {
    /// Number of bits in an APIC id that number the vCPUs.
    fn id_bits(self) -> u32 {
        (self.vcpus - 1).checked_ilog2().map_or(0, |bit| bit + 1)
    }
}

/// The answer to CPUID for architectural leaves. Leaves of the hypervisor's range are
/// [`crate::x86::hyperv`]'s.
#[inline(always)] // Into the exit's handler.
pub fn answer<A: Vendor>(leaf: u32, subleaf: u32, view: View, hidden: &Hidden) -> CpuidResult {
    let answer = answer_of_all::<A>(leaf, subleaf, view);
    if hidden.is_some { without::<A>(answer, leaf, subleaf, hidden) } else { answer }
}

#[cold]
fn without<A: Vendor>(answer: CpuidResult, leaf: u32, subleaf: u32, hidden: &Hidden) -> CpuidResult {
    let shown = shown_components::<A>(hidden);
    let CpuidResult { eax, ebx, ecx, edx } = match (leaf, subleaf) {
        (0xd, 0) if shown != 0 => CpuidResult { eax: shown as u32, ecx: image_size::<A>(shown), ..answer },
        (0xd, 2..=63) if shown >> subleaf & 1 == 0 => EMPTY,
        _ => answer,
    };
    let mut registers = [eax, ebx, ecx, edx];
    hidden.hide(leaf, subleaf, &mut registers);
    let [eax, ebx, ecx, edx] = registers;
    CpuidResult { eax, ebx, ecx, edx }
}

/// The components of XCR0 that the guest may set.
pub fn shown_components<A: Processor>(hidden: &Hidden) -> u64 {
    A::components() & fpu::SHOWN & !hidden.components
}

/// The same with all features.
#[inline(always)] // As above.
fn answer_of_all<A: Vendor>(leaf: u32, subleaf: u32, view: View) -> CpuidResult {
    match leaf {
        0 => {
            let host = A::cpuid(0, 0);
            CpuidResult { eax: host.eax.min(MAX_BASIC), ..host }
        }
        1 => identity::<A>(view),
        // Caches and TLBs by descriptors, as AMD's extended leaves have them.
        2 if A::IS_INTEL => A::cpuid(2, 0),
        4 if A::IS_INTEL => caches::<A>(subleaf, view),
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
            let apic = if view.apic { EDX_APIC } else { 0 };
            let cores = if !A::IS_INTEL && view.vcpus > 1 { EXTENDED_1_ECX_CORES } else { 0 };
            let svm = if view.may_nest { EXTENDED_1_ECX_SVM } else { 0 };
            CpuidResult {
                ecx: keep!(EXTENDED_1_ECX, host.ecx) | cores | svm,
                edx: keep!(EXTENDED_1_EDX, host.edx) | apic,
                ..host
            }
        }
        // Brand string, caches, TLBs.
        0x8000_0002..=0x8000_0006 | 0x8000_0019 => A::cpuid(leaf, 0),
        0x8000_001a => CpuidResult { eax: keep!(EXTENDED_1A_EAX, A::cpuid(leaf, 0).eax), ..EMPTY },
        // The invariant TSC, which a Hyper-V guest must ask for.
        0x8000_0007 => CpuidResult { edx: u32::from(view.invariant_tsc) << 8, ..EMPTY },
        0x8000_0008 => capacities::<A>(view),
        0x8000_000a if view.may_nest => A::inner_leaf(),
        _ => EMPTY,
    }
}

fn identity<A: Processor>(view: View) -> CpuidResult {
    let host = A::cpuid(1, 0);
    let osxsave = if view.osxsave { LEAF_1_ECX_OSXSAVE } else { 0 };
    let apic = if view.apic { EDX_APIC } else { 0 };
    let multi = if view.vcpus > 1 { LEAF_1_EDX_MULTI } else { 0 };
    CpuidResult {
        eax: host.eax,
        // The CLFLUSH line size is kept; ids and counts have eight bits here, leaf 0xb has all
        // bits.
        ebx: host.ebx & 0xff00 | (view.vcpus.min(255)) << 16 | (view.apic_id.0 & 0xff) << 24,
        ecx: keep!(LEAF_1_ECX, host.ecx) & !A::wrong() | LEAF_1_ECX_OWN | osxsave,
        edx: keep!(LEAF_1_EDX, host.edx) | multi | apic,
    }
}

fn features<A: Processor>() -> CpuidResult {
    let host = if A::cpuid(0, 0).eax >= 7 { A::cpuid(7, 0) } else { EMPTY };
    CpuidResult {
        eax: 0,
        ebx: keep!(LEAF_7_EBX, host.ebx) | LEAF_7_EBX_TSC_ADJUST,
        ecx: keep!(LEAF_7_ECX, host.ecx),
        edx: keep!(LEAF_7_EDX, host.edx),
    }
}

/// A cache of Intel's: each core has its own of the first two levels, and all share the others.
fn caches<A: Vendor>(subleaf: u32, view: View) -> CpuidResult {
    const TYPE: u32 = 0x1f;
    let host = A::cpuid(4, subleaf);
    if host.eax & TYPE == 0 {
        return EMPTY;
    }
    let last = view.vcpus.next_power_of_two() - 1;
    let sharing = if host.eax >> 5 & 7 <= 2 { 0 } else { last.min(0xfff) };
    CpuidResult { eax: host.eax & 0x3fff | sharing << 14 | last.min(0x3f) << 26, ..host }
}

/// Extended topology: one thread per core, all cores in one package.
fn topology(subleaf: u32, view: View) -> CpuidResult {
    let (shift, count, kind) = match subleaf {
        0 => (0, 1, 1),
        1 => (view.id_bits(), view.vcpus, 2),
        _ => (0, 0, 0),
    };
    CpuidResult { eax: shift, ebx: count, ecx: subleaf & 0xff | kind << 8, edx: view.apic_id.0 }
}

fn extended_state<A: Processor>(subleaf: u32) -> CpuidResult {
    let shown = A::components() & fpu::SHOWN;
    if shown == 0 {
        return EMPTY;
    }
    let host = A::cpuid(0xd, subleaf);
    match subleaf {
        // The guest's XCR0 is in the processor, so the size for it is correct as reported.
        0 => CpuidResult { eax: shown as u32, ebx: host.ebx, ecx: image_size::<A>(shown), edx: 0 },
        1 => CpuidResult { eax: keep!(XSAVE_EAX, host.eax), ..EMPTY },
        2..=63 if shown >> subleaf & 1 != 0 => host,
        _ => EMPTY,
    }
}

/// Size of an image of all `components`: the legacy part, the header, and the others where the
/// processor says that they are (APM volume 2, section 11.5).
pub fn image_size<A: Processor>(components: u64) -> u32 {
    let others = (2..64).filter(|bit| components >> bit & 1 != 0).map(|bit| A::cpuid(0xd, bit));
    others.map(|part| part.eax.saturating_add(part.ebx)).fold(0x240, u32::max)
}

fn capacities<A: Vendor>(view: View) -> CpuidResult {
    let host = A::cpuid(0x8000_0008, 0);
    CpuidResult {
        eax: host.eax & 0xffff,
        ebx: keep!(EXTENDED_8_EBX, host.ebx),
        ecx: if A::IS_INTEL { 0 } else { (view.vcpus - 1).min(255) | view.id_bits() << 12 },
        edx: 0,
    }
}

/// The bits that a guest may set in CR4: those of the features that it is shown, and of machine
/// checks and counters (APM volume 2, section 3.1.3).
pub fn guest_cr4_mask<A: Processor>() -> u64 {
    const MCE: u64 = 1 << 6;
    const PCE: u64 = 1 << 8;
    let (one, seven) = (A::cpuid(1, 0), features::<A>());
    [(LEAF_1_ECX, one.ecx), (LEAF_1_EDX, one.edx), (LEAF_7_EBX, seven.ebx), (LEAF_7_ECX, seven.ecx)]
        .into_iter()
        .fold(MCE | PCE, |mask, (word, shown)| mask | enabled(word, shown).0)
}

/// The bits that a guest may set in EFER: those of the features that it is shown (APM volume 2,
/// section 3.1.7).
pub fn guest_efer_mask<A: Processor>() -> u64 {
    enabled(EXTENDED_1_EDX, A::cpuid(0x8000_0001, 0).edx).1
}

/// Whether a guest is shown the instructions that set the bases of FS and GS.
pub fn shows_fsgsbase<A: Processor>() -> bool {
    features::<A>().ebx & 1 != 0
}

/// Width of physical addresses in bits.
pub fn physical_address_bits<A: Processor>() -> u32 {
    A::cpuid(0x8000_0008, 0).eax & 0xff
}

/// Whether the TSC counts at a constant rate in all processor states. QEMU's emulation does not say
/// so in its CPUID, but it takes the TSC from the host's clock, or counts instructions: the rate is
/// constant.
pub fn host_has_invariant_tsc<A: Processor>() -> bool {
    const INVARIANT: u32 = 1 << 8;
    A::cpuid(0x8000_0007, 0).edx & INVARIANT != 0 || host_is_tcg::<A>()
}

/// Whether this machine is QEMU's emulation: the signature in the hypervisor leaves.
fn host_is_tcg<A: Processor>() -> bool {
    let is_virtual = A::cpuid(1, 0).ecx & 1 << 31 != 0;
    let leaf = A::cpuid(0x4000_0000, 0);
    let part = u32::from_le_bytes(*b"TCGT");
    is_virtual
        && leaf.ebx == part
        && leaf.ecx == u32::from_le_bytes(*b"CGTC")
        && leaf.edx == u32::from_le_bytes(*b"GTCG")
}

/// Whether the machine has an x2APIC.
pub fn host_has_x2apic<A: Processor>() -> bool {
    A::cpuid(1, 0).ecx & 1 << 21 != 0
}

/// Whether the machine's APIC timer has TSC deadline mode.
pub fn host_has_tsc_deadline<A: Processor>() -> bool {
    A::cpuid(1, 0).ecx & 1 << 24 != 0
}

/// Whether the machine is a hypervisor's or an emulator's.
pub fn host_is_virtual<A: Processor>() -> bool {
    A::cpuid(1, 0).ecx & 1 << 31 != 0
}

/// Whether page tables may hold 1 GiB pages.
pub fn host_has_1g_pages<A: Processor>() -> bool {
    A::cpuid(0x8000_0001, 0).edx & 1 << 26 != 0
}

/// CR4's PSE and PGE, and of SMEP and SMAP those that the processor has, by EBX of leaf 7 (APM
/// volume 2, section 3.1.3; volume 3, E.3.6).
pub const fn protections(features: u32) -> u64 {
    let (smep, smap) = (features >> 7 & 1, features >> 20 & 1);
    1 << 4 | 1 << 7 | (smep as u64) << 20 | (smap as u64) << 21
}

/// Whether the processor has RDTSCP, and so TSC_AUX.
pub fn host_has_rdtscp<A: Processor>() -> bool {
    A::cpuid(0x8000_0001, 0).edx & 1 << 27 != 0
}

/// APIC id of the calling CPU.
pub fn host_apic_id<A: Processor>() -> HardwareId {
    HardwareId::from(if host_has_x2apic::<A>() && A::cpuid(0, 0).eax >= 0xb {
        A::cpuid(0xb, 0).edx
    } else {
        A::cpuid(1, 0).ebx >> 24
    })
}

/// The processor's name, in printable characters.
pub fn brand<P: Processor>() -> ArrayString<48> {
    let leaves = (0x8000_0002..=0x8000_0004).map(|leaf| P::cpuid(leaf, 0));
    let words = leaves.flat_map(|leaf| [leaf.eax, leaf.ebx, leaf.ecx, leaf.edx]);
    let letters = words.flat_map(u32::to_le_bytes).filter(|byte| (b' '..=b'~').contains(byte));
    let mut name = ArrayString::new();
    for byte in letters.skip_while(|byte| *byte == b' ') {
        // They fit.
        let _ = name.try_push(char::from(byte));
    }
    name
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn protections_are_those_of_the_processor() {
        // CR4: PSE 4, PGE 7, SMEP 20, SMAP 21. Fn0000_0007_EBX_x0: SMEP 7, SMAP 20.
        for (features, expected) in [(0, 0x90), (1 << 7, 0x10_0090), (1 << 20, 0x20_0090), (!0, 0x30_0090)] {
            assert_eq!(protections(features), expected, "{features:#x}");
        }
    }
}
