//! The capabilities that matter to the owner of a function.
//!
//! Lists are those of PCI, 6.7, and PCIe, 7.6. A list ends at its end, at a pointer into the
//! header, or at a capability that was visited before. Of each capability the first one counts.

use crate::config::{Address, ConfigSpace, HAS_CAPABILITIES, register};
use arrayvec::ArrayVec;

/// Vendor-specific capabilities that are kept, at most. Further ones are ignored.
pub const VENDORS_MAX: usize = 8;
/// Double words of a vendor-specific capability, at most. Longer ones are ignored.
pub const VENDOR_WORDS_MAX: usize = 8;

/// Ids of capabilities (PCI, appendix H).
pub(crate) mod id {
    pub(crate) const POWER: u8 = 0x01;
    pub(crate) const MSI: u8 = 0x05;
    pub(crate) const VENDOR: u8 = 0x09;
    pub(crate) const EXPRESS: u8 = 0x10;
    pub(crate) const MSIX: u8 = 0x11;
    pub(crate) const ADVANCED_FEATURES: u8 = 0x13;
    /// Extended.
    pub(crate) const ACS: u16 = 0x000d;
    /// Extended.
    pub(crate) const ATS: u16 = 0x000f;
}

/// Message signalled interrupts (PCI, 6.8.1).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Msi {
    /// Offset of the capability.
    pub offset: u8,
    /// Whether it sends to addresses of 64 bits.
    pub is_64_bit: bool,
    /// Whether each message can be masked.
    pub has_masks: bool,
    /// Messages that it can send: a power of two from 1 to 32.
    pub messages: u8,
}

impl Msi {
    /// Length of the capability in bytes, rounded up to double words.
    pub const fn capability_len(&self) -> u16 {
        12 + if self.is_64_bit { 4 } else { 0 } + if self.has_masks { 8 } else { 0 }
    }
}

/// A place in the memory of a BAR.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BarPlace {
    /// Number of the BAR. It may be one that does not exist.
    pub bar: u8,
    /// Offset in bytes, a multiple of 8.
    pub offset: u32,
}

/// Interrupts with a table of messages (PCI, 6.8.2).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Msix {
    /// Offset of the capability.
    pub offset: u8,
    /// Entries of the table: 1 to 2048.
    pub vectors: u16,
    /// Where the table is.
    pub table: BarPlace,
    /// Where the array of pending bits is.
    pub pending: BarPlace,
}

/// What a function is in PCI Express (PCIe, 7.5.3.2). Exhaustive: 4 bits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Port {
    /// An endpoint, also of the legacy kind.
    Endpoint,
    /// A port of the root complex.
    Root,
    /// The port of a switch towards the root.
    Upstream,
    /// A port of a switch away from the root.
    Downstream,
    /// A bridge from PCI Express to conventional PCI.
    ToConventional,
    /// A bridge from conventional PCI to PCI Express.
    FromConventional,
    /// An endpoint in the root complex.
    Integrated,
    /// A collector of events in the root complex.
    EventCollector,
    /// Reserved.
    Other(u8),
}

impl Port {
    const fn new(value: u8) -> Self {
        match value {
            0 | 1 => Self::Endpoint,
            4 => Self::Root,
            5 => Self::Upstream,
            6 => Self::Downstream,
            7 => Self::ToConventional,
            8 => Self::FromConventional,
            9 => Self::Integrated,
            10 => Self::EventCollector,
            other => Self::Other(other),
        }
    }

    /// Whether a link with one device is behind it.
    pub const fn is_downstream(self) -> bool {
        matches!(self, Self::Root | Self::Downstream)
    }
}

/// PCI Express (PCIe, 7.5.3).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Express {
    /// Offset of the capability.
    pub offset: u8,
    /// What the function is.
    pub port: Port,
    /// Whether it can reset itself (function level reset).
    pub has_flr: bool,
}

