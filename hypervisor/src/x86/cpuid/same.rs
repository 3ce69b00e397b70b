//! A guest sees the same processor wherever it goes: what CPUID answers is compared, feature by
//! feature where it has names. Features that it has not seen are hidden from it.

use migration::{Archive, Flaw};

use super::kept::{Features, Hidden, WORDS};
use super::{View, answer};
use crate::x86::hyperv::cpuid::CpuidResult;
use crate::x86::processor::Vendor;

/// The other leaves: from one to another, and subleaves up to one.
const OTHERS: [(core::ops::RangeInclusive<u32>, u32, &str); 10] = [
    (0..=0, 0, "CPUID 0: the vendor, and the highest leaf"),
    (1..=1, 0, "CPUID 1: the processor's signature"),
    (2..=6, 7, "CPUID 2 to 6: the caches"),
    (7..=0xc, 1, "CPUID 7 to 0xc"),
    (0xd..=0xd, 63, "CPUID 0xd: the places of extended states"),
    (0x8000_0000..=0x8000_0001, 0, "CPUID 0x80000000: the highest leaf"),
    (0x8000_0002..=0x8000_0006, 0, "CPUID 0x80000002 to 0x80000006: the processor's name, caches, TLBs"),
    (0x8000_0007..=0x8000_0008, 0, "CPUID 0x80000008: widths of addresses"),
    (0x8000_0009..=0x8000_000a, 0, "CPUID 0x8000000a: what SVM has for the guest's guests"),
    (0x8000_000b..=0x8000_001e, 0, "CPUID 0x8000000b to 0x8000001e"),
];

#[inline(never)]
fn registers<A: Vendor>(leaf: u32, subleaf: u32, view: View, hidden: &Hidden) -> [u32; 4] {
    let CpuidResult { eax, ebx, ecx, edx } = answer::<A>(leaf, subleaf, view, hidden);
    // The size for the XCR0 that is in the processor at this moment.
    [eax, if (leaf, subleaf) == (0xd, 0) { 0 } else { ebx }, ecx, edx]
}

/// Compares what a vCPU sees, and hides what it has not seen.
///
/// # Errors
///
/// The first feature that is missing, or leaf that differs.
pub fn describe<A: Vendor>(view: View, hidden: &mut Hidden, archive: &mut Archive<'_>) -> Result<(), Flaw> {
    let (mut here, mut there): (Features, Features) = Default::default();
    let both = here.iter_mut().zip(&mut there);
    for (((leaf, subleaf, register), features), (here, there)) in WORDS.into_iter().zip(both) {
        let word = registers::<A>(leaf, subleaf, view, hidden).into_iter().nth(register).unwrap_or(0);
        for &(bit, name, _) in features {
            let has = word >> bit & 1;
            let had = archive.other(has.into())?;
            if had > has.into() {
                return Err(Flaw::Differs(name, has.into(), had));
            }
            *here |= has << bit;
            *there |= (had as u32) << bit;
        }
    }
    if here != there {
        *hidden = Hidden::between(here, there);
    }
    let registers = |leaf, subleaf| registers::<A>(leaf, subleaf, view, hidden);
    for (leaves, last, name) in OTHERS {
        // FNV-1a: any difference shows, though not which.
        let words = leaves.flat_map(|leaf| (0..=last).map(move |subleaf| (leaf, subleaf)));
        let words = words.flat_map(|(leaf, subleaf)| registers(leaf, subleaf));
        let digest = words.fold(0xcbf2_9ce4_8422_2325, |digest: u64, word| {
            (digest ^ u64::from(word)).wrapping_mul(0x0100_0000_01b3)
        });
        archive.same(name, digest)?;
    }
    Ok(())
}
