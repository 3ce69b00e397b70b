//! What an IOMMU must be able to do, and what it can besides. Source: D51397, 11.4.2 and 11.4.3.

use core::fmt;
use core::ops::Range;

use super::command::Commands;
use super::interrupt::LocalApics;

/// What an IOMMU can do. It can do what guests' devices need.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Capabilities {
    /// Its way of invalidations.
    pub commands: Commands,
    /// The largest block of interrupts that is invalidated at once: 2 to the power of this.
    pub interrupts_order_max: u8,
    /// Offsets of its fault recording registers, of 16 bytes each.
    pub faults: Range<u64>,
}

/// Why an IOMMU is not used.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Unusable {
    /// It keeps what is not there (caching mode).
    KeepsAbsence,
    /// It has a write buffer that software must flush.
    WriteBuffer,
    /// It walks no tables of four levels.
    Levels,
    /// Nor pages of all sizes in them.
    LargePages,
    /// It has too few domains.
    Domains,
    /// Its invalidations do not wait for accesses that are on their way.
    Drain,
    /// It has no invalidation queue.
    NoQueue,
    /// It remaps no interrupts.
    NoRemapping,
    /// It interrupts no processor that is in x2APIC mode.
    NoX2apic,
    /// It reads tables past the processors' caches.
    Incoherent,
}

impl fmt::Display for Unusable {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::KeepsAbsence => "it keeps what is not mapped",
            Self::WriteBuffer => "it has a write buffer that must be flushed",
            Self::Levels => "it walks no tables of four levels",
            Self::LargePages => "it knows no pages of 2 MiB and 1 GiB",
            Self::Domains => "it has too few domains",
            Self::Drain => "its invalidations do not wait for accesses on their way",
            Self::NoQueue => "it has no invalidation queue",
            Self::NoRemapping => "it remaps no interrupts",
            Self::NoX2apic => "it interrupts no processor in x2APIC mode",
            Self::Incoherent => "it reads tables past the processors' caches",
        })
    }
}

impl Capabilities {
    /// Decodes the registers, in a machine with these local APICs, of an IOMMU that is `emulated`
    /// or not: one that is reads memory as the processors do, whatever it says. Domains are numbers
    /// of 8 bits.
    ///
    /// # Errors
    ///
    /// [`Unusable`].
    pub fn read(
        version: u32,
        [first, second]: [u64; 2],
        apics: LocalApics,
        emulated: bool,
    ) -> Result<Self, Unusable> {
        let has = |register: u64, bit: u32| register >> bit & 1 != 0;
        // From version 2 on each invalidation drains.
        let drains = version >> 4 & 15 >= 2 || has(first, 54) && has(first, 55);
        for (is_met, why) in [
            (!has(first, 7), Unusable::KeepsAbsence),
            (!has(first, 4), Unusable::WriteBuffer),
            (has(first, 10), Unusable::Levels),
            (has(first, 34) && has(first, 35), Unusable::LargePages),
            (first & 7 >= 2, Unusable::Domains),
            (drains, Unusable::Drain),
            (has(second, 1), Unusable::NoQueue),
            (has(second, 3), Unusable::NoRemapping),
            (apics == LocalApics::Xapic || has(second, 4), Unusable::NoX2apic),
            (emulated || has(second, 0), Unusable::Incoherent),
        ] {
            if !is_met {
                return Err(why);
            }
        }
        let faults = (first >> 24 & 0x3ff) * 16;
        Ok(Self {
            commands: Commands { order_max: has(first, 39).then_some((first >> 48 & 0x3f) as u8) },
            interrupts_order_max: (second >> 20 & 15) as u8,
            faults: faults..faults + ((first >> 40 & 0xff) + 1) * 16,
        })
    }
}