impl Express {
    /// Has all DMA of the function go by the processors' caches: it does not ask for the opposite
    /// any more (PCI Express 4.0, 7.5.3.4). Memory that was zeroed may be nowhere else yet.
    pub fn snoop(&self, space: &impl ConfigSpace, address: Address) {
        const NO_SNOOP: u32 = 1 << 11;
        let register = u16::from(self.offset) + 8;
        let control = space.read(address, register);
        if control & NO_SNOOP != 0 {
            // The upper half has bits that are cleared by writing them.
            space.write(address, register, control & 0xffff & !NO_SNOOP);
        }
    }
}

/// Power management (PM, 3.2).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Power {
    /// Offset of the capability.
    pub offset: u8,
    /// Whether the function keeps its state from D3hot to D0 (No_Soft_Reset). Otherwise that
    /// transition resets it.
    pub keeps_state: bool,
}

/// Advanced features of conventional PCI (Advanced Capabilities for Conventional PCI, ECN of 2006).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AdvancedFeatures {
    /// Offset of the capability.
    pub offset: u8,
    /// Whether the function can reset itself.
    pub has_flr: bool,
    /// Whether it says that transactions are pending.
    pub has_pending: bool,
}

/// A vendor-specific capability, as it was when it was read (PCI, appendix H). virtio describes its
/// registers with them (virtio, 4.1.4).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Vendor {
    /// Offset of the capability.
    pub offset: u8,
    /// Length in bytes, 3 at least.
    pub len: u8,
    /// Its double words. The byte with the next pointer, and bytes from `len` on, are 0.
    pub words: ArrayVec<u32, VENDOR_WORDS_MAX>,
}

/// Address translation services: the function keeps translations (PCIe, 10.5.1).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Ats {
    /// Offset of the capability.
    pub offset: u16,
    /// Invalidations that the function accepts before it answers the first: 1 to 32.
    pub queue_depth: u8,
    /// Whether it is enabled.
    pub is_enabled: bool,
}

/// Access control services: whether requests from one function to another pass through the root
/// complex (PCIe, 6.12 and 7.7.8).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Acs {
    /// Offset of the capability.
    pub offset: u16,
    /// The services that it has.
    pub capability: u16,
    /// The services that are enabled.
    pub control: u16,
}

/// What a function can do.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Capabilities {
    /// Message signalled interrupts.
    pub msi: Option<Msi>,
    /// Interrupts with a table of messages.
    pub msix: Option<Msix>,
    /// PCI Express.
    pub express: Option<Express>,
    /// Power management.
    pub power: Option<Power>,
    /// Advanced features of conventional PCI.
    pub advanced: Option<AdvancedFeatures>,
    /// What the vendor says, in the order of the list.
    pub vendor: ArrayVec<Vendor, VENDORS_MAX>,
    /// Address translation services.
    pub ats: Option<Ats>,
    /// Access control services.
    pub acs: Option<Acs>,
}

impl Capabilities {
    /// Reads the capabilities of a function or a bridge.
    pub fn read(space: &impl ConfigSpace, address: Address) -> Self {
        let mut found = Self::default();
        if space.read(address, register::COMMAND) & HAS_CAPABILITIES == 0 {
            return found;
        }
        let mut seen = 0u64;
        // The lowest two bits of pointers are reserved.
        let mut offset = space.read(address, register::CAPABILITIES) as u8 & !3;
        while u16::from(offset) >= register::HEADER_END && seen >> (offset / 4) & 1 == 0 {
            seen |= 1 << (offset / 4);
            let head = space.read(address, offset.into());
            if head == u32::MAX {
                break;
            }
            found.add(&Reader { space, address }, offset, head);
            offset = head.to_le_bytes()[1] & !3;
        }
        if found.express.is_some() {
            found.read_extended(space, address);
        }
        found
    }

    fn add<S: ConfigSpace>(&mut self, from: &Reader<'_, S>, offset: u8, head: u32) {
        // One that would reach beyond the end is no capability.
        let fits = |len: u16| u16::from(offset) + len <= register::EXTENDED;
        match head as u8 {
            id::POWER if self.power.is_none() && fits(8) => self.power = Some(from.power(offset)),
            id::MSI if self.msi.is_none() => {
                self.msi = Some(msi(offset, head)).filter(|msi| fits(msi.capability_len()))
            }
            id::MSIX if self.msix.is_none() && fits(12) => self.msix = Some(from.msix(offset, head)),
            id::EXPRESS if self.express.is_none() && fits(12) => {
                self.express = Some(from.express(offset, head));
            }
            id::ADVANCED_FEATURES if self.advanced.is_none() && fits(8) => {
                self.advanced = Some(advanced(offset, head));
            }
            id::VENDOR => {
                if let Some(vendor) = from.vendor(offset, head) {
                    // A ninth one is not kept.
                    let _ = self.vendor.try_push(vendor);
                }
            }
            _ => {}
        }
    }

