//! The registers that the distributor and the redistributor's SGI frame have at the same offsets
//! (IHI 0069H sections 12.8 and 12.10), and the configuration state behind them.

use migration::described;

use super::{Bits, PRIORITY_MASK, SGI_COUNT};

/// The meaning of a word with one bit per interrupt.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Bank {
    Group,
    SetEnable,
    ClearEnable,
    SetPending,
    ClearPending,
    SetActive,
    ClearActive,
}

/// An existing register. INTIDs are below 256; the rest of each array is reserved.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Register {
    /// 32 interrupts from `32 * word` on.
    Bank(Bank, u8),
    /// One or four interrupts from this one on.
    Priority { first: u8, count: u8 },
    /// 16 interrupts from this one on.
    Config { first: u8 },
}

const BANKS: [Bank; 7] = [
    Bank::Group,
    Bank::SetEnable,
    Bank::ClearEnable,
    Bank::SetPending,
    Bank::ClearPending,
    Bank::SetActive,
    Bank::ClearActive,
];

/// Decodes an access of `size` bytes at `offset`. `None`: reads as zero, ignores writes. That
/// applies to registers without effect under affinity routing and one security state
/// (GICD_ITARGETSR, GICD_SGIR, GICD_IGRPMODR, GICD_NSACR), and to accesses of a size that a
/// register does not support.
pub(super) fn decode(offset: u32, size: u8) -> Option<Register> {
    if !offset.is_multiple_of(u32::from(size.max(1))) {
        return None;
    }
    match (offset, size) {
        (0x080..0x400, 4) => {
            let bank = *BANKS.get(((offset - 0x80) / 0x80) as usize)?;
            let word = (offset % 0x80 / 4) as u8;
            (word < 8).then_some(Register::Bank(bank, word))
        }
        (0x400..0x500, 1 | 4) => Some(Register::Priority { first: (offset - 0x400) as u8, count: size }),
        (0xc00..0xc40, 4) => Some(Register::Config { first: ((offset - 0xc00) / 4 * 16) as u8 }),
        _ => None,
    }
}

#[derive(Clone, Debug)]
pub(super) struct Setup {
    pub(super) enabled: Bits,
    pub(super) group1: Bits,
    /// Edge-triggered; otherwise level-sensitive.
    pub(super) edge: Bits,
    pub(super) priority: [u8; 256],
}

described!(Setup: enabled, group1, edge, priority [|each| each.map(|one| one & PRIORITY_MASK)]);

impl Setup {
    /// After reset: disabled, group 0, level-sensitive except for SGIs, highest priority.
    pub(super) const fn new() -> Self {
        Self {
            enabled: Bits::EMPTY,
            group1: Bits::EMPTY,
            edge: Bits::from_word(0, (1 << SGI_COUNT) - 1),
            priority: [0; 256],
        }
    }

    /// Reads a register of the interrupts `of`. Pending and active words are not here, and are 0.
    pub(super) fn read(&self, register: Register, of: Bits) -> u32 {
        match register {
            Register::Bank(Bank::Group, word) => self.group1.and(of).word(word),
            Register::Bank(Bank::SetEnable | Bank::ClearEnable, word) => self.enabled.and(of).word(word),
            Register::Bank(..) => 0,
            Register::Priority { first, count } => {
                let bytes = core::array::from_fn(|byte| {
                    let intid = first.wrapping_add(byte as u8);
                    let is_read = byte < usize::from(count) && of.has(intid);
                    if is_read { self.priority[usize::from(intid)] } else { 0 }
                });
                u32::from_le_bytes(bytes)
            }
            Register::Config { first } => (0..16_u8).fold(0, |value, index| {
                let is_edge = of.has(first + index) && self.edge.has(first + index);
                value | u32::from(is_edge) << (2 * index + 1)
            }),
        }
    }

