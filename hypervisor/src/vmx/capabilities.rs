//! What a processor's VMX can do, as its capability MSRs say (appendix A), and the controls that
//! are chosen from that (25.6 to 25.8).

use core::fmt;
use paging::{Ept, Level};
use stay::tagged::two_flushes::Invvpid;

use super::controls::{ACKNOWLEDGE, APIC, CHOSEN, Choice, Controls, How, PAUSE_LOOP, POSTED, VPID, Word};

const BASIC: u32 = 0x480;
const CR0_FIXED: [u32; 2] = [0x486, 0x487];
const CR4_FIXED: [u32; 2] = [0x488, 0x489];
const SECONDARY: u32 = 0x48b;
const EPT_VPID: u32 = 0x48c;
const ARCH_CAPABILITIES: u32 = 0x10a;
/// In that one: a guest that changes the size of a page below its code does not stop the machine.
const IF_PSCHANGE_MC_NO: u64 = 1 << 6;
/// Pin-based, primary, exit and entry controls: all of those in [`Word`]'s order but the secondary
/// ones.
const PLAIN: [u32; 4] = [0x481, 0x482, 0x483, 0x484];
/// The same, of processors that say which of the bits that should be set may be clear.
const TRUE: [u32; 4] = [0x48d, 0x48e, 0x48f, 0x490];
const HAS_TRUE: u64 = 1 << 55;

/// What the capability MSRs say.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Capabilities {
    basic: u64,
    /// By [`Word`]: bits that must be set in the lower half, bits that may be set in the upper.
    words: [u64; 5],
    /// Bits that must be set, and bits that may be set.
    cr0: [u64; 2],
    cr4: [u64; 2],
    ept_vpid: u64,
    /// `IA32_ARCH_CAPABILITIES`, or 0 where it is missing.
    others: u64,
}

/// Why VMX here is of no use.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Lacking {
    /// The firmware has disabled it.
    Firmware,
    /// A control is missing.
    Control(&'static str),
    /// A control that would cost too much cannot be switched off.
    Fixed(&'static str),
    /// A kind of nested tables, or of a flush of them.
    Nested(&'static str),
}

impl fmt::Display for Lacking {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Firmware => f.write_str("VMX is disabled by the firmware: enable it in the set-up"),
            Self::Control(name) => write!(f, "this CPU has VMX without {name}"),
            Self::Fixed(name) => write!(f, "VMX of this CPU cannot do without {name}"),
            Self::Nested(name) => write!(f, "EPT of this CPU has no {name}"),
        }
    }
}

/// Types of INVEPT and INVVPID, and formats of nested tables: bits of `IA32_VMX_EPT_VPID_CAP`.
pub mod ept {
    #![allow(missing_docs, reason = "the names are the manual's")]
    pub const WALK_4: u64 = 1 << 6;
    pub const WRITE_BACK: u64 = 1 << 14;
    pub const PAGES_2M: u64 = 1 << 16;
    pub const INVEPT: u64 = 1 << 20;
    pub const ACCESSED_DIRTY: u64 = 1 << 21;
    pub const INVEPT_ONE: u64 = 1 << 25;
    pub const INVEPT_ALL: u64 = 1 << 26;
    pub const INVVPID: u64 = 1 << 32;
    pub const INVVPID_ADDRESS: u64 = 1 << 40;
    pub const INVVPID_ONE: u64 = 1 << 41;
    pub const INVVPID_ALL: u64 = 1 << 42;
}

impl Capabilities {
    /// Of a processor without VMX.
    pub const NONE: Self = Self { basic: 0, words: [0; 5], cr0: [0; 2], cr4: [0; 2], ept_vpid: 0, others: 0 };