    fn read_extended(&mut self, space: &impl ConfigSpace, address: Address) {
        let mut seen = [false; (register::END / 4) as usize];
        let mut offset = register::EXTENDED;
        while (register::EXTENDED..register::END).contains(&offset) && !seen[usize::from(offset / 4)] {
            seen[usize::from(offset / 4)] = true;
            let head = space.read(address, offset);
            if head == u32::MAX || head == 0 {
                break;
            }
            // The capability may be the last of the space, in a list that is wrong.
            let word =
                |at: u16| if offset + at < register::END { space.read(address, offset + at) } else { 0 };
            match head as u16 {
                id::ACS if self.acs.is_none() => {
                    let word = word(4);
                    self.acs = Some(Acs { offset, capability: word as u16, control: (word >> 16) as u16 });
                }
                id::ATS if self.ats.is_none() => {
                    let word = word(4);
                    // 0 stands for 32.
                    let queue_depth = match word as u8 & 31 {
                        0 => 32,
                        depth => depth,
                    };
                    self.ats = Some(Ats { offset, queue_depth, is_enabled: word >> 31 != 0 });
                }
                _ => {}
            }
            offset = (head >> 20) as u16 & !3;
        }
    }
}

fn msi(offset: u8, head: u32) -> Msi {
    Msi {
        offset,
        is_64_bit: head >> 23 & 1 != 0,
        has_masks: head >> 24 & 1 != 0,
        // 6 and 7 are reserved.
        messages: 1 << (head >> 17 & 7).min(5),
    }
}

fn advanced(offset: u8, head: u32) -> AdvancedFeatures {
    AdvancedFeatures { offset, has_pending: head >> 24 & 1 != 0, has_flr: head >> 25 & 1 != 0 }
}

/// Reads the bodies of capabilities of one function.
struct Reader<'s, S> {
    space: &'s S,
    address: Address,
}

impl<S: ConfigSpace> Reader<'_, S> {
    /// The double word at `at` of the capability.
    fn word(&self, offset: u8, at: u16) -> u32 {
        self.space.read(self.address, u16::from(offset) + at)
    }

    fn power(&self, offset: u8) -> Power {
        Power { offset, keeps_state: self.word(offset, 4) >> 3 & 1 != 0 }
    }

    fn msix(&self, offset: u8, head: u32) -> Msix {
        let place = |word: u32| BarPlace { bar: word as u8 & 7, offset: word & !7 };
        Msix {
            offset,
            vectors: (head >> 16 & 0x7ff) as u16 + 1,
            table: place(self.word(offset, 4)),
            pending: place(self.word(offset, 8)),
        }
    }

    fn express(&self, offset: u8, head: u32) -> Express {
        let port = Port::new((head >> 20 & 15) as u8);
        Express { offset, port, has_flr: self.word(offset, 4) >> 28 & 1 != 0 }
    }

    /// `None` if its length cannot be right.
    fn vendor(&self, offset: u8, head: u32) -> Option<Vendor> {
        let len = head.to_le_bytes()[2];
        let count = len.div_ceil(4);
        let end = u16::from(offset) + u16::from(len);
        if len < 3 || usize::from(count) > VENDOR_WORDS_MAX || end > register::EXTENDED {
            return None;
        }
        let mut words = ArrayVec::new();
        for index in 0..count {
            let value = match index {
                0 => head & !0xff00,
                _ => self.word(offset, u16::from(index) * 4),
            };
            let kept = (len - index * 4).min(4);
            words.push(value & (u32::MAX >> (32 - 8 * u32::from(kept))));
        }
        Some(Vendor { offset, len, words })
    }
}