    /// Writes a register of the interrupts `of`. Returns the affected interrupts.
    pub(super) fn write(&mut self, register: Register, value: u32, of: Bits) -> Bits {
        match register {
            Register::Bank(bank, word) => {
                let named = Bits::from_word(word, value).and(of);
                let all = Bits::from_word(word, u32::MAX).and(of);
                match bank {
                    Bank::Group => self.group1 = self.group1.without(all).or(named),
                    Bank::SetEnable => self.enabled = self.enabled.or(named),
                    Bank::ClearEnable => self.enabled = self.enabled.without(named),
                    Bank::SetPending | Bank::ClearPending | Bank::SetActive | Bank::ClearActive => {}
                }
                if bank == Bank::Group { all } else { named }
            }
            Register::Priority { first, count } => {
                let mut written = Bits::EMPTY;
                for (byte, index) in value.to_le_bytes().into_iter().zip(0..count) {
                    let intid = first.wrapping_add(index);
                    if of.has(intid) {
                        self.priority[usize::from(intid)] = byte & PRIORITY_MASK;
                        written.insert(intid);
                    }
                }
                written
            }
            Register::Config { first } => {
                let mut written = Bits::EMPTY;
                for intid in first..=first + 15 {
                    if of.has(intid) && intid >= SGI_COUNT {
                        self.edge.set(intid, value >> (2 * (intid - first) + 1) & 1 != 0);
                        written.insert(intid);
                    }
                }
                written
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_does_not_exist_is_nothing() {
        // Beyond 256 interrupts, reserved, of wrong size, unaligned.
        for (offset, size) in [
            (0x0a0, 4),
            (0x07c, 4),
            (0x400, 2),
            (0x400, 8),
            (0x401, 4),
            (0x500, 1),
            (0x102, 4),
            (0x100, 1),
            (0x100, 8),
            (0x820, 4),
            (0xc40, 4),
            (0xd00, 4),
            (0xf00, 4),
            (0x100, 0),
            (u32::MAX, 1),
        ] {
            assert_eq!(decode(offset, size), None, "{offset:#x}, {size}");
        }
        assert_eq!(decode(0x39c, 4), Some(Register::Bank(Bank::ClearActive, 7)));
        assert_eq!(decode(0x4ff, 1), Some(Register::Priority { first: 255, count: 1 }));
        assert_eq!(decode(0xc3c, 4), Some(Register::Config { first: 240 }));
    }

    #[test]
    fn writes_reach_what_is_there_only() {
        let mut setup = Setup::new();
        let of = Bits::from_word(1, 0x0000_ffff);
        let all = decode(0x104, 4).unwrap();
        assert_eq!(setup.write(all, u32::MAX, of), of);
        assert_eq!((setup.read(all, of), setup.read(decode(0x184, 4).unwrap(), of)), (0xffff, 0xffff));
        assert_eq!(setup.read(decode(0x100, 4).unwrap(), of), 0);
        let _ = setup.write(decode(0x184, 4).unwrap(), 0x00f0, of);
        assert_eq!(setup.read(all, of), 0xff0f);
        let _ = setup.write(decode(0x084, 4).unwrap(), 0x5555, of);
        let _ = setup.write(decode(0x084, 4).unwrap(), 0xaaaa_aaaa, of);
        assert_eq!(setup.read(decode(0x084, 4).unwrap(), of), 0xaaaa, "groups are written, not added");
    }

    #[test]
    fn priorities_are_bytes_of_five_bits() {
        let mut setup = Setup::new();
        let of = Bits::ALL;
        let word = decode(0x424, 4).unwrap();
        let _ = setup.write(word, 0xa7c0_ffff, of);
        assert_eq!(setup.read(word, of), 0xa0c0_f8f8);
        assert_eq!(setup.write(decode(0x425, 1).unwrap(), 0x1234_5608, of), Bits::one(37));
        assert_eq!((setup.read(word, of), setup.read(decode(0x427, 1).unwrap(), of)), (0xa0c0_08f8, 0xa0));
    }

    #[test]
    fn sgis_stay_edge_triggered() {
        let mut setup = Setup::new();
        let [sgi, ppi] = [0xc00, 0xc04].map(|offset| decode(offset, 4).unwrap());
        assert_eq!(setup.read(sgi, Bits::ALL), 0xaaaa_aaaa);
        let _ = setup.write(sgi, 0, Bits::ALL);
        let _ = setup.write(ppi, 0xffff_fff3, Bits::ALL);
        assert_eq!((setup.read(sgi, Bits::ALL), setup.read(ppi, Bits::ALL)), (0xaaaa_aaaa, 0xaaaa_aaa2));
        let last = decode(0xc3c, 4).unwrap();
        assert_eq!(setup.write(last, u32::MAX, Bits::ALL).count(), 16);
    }
}