    /// Reads them with `read`, which reads an MSR. The processor has VMX. `has_others` is whether
    /// it has `IA32_ARCH_CAPABILITIES`, too (CPUID 7, EDX bit 29).
    pub fn read(has_others: bool, mut read: impl FnMut(u32) -> u64) -> Self {
        let basic = read(BASIC);
        let [pin, primary, exit, entry] = if basic & HAS_TRUE != 0 { TRUE } else { PLAIN }.map(&mut read);
        // Bit 31 of the primary ones says whether there are secondary ones, and those say whether
        // there are EPT and VPIDs.
        let secondary = if primary >> 63 != 0 { read(SECONDARY) } else { 0 };
        let has_ept_or_vpid = secondary >> 32 & (1 << 1 | 1 << 5) != 0;
        Self {
            basic,
            words: [pin, primary, secondary, exit, entry],
            cr0: CR0_FIXED.map(&mut read),
            cr4: CR4_FIXED.map(&mut read),
            ept_vpid: if has_ept_or_vpid { read(EPT_VPID) } else { 0 },
            others: if has_others { read(ARCH_CAPABILITIES) } else { 0 },
        }
    }

    /// The number that a VMXON region and each VMCS begin with.
    pub const fn revision(&self) -> u32 {
        self.basic as u32 & 0x7fff_ffff
    }

    /// CR0 in VMX operation: `wanted`, with what must be set and without what must be clear.
    pub const fn cr0(&self, wanted: u64) -> u64 {
        (wanted | self.cr0[0]) & self.cr0[1]
    }

    /// The same for CR4.
    pub const fn cr4(&self, wanted: u64) -> u64 {
        (wanted | self.cr4[0]) & self.cr4[1]
    }

    /// The bits that the guest's CR0 must have: an unrestricted guest chooses PE and PG.
    pub const fn guest_cr0_fixed(&self) -> u64 {
        self.cr0[0] & !(1 | 1 << 31)
    }

    /// The bits that the guest's CR4 must have.
    pub const fn guest_cr4_fixed(&self) -> u64 {
        self.cr4[0]
    }

    /// `IA32_VMX_EPT_VPID_CAP`.
    pub const fn ept_vpid(&self) -> u64 {
        self.ept_vpid
    }

    /// The largest page of nested tables.
    pub const fn largest_page(&self) -> Level {
        Ept::largest(self.ept_vpid, self.others & IF_PSCHANGE_MC_NO != 0)
    }

    /// Whether all of these [bits](ept) are set.
    pub const fn has(&self, bits: u64) -> bool {
        self.ept_vpid & bits == bits
    }

    /// Type and descriptor of the INVVPID that drops what is named, or more if the processor cannot
    /// name it alone (SDM volume 3, section 31.3, INVVPID).
    #[inline(always)]
    pub fn invvpid(&self, named: Invvpid) -> (u64, [u64; 2]) {
        let offers = |kind| self.has(ept::INVVPID | kind);
        let (kind, vpid, address) = match named {
            Invvpid::Address { vpid, address } if offers(ept::INVVPID_ADDRESS) => (0, vpid, address),
            Invvpid::Address { vpid, .. } | Invvpid::Vpid(vpid) if offers(ept::INVVPID_ONE) => (1, vpid, 0),
            Invvpid::ButGlobals(vpid) => (3, vpid, 0),
            _ => (2, 0, 0),
        };
        (kind, [vpid.into(), address])
    }

    fn allows(&self, word: Word, bit: u32) -> bool {
        self.words[word as usize] >> 32 & 1 << bit != 0
    }

    fn forces(&self, choice: &Choice) -> bool {
        self.words[choice.word as usize] & 1 << choice.bit != 0
    }

