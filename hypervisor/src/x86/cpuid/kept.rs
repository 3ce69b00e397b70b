//! The features that a guest is shown, and for each the reason why it works: a bit that is not here
//! is hidden, whatever the processor has. (APM volume 3, appendix E; SDM volume 2, CPUID.)

use Why::{Control, Extended, Plain, Register};

use crate::x86::{EFER_FFXSR, EFER_LME, EFER_NXE, EFER_SCE};

/// What enables a feature, or holds its state. The rules of CR4 and EFER follow from it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Why {
    /// Nothing: instructions on registers that every vCPU has, or a description.
    Plain,
    /// These bits of CR4.
    Control(u64),
    /// This bit of EFER.
    Efer(u64),
    /// These components of XCR0.
    Extended(u64),
    /// These model-specific registers.
    Register(&'static [u32]),
    /// These, and the feature is not the processor's, but the hypervisor's.
    Own(&'static [u32]),
}

/// Bit, name and reason.
pub type Feature = (u32, &'static str, Why);

const AVX: Why = Extended(1 << 2);
const AVX512: Why = Extended(7 << 5);
const TSC_AUX: Why = Register(&[0xc000_0103]);
const PAT: Why = Register(&[0x277]);

/// Leaf 1, ECX.
pub const LEAF_1_ECX: &[Feature] = &[
    (0, "SSE3", Plain),
    (1, "PCLMULQDQ", Plain),
    (9, "SSSE3", Plain),
    (12, "FMA", AVX),
    (13, "CMPXCHG16B", Plain),
    (17, "PCID", Control(1 << 17)),
    (19, "SSE4.1", Plain),
    (20, "SSE4.2", Plain),
    (21, "x2APIC", Why::Own(&[0x1b])),
    (22, "MOVBE", Plain),
    (23, "POPCNT", Plain),
    (24, "TSC deadline", Why::Own(&[0x6e0])),
    (25, "AES", Plain),
    (26, "XSAVE", Control(1 << 18)),
    (27, "OSXSAVE: CR4 has it set", Why::Own(&[])),
    (28, "AVX", AVX),
    (29, "F16C", AVX),
    (30, "RDRAND", Plain),
    (31, "a hypervisor is present", Why::Own(&[])),
];

/// Leaf 1, EDX. Not here: machine checks, memory types and thermal control, which a guest has not.
pub const LEAF_1_EDX: &[Feature] = &[
    (0, "FPU", Plain),
    (1, "VME", Control(0b11)),
    (2, "DE", Control(1 << 3)),
    (3, "PSE", Control(1 << 4)),
    (4, "TSC", Control(1 << 2)),
    (5, "MSR", Plain),
    (6, "PAE", Control(1 << 5)),
    (8, "CMPXCHG8B", Plain),
    (9, "APIC", Why::Own(&[0x1b])),
    (11, "SYSENTER", Register(&[0x174, 0x175, 0x176])),
    (13, "PGE", Control(1 << 7)),
    (15, "CMOV", Plain),
    (16, "PAT", PAT),
    (17, "PSE36", Plain),
    (19, "CLFLUSH", Plain),
    (23, "MMX", Plain),
    (24, "FXSR", Control(1 << 9)),
    (25, "SSE", Control(1 << 10)),
    (26, "SSE2", Plain),
    (28, "several processors", Why::Own(&[])),
];

/// Leaf 7, EBX.
pub const LEAF_7_EBX: &[Feature] = &[
    (0, "FSGSBASE", Control(1 << 16)),
    (1, "TSC_ADJUST", Why::Own(&[0x3b])),
    (3, "BMI1", Plain),
    (5, "AVX2", AVX),
    (7, "SMEP", Control(1 << 20)),
    (8, "BMI2", Plain),
    (9, "ERMS", Plain),
    (10, "INVPCID", Plain),
    (16, "AVX512F", AVX512),
    (17, "AVX512DQ", AVX512),
    (18, "RDSEED", Plain),
    (19, "ADX", Plain),
    (20, "SMAP", Control(1 << 21)),
    (21, "AVX512IFMA", AVX512),
    (23, "CLFLUSHOPT", Plain),
    (24, "CLWB", Plain),
    (28, "AVX512CD", AVX512),
    (29, "SHA", Plain),
    (30, "AVX512BW", AVX512),
    (31, "AVX512VL", AVX512),
];

/// Leaf 7, ECX.
pub const LEAF_7_ECX: &[Feature] = &[
    (1, "AVX512VBMI", AVX512),
    (2, "UMIP", Control(1 << 11)),
    (6, "AVX512VBMI2", AVX512),
    (8, "GFNI", Plain),
    (9, "VAES", AVX),
    (10, "VPCLMULQDQ", AVX),
    (11, "AVX512VNNI", AVX512),
    (12, "AVX512BITALG", AVX512),
    (14, "AVX512VPOPCNTDQ", AVX512),
    (22, "RDPID", TSC_AUX),
];

/// Leaf 7, EDX.
pub const LEAF_7_EDX: &[Feature] = &[(4, "FSRM", Plain)];

/// Leaf 0xd, subleaf 1, EAX. There are no supervisor components.
pub const XSAVE_EAX: &[Feature] = &[(0, "XSAVEOPT", Plain), (1, "XSAVEC", Plain), (2, "XGETBV 1", Plain)];

/// Leaf 0x8000_0001, ECX. Not here: what other registers control that a guest has not (SVM, OSVW,
/// IBS, LWP, counters, breakpoint masks), and TCE, which changes what INVLPG drops.
pub const EXTENDED_1_ECX: &[Feature] = &[
    (0, "LAHF", Plain),
    (1, "several processors are cores", Why::Own(&[])),
    (4, "CR8 by LOCK", Plain),
    (5, "LZCNT", Plain),
    (6, "SSE4A", Plain),
    (7, "misaligned SSE", Plain),
    (8, "PREFETCHW", Plain),
    (11, "XOP", AVX),
    (16, "FMA4", AVX),
    (21, "TBM", Plain),
];

/// Leaf 0x8000_0001, EDX. Not here: 1 GiB pages, because guest memory may be mapped by smaller ones
/// (see [`stay::tagged::obey`]).
pub const EXTENDED_1_EDX: &[Feature] = &[
    (0, "FPU", Plain),
    (1, "VME", Control(0b11)),
    (2, "DE", Control(1 << 3)),
    (3, "PSE", Control(1 << 4)),
    (4, "TSC", Control(1 << 2)),
    (5, "MSR", Plain),
    (6, "PAE", Control(1 << 5)),
    (8, "CMPXCHG8B", Plain),
    (9, "APIC", Why::Own(&[0x1b])),
    (11, "SYSCALL", Why::Efer(EFER_SCE)),
    (13, "PGE", Control(1 << 7)),
    (15, "CMOV", Plain),
    (16, "PAT", PAT),
    (17, "PSE36", Plain),
    (20, "NX", Why::Efer(EFER_NXE)),
    (22, "MMX extensions", Plain),
    (23, "MMX", Plain),
    (24, "FXSR", Control(1 << 9)),
    (25, "FFXSR", Why::Efer(EFER_FFXSR)),
    (27, "RDTSCP", TSC_AUX),
    (29, "long mode", Why::Efer(EFER_LME)),
    (30, "3DNow extensions", Plain),
    (31, "3DNow", Plain),
];

/// Leaf 0x8000_0008, EBX. Not here: speculation controls.
pub const EXTENDED_8_EBX: &[Feature] = &[(0, "CLZERO", Plain), (2, "error pointers are saved", Plain)];

/// Leaf 0x8000_001a, EAX: how wide the units are.
pub const EXTENDED_1A_EAX: &[Feature] = &[(0, "FP128", Plain), (1, "MOVU", Plain), (2, "FP256", Plain)];

/// A register of an answer: leaf, subleaf, number from EAX on.
pub type Word = (u32, u32, usize);

/// The registers with features.
pub const WORDS: [(Word, &[Feature]); 10] = [
    ((1, 0, 2), LEAF_1_ECX),
    ((1, 0, 3), LEAF_1_EDX),
    ((7, 0, 1), LEAF_7_EBX),
    ((7, 0, 2), LEAF_7_ECX),
    ((7, 0, 3), LEAF_7_EDX),
    ((0xd, 1, 0), XSAVE_EAX),
    ((0x8000_0001, 0, 2), EXTENDED_1_ECX),
    ((0x8000_0001, 0, 3), EXTENDED_1_EDX),
    ((0x8000_0008, 0, 1), EXTENDED_8_EBX),
    ((0x8000_001a, 0, 0), EXTENDED_1A_EAX),
];

/// The values of these registers.
pub type Features = [u32; WORDS.len()];

/// The features that a guest is not shown although the processor has them: it has come from one
/// without. What enables them, or holds their state, is not the guest's either.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Hidden {
    words: Features,
    /// Whether there are any.
    pub is_some: bool,
    /// Bits of CR4, of EFER, and of XCR0.
    pub cr4: u64,
    /// See above.
    pub efer: u64,
    /// See above.
    pub components: u64,
}

impl Hidden {
    /// Of a guest that has seen `there`, which this processor has, among others.
    pub fn between(here: Features, there: Features) -> Self {
        let enabled = |words: &Features| {
            let all = WORDS.iter().zip(words);
            all.fold((0, 0, 0), |all, ((_, features), word)| {
                let (cr4, efer) = enabled(features, *word);
                (all.0 | cr4, all.1 | efer, all.2 | extended(features, *word))
            })
        };
        let ((cr4, efer, components), kept) = (enabled(&here), enabled(&there));
        let mut words = here;
        words.iter_mut().zip(there).for_each(|(word, there)| *word &= !there);
        Self {
            words,
            is_some: here != there,
            cr4: cr4 & !kept.0,
            efer: efer & !kept.1,
            components: components & !kept.2,
        }
    }

    /// Hides them from an answer.
    pub(super) fn hide(&self, leaf: u32, subleaf: u32, answer: &mut [u32; 4]) {
        let hidden = WORDS
            .iter()
            .zip(self.words)
            .filter(|(((its, sub, _), _), _)| *its == leaf && (*sub == subleaf || !matches!(leaf, 7 | 0xd)));
        for (((_, _, register), _), word) in hidden {
            answer.iter_mut().skip(*register).take(1).for_each(|shown| *shown &= !word);
        }
    }
}

pub(super) const fn kept(features: &[Feature]) -> u32 {
    let (mut mask, mut index) = (0, 0);
    while index < features.len() {
        let (bit, _, why) = features[index];
        if !matches!(why, Why::Own(_)) {
            mask |= 1 << bit;
        }
        index += 1;
    }
    mask
}

/// The components of XCR0 that the features in `shown` have.
fn extended(features: &[Feature], shown: u32) -> u64 {
    let shown = features.iter().filter(|(bit, ..)| shown >> bit & 1 != 0);
    shown.fold(0, |all, &(_, _, why)| if let Extended(components) = why { all | components } else { all })
}

/// What the features in `shown` let a guest set in CR4, and in EFER.
pub(super) fn enabled(features: &[Feature], shown: u32) -> (u64, u64) {
    let shown = features.iter().filter(|(bit, ..)| shown >> bit & 1 != 0);
    shown.fold((0, 0), |(cr4, efer), &(_, _, why)| match why {
        Control(bits) => (cr4 | bits, efer),
        Why::Efer(bit) => (cr4, efer | bit),
        Plain | Extended(_) | Register(_) | Why::Own(_) => (cr4, efer),
    })
}
