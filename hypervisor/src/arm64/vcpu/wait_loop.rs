//! Finds the word that a processor in a WFE loop waits for.
//!
//! Arm's way to wait for a word in memory is to load it exclusively, which arms the monitor, to
//! compare it, and to execute WFE while it is unchanged (DDI 0487, "Wait for Event mechanism"): the
//! processor sleeps until the word is stored to. Linux waits for locks this way (`__cmpwait` in
//! arch/arm64/include/asm/cmpxchg.h, since 4.9). A processor that does not trap WFE, such as QEMU's
//! under its multi-threaded emulation, loops instead. When it is found there, its code reveals the
//! same as the trap would, and more: the word, and the value that must change.
//!
//! ```text
//!     sevl
//!     wfe
//!     ldxr  T, [A]        B, H, W or X; or ldaxr
//!     eor   T, T, V
//!     cbnz  T, 1f
//!     wfe
//! 1:
//! ```
//!
//! Anywhere between the first and the last of these the wait is certain, regardless of earlier
//! code: V is the value for which the guest keeps waiting.

const SEVL: u32 = 0xd503_20bf;
const WFE: u32 = 0xd503_205f;
const LENGTH: usize = 6;

/// Number of instructions that are examined: those of a loop around the current instruction.
pub const WINDOW: usize = 2 * LENGTH - 1;
/// Index of the current instruction among them.
pub const AT: usize = LENGTH - 1;

/// A wait for a word in memory to change.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Wait {
    /// The register with the word's address, 0 to 30.
    pub address: usize,
    /// The register with the value that must change; 31 is zero.
    pub value: usize,
    /// Size of the word in bytes: 1, 2, 4 or 8.
    pub bytes: usize,
}

/// The wait of a processor that is about to execute the instruction at [`AT`] of the window.
pub fn find(window: &[u32; WINDOW]) -> Option<Wait> {
    window.windows(LENGTH).find_map(|code| wait(code.try_into().ok()?))
}

fn wait(code: [u32; LENGTH]) -> Option<Wait> {
    let [SEVL, WFE, load, compare, branch, WFE] = code else { return None };
    // LDXR and LDAXR: the size in bits 31 and 30, acquire in bit 15, no second register.
    if load & 0x3fff_7c00 != 0x085f_7c00 {
        return None;
    }
    let (size, base, loaded) = (load >> 30, load >> 5 & 31, load & 31);
    // EOR of registers, not shifted: of 32 bits, or 64 (bit 31).
    if compare & 0x7fe0_fc00 != 0x4a00_0000 || compare & 31 != loaded || compare >> 5 & 31 != loaded {
        return None;
    }
    // CBNZ to after the last WFE, with bit 31 as before.
    let is_wide = size == 3;
    let behind = 0x3500_0000 | 2 << 5 | loaded;
    if base == 31 || compare >> 31 != u32::from(is_wide) || branch != behind | u32::from(is_wide) << 31 {
        return None;
    }
    Some(Wait { address: base as usize, value: (compare >> 16 & 31) as usize, bytes: 1 << size })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// LDXR W3, [X1]; EOR W3, W3, W0; CBNZ W3, end. As encoded by llvm-mc.
    const WORD: [u32; LENGTH] = [SEVL, WFE, 0x885f_7c23, 0x4a00_0063, 0x3500_0043, WFE];
    /// LDXRB W2, [X19]; EOR W2, W2, W20; CBNZ W2.
    const BYTE: [u32; LENGTH] = [SEVL, WFE, 0x085f_7e62, 0x4a14_0042, 0x3500_0042, WFE];
    /// LDAXR X5, [X30]; EOR X5, X5, XZR; CBNZ X5.
    const WIDE: [u32; LENGTH] = [SEVL, WFE, 0xc85f_ffc5, 0xca1f_00a5, 0xb500_0045, WFE];
    const NOP: u32 = 0xd503_201f;

    fn at(code: [u32; LENGTH], place: usize) -> [u32; WINDOW] {
        let mut window = [NOP; WINDOW];
        window[AT - place..][..LENGTH].copy_from_slice(&code);
        window
    }

    #[test]
    fn u30_a_wait_is_found_from_each_of_its_instructions() {
        let waits = [
            (WORD, Wait { address: 1, value: 0, bytes: 4 }),
            (BYTE, Wait { address: 19, value: 20, bytes: 1 }),
            (WIDE, Wait { address: 30, value: 31, bytes: 8 }),
        ];
        for (code, wait) in waits {
            for place in 0..LENGTH {
                assert_eq!(find(&at(code, place)), Some(wait), "{place}");
            }
        }
    }

    #[test]
    fn u30_what_is_not_quite_a_wait_is_none() {
        for place in 0..LENGTH {
            for bit in 0..32 {
                let mut code = WORD;
                code[place] ^= 1 << bit;
                let found = find(&at(code, 2));
                let may_be = match place {
                    // Another size or register, or acquire; another value.
                    2 => bit == 15 || (5..10).contains(&bit) || bit >= 30,
                    3 => (16..21).contains(&bit),
                    _ => false,
                };
                assert!(
                    found.is_none() || may_be && found != find(&at(WORD, 2)) || place == 2 && bit == 15,
                    "{place} {bit}"
                );
            }
        }
        assert_eq!(find(&[NOP; WINDOW]), None);
    }
}
