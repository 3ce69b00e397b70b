//! Numbers that the hardware of either architecture reads bit by bit. Here, and not beside the
//! instructions that hand them over, so that they are compared with the manuals' on any host.

use crate::HardwareId;

/// An interrupt gate of ring 0 to `handler` in segment `code`, on a stack of the task state
/// segment by its number counted from 1, or 0 for none: APM volume 2, section 4.8.4.
pub const fn gate(handler: u64, code: u16, stack: u16) -> [u64; 2] {
    let low = (handler & 0xffff)
        | (code as u64) << 16
        | (stack as u64) << 32
        | 0x8e << 40
        | (handler >> 16 & 0xffff) << 48;
    [low, handler >> 32]
}

/// The base in the descriptor of a task state segment: APM volume 2, section 4.8.3.
pub const fn task_base([low, high]: [u64; 2]) -> u64 {
    low >> 16 & 0xff_ffff | low >> 32 & 0xff00_0000 | high << 32
}

/// Commands of a local APIC: APM volume 2, section 16.5.
pub mod command {
    use super::HardwareId;

    /// An NMI.
    pub const NMI: u32 = 4 << 8;
    /// A reset.
    pub const INIT: u32 = 5 << 8;
    /// Level assert: set in every command but the INIT de-assert.
    pub(crate) const ASSERT: u32 = 1 << 14;

    /// A start on the page at `page`.
    pub const fn startup(page: u64) -> u32 {
        6 << 8 | (page >> 12) as u32
    }

    /// As an x2APIC takes it, in one register.
    pub const fn wide(destination: HardwareId, command: u32) -> u64 {
        destination.0 << 32 | (ASSERT | command) as u64
    }
}

/// What an I/O APIC's pin is to have for an edge, active high, to one processor, where nothing
/// remaps it: 82093AA, section 3.2.4.
pub const fn redirection(destination: u8, vector: u8) -> u64 {
    (destination as u64) << 56 | vector as u64
}

/// The registers of an I/O APIC's pin, and their values. The second unmasks.
pub const fn redirection_entry(pin: u32, entry: u64) -> [(u32, u32); 2] {
    let register = 0x10 + 2 * pin;
    [(register + 1, (entry >> 32) as u32), (register, entry as u32)]
}

/// MAIR_EL1 and MAIR_EL2: 0 is normal memory, write-back; 1 is Device-nGnRE.
pub const MAIR: u64 = 0x04ff;
/// T0SZ 16, cacheable walks, inner shareable, 4 KiB: DDI 0487, D24.2, for TCR_EL1 and TCR_EL2.
const LOWER_HALF: u64 = 16 | 1 << 8 | 1 << 10 | 3 << 12;
/// TCR_EL1: with T1SZ 16, and no walks for the upper half.
pub const TCR_EL1: u64 = LOWER_HALF | 16 << 16 | 1 << 23;
/// TCR_EL2 without the physical address size; bits 31 and 23 are always ones. In TCR_EL1 the size
/// is elsewhere, bit 31 means 4 KiB, and bit 23 disables the upper half.
pub const TCR_EL2: u64 = LOWER_HALF | 1 << 23 | 1 << 31;
/// MMU, stack alignment check, data and instruction caches.
const TRANSLATES: u64 = 1 | 1 << 2 | 1 << 3 | 1 << 12;
/// SCTLR_EL1, with the bits that were reserved as one in Armv8.0.
pub const SCTLR_EL1: u64 = 0x30d0_0800 | TRANSLATES;
/// SCTLR_EL2, with its bits that are.
pub const SCTLR_EL2: u64 = 0x30c5_0830 | TRANSLATES;

/// Of a GICv3: IHI 0069H, sections 12.9 and 12.10 for its registers.
pub mod gic {
    use super::HardwareId;

    /// GICD_IGROUPR and GICR_IGROUPR0: a bit for each interrupt.
    pub const GROUP: u64 = 0x0080;
    /// GICD_ISENABLER.
    pub const SET_ENABLE: u64 = 0x0100;
    /// GICD_ICENABLER.
    pub const CLEAR_ENABLE: u64 = 0x0180;
    /// GICD_ICACTIVER.
    pub const CLEAR_ACTIVE: u64 = 0x0380;
    /// GICD_IPRIORITYR: a byte for each interrupt.
    pub const PRIORITY: u64 = 0x0400;