    /// The controls that each vCPU begins with.
    ///
    /// # Errors
    ///
    /// What the processor lacks.
    pub fn choose(&self) -> Result<Controls, Lacking> {
        let mut words = self.words.map(|word| word as u32);
        for choice in CHOSEN {
            let is_allowed = self.allows(choice.word, choice.bit);
            match choice.how {
                _ if is_allowed && choice.how.is_set() => {
                    words[choice.word as usize] |= 1 << choice.bit;
                }
                How::Set | How::Later if !is_allowed => {
                    return Err(Lacking::Control(choice.name));
                }
                How::Later | How::Clear if self.forces(choice) => {
                    return Err(Lacking::Fixed(choice.name));
                }
                _ => {}
            }
        }
        let required = [
            (ept::WALK_4, "walks of 4 levels"),
            (ept::WRITE_BACK, "tables in write-back memory"),
            (ept::ACCESSED_DIRTY, "accessed and dirty bits"),
            (ept::PAGES_2M, "pages of 2 MiB"),
            (ept::INVEPT | ept::INVEPT_ONE | ept::INVEPT_ALL, "INVEPT of one guest and of all"),
        ];
        if let Some((_, name)) = required.iter().find(|(bits, _)| !self.has(*bits)) {
            return Err(Lacking::Nested(name));
        }
        let pause_loop = self.allows(Word::Secondary, PAUSE_LOOP);
        let apic = APIC.into_iter().all(|bit| self.allows(Word::Secondary, bit));
        let posted = apic && self.allows(Word::Pin, POSTED) && self.allows(Word::Exit, ACKNOWLEDGE);
        // A processor takes posted interrupts only where exits take interrupts.
        words[Word::Exit as usize] |= u32::from(posted) << ACKNOWLEDGE;
        let controls = Controls { words, pause_loop, apic, posted };
        // A tag is of use only where what is kept under it can be dropped.
        let can_drop = self.has(ept::INVVPID) && self.ept_vpid & (ept::INVVPID_ONE | ept::INVVPID_ALL) != 0;
        Ok(if can_drop { controls } else { controls.without(Word::Secondary, VPID) })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// SDM volume 3, section 31.3: types 0 to 3, and bits 15:0 and 127:64 of the descriptor; A.10:
    /// INVVPID is bit 32, its types 0 to 2 are bits 40 to 42.
    #[test]
    fn invvpid_names_what_there_is_a_type_for() {
        let address = Invvpid::Address { vpid: 0x1234, address: 0xffff_8000_0000_1000 };
        let with = |bits: &[u32]| Capabilities {
            ept_vpid: bits.iter().fold(0, |all, bit| all | 1 << bit),
            ..Capabilities::NONE
        };
        for (bits, of_page, of_tag) in [
            (&[32, 40, 41, 42][..], (0, [0x1234, 0xffff_8000_0000_1000]), (1, [0x1234, 0])),
            (&[32, 41, 42], (1, [0x1234, 0]), (1, [0x1234, 0])),
            (&[32, 42], (2, [0, 0]), (2, [0, 0])),
        ] {
            let found = [address, Invvpid::Vpid(0x1234)].map(|named| with(bits).invvpid(named));
            assert_eq!(found, [of_page, of_tag], "{bits:?}");
        }
    }

    #[test]
    fn what_is_fixed_of_control_registers_is_so() {
        // Bits 0 and 31 are to be set, bit 2 is to be clear.
        let fixed = [0x8000_0021, 0xffff_fffb];
        let found = Capabilities { cr0: fixed, cr4: fixed, ..Capabilities::NONE };
        assert_eq!([found.cr0(0x46), found.cr4(0x46)], [0x8000_0063; 2]);
        assert_eq!((found.guest_cr0_fixed(), found.guest_cr4_fixed()), (0x20, 0x8000_0021));
    }

    #[test]
    fn i8_pages_are_small_unless_the_processor_stands_changes_of_size() {
        let largest = |has_others, others| {
            let read = |number| match number {
                ARCH_CAPABILITIES => others,
                _ => u64::MAX,
            };
            Capabilities::read(has_others, read).largest_page()
        };
        assert_eq!(largest(true, IF_PSCHANGE_MC_NO), Level::Page1G);
        assert_eq!(largest(true, !IF_PSCHANGE_MC_NO), Level::Page4K);
        assert_eq!(largest(false, IF_PSCHANGE_MC_NO), Level::Page4K);
    }
}