    /// The word with an interrupt's bit, of registers like [`GROUP`], and the bit.
    pub const fn bit(register: u64, intid: u32) -> (u64, u32) {
        (register + (intid / 32) as u64 * 4, 1 << (intid % 32))
    }

    /// GICD_ICFGR: the word with an interrupt's trigger, and the bit that means an edge.
    pub const fn edge(intid: u32) -> (u64, u32) {
        (0x0c00 + (intid / 16) as u64 * 4, 2 << (intid % 16 * 2))
    }

    /// GICD_IROUTER of a shared interrupt.
    pub const fn router(intid: u32) -> u64 {
        0x6000 + intid as u64 * 8
    }

    /// Affinity levels 3 to 0 as in GICR_TYPER, from a value as in MPIDR_EL1.
    pub const fn packed(HardwareId(affinity): HardwareId) -> u64 {
        affinity >> 32 << 24 & 0xff00_0000 | affinity & 0x00ff_ffff
    }

    /// ICC_SGI1R_EL1 for interrupt `number`, below 16, to one processor: section 12.2.20.
    pub const fn sgi(HardwareId(affinity): HardwareId, number: u8) -> u64 {
        let [zero, one, two, _, three, ..] = affinity.to_le_bytes();
        let list = 1 << (zero % 16) | (zero as u64 / 16) << 44;
        (three as u64) << 48 | (two as u64) << 32 | (number as u64 & 15) << 24 | (one as u64) << 16 | list
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Every field has a value of its own, written out from the manual's picture.
    #[test]
    fn fields_are_where_the_manuals_have_them() {
        const ADDRESS: u64 = 0x1234_5678_9abc_def0;
        // APM volume 2, figure 4-24: offset, P and type, IST, selector, offset.
        assert_eq!(gate(ADDRESS, 0x28, 2), [0x9abc_8e02_0028_def0, 0x1234_5678]);
        // Figure 4-22: base 31:24, limit 19:16, P and type, base 23:0, limit 15:0; base 63:32.
        assert_eq!(task_base([0x9a0f_8bbc_def0_fff7, 0x1234_5678]), ADDRESS);
        // Figure 16-18, with the destination of figure 16-29.
        let to = HardwareId(0x0102_0304);
        let commands = [0x41, command::NMI, command::INIT, command::startup(0x8_f000)];
        assert_eq!(
            commands.map(|command| command::wide(to, command)),
            [0x0102_0304_0000_4041, 0x0102_0304_0000_4400, 0x0102_0304_0000_4500, 0x0102_0304_0000_468f]
        );
        // 82093AA, 3.2.4: two registers a pin from 10h on, the destination in bits 63:56.
        assert_eq!(redirection_entry(4, redirection(0xa5, 0xfb)), [(0x19, 0xa500_0000), (0x18, 0xfb)]);
    }

    #[test]
    fn registers_of_arm64_are_as_the_manual_says() {
        // DDI 0487, D24.2: EPD1, T1SZ; SH0, ORGN0 and IRGN0, T0SZ. Of EL2 bits 31 and 23 are RES1.
        assert_eq!((TCR_EL1, TCR_EL2), (0x0090_3510, 0x8080_3510));
        // I, SA, C, M; RES1 of EL1: 29, 28, 23, 22, 20, 11; of EL2: 29, 28, 23, 22, 18, 16, 11, 5,
        // 4.
        assert_eq!((SCTLR_EL1, SCTLR_EL2), (0x30d0_180d, 0x30c5_183d));
    }

    #[test]
    fn interrupts_of_a_gic_are_where_the_manual_has_them() {
        // IHI 0069H: ISENABLER1, ICFGR3, IROUTER50.
        assert_eq!(gic::bit(gic::SET_ENABLE, 50), (0x104, 1 << 18));
        assert_eq!((gic::edge(50), gic::router(50)), ((0xc0c, 1 << 5), 0x6190));
        // Aff3 to Aff0 are 44, 33, 22, 11: in MPIDR_EL1 bits 39:32 and 23:0.
        let affinity = HardwareId(0x44_0033_2211);
        assert_eq!(gic::packed(affinity), 0x4433_2211);
        // Aff3, RS, Aff2, INTID, Aff1, target list.
        assert_eq!(gic::sgi(affinity, 5), 0x0044_1033_0522_0002);
    }
}
