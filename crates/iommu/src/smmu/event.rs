//! Event records (IHI 0070, 7.3).
//!
//! | word | fields |
//! |---|---|
//! | 0 | 7:0 number, 11 SSV, 31:12 SubstreamID, 63:32 StreamID |
//! | 1 | 15:0 STAG or Reason, 31 Stall, 33 PnU, 34 InD, 35 RnW, 39 S2, 41:40 CLASS |
//! | 2 | InputAddr |
//! | 3 | 55:12 IPA, or 55:3 FetchAddr |
//!
//! QEMU encodes CLASS wrongly before its commit 2731ea049d13, and may have the address of
//! F_CD_FETCH in word 2.

use core::fmt;

use super::command::StreamId;

/// What a device did.
///
/// Exhaustive: a bit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Access {
    /// It read.
    Read,
    /// It read an instruction.
    Fetch,
    /// It wrote.
    Write,
}

/// What the SMMU was doing for it: CLASS.
///
/// Exhaustive: two bits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Class {
    /// Fetching the context descriptor.
    Descriptor,
    /// Reading a table: at stage 2, translating the address of a table of stage 1.
    Walk,
    /// Translating the input.
    Input,
    /// Reserved.
    Reserved,
}

/// Stage of translation.
///
/// Exhaustive: a bit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stage {
    /// Stage 1.
    One,
    /// Stage 2.
    Two,
}

/// A fault of a translation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Fault {
    /// Address from the device, InputAddr; the low 12 bits of merged events are those of one of
    /// them.
    pub address: u64,
    /// What the device did.
    pub access: Access,
    /// It did so with privilege: PnU.
    pub is_privileged: bool,
    /// What the SMMU was doing.
    pub class: Class,
    /// The stage that failed.
    pub stage: Stage,
    /// Input of stage 2 if that has failed, without the low 12 bits.
    pub ipa: Option<u64>,
    /// The access waits for CMD_RESUME with this STAG. Else it was aborted.
    pub stalled: Option<u16>,
}

/// What happened.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Kind {
    /// C_BAD_STREAMID: the stream is beyond the table.
    BadStreamId,
    /// F_STE_FETCH: memory returned an error for the stream table, or its first level.
    EntryFetch {
        /// Physical address of the fetch.
        address: u64,
    },
    /// C_BAD_STE: the entry is not valid, or contains what this SMMU does not have.
    BadEntry,
    /// F_TRANSL_FORBIDDEN: the device used a translated address without being allowed to.
    TranslatedForbidden {
        /// Address from the device.
        address: u64,
        /// What the device did.
        access: Access,
    },
    /// C_BAD_SUBSTREAMID: the access has a substream, and the stream has none.
    BadSubstream,
    /// F_CD_FETCH: memory returned an error for the context descriptor.
    DescriptorFetch {
        /// Physical address of the fetch.
        address: u64,
    },
    /// C_BAD_CD: the descriptor is not valid, or contains what this SMMU does not have.
    BadDescriptor,
    /// F_WALK_EABT: memory returned an error for a table.
    WalkAbort {
        /// The access, and the stage whose table it is. Without an intermediate physical address.
        fault: Fault,
        /// Physical address of the fetch.
        address: u64,
    },
    /// F_TRANSLATION: nothing is mapped there.
    Translation(Fault),
    /// F_ADDR_SIZE: an entry of the tables has an address that is too large.
    AddressSize(Fault),
    /// F_ACCESS: the entry's access flag is clear.
    AccessFlag(Fault),
    /// F_PERMISSION: the mapping does not allow the access.
    Permission(Fault),
    /// F_TLB_CONFLICT: two cached translations match. A change lacked an invalidation, or its
    /// break-before-make.
    TlbConflict(Fault),
    /// F_CFG_CONFLICT: two cached stream table entries match.
    ConfigConflict,
    /// Another one: its number, and the record's second word.
    Other(u8, u64),
}

/// An event.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Event {
    /// Stream of the device.
    pub stream: StreamId,
    /// Substream, if the access had one.
    pub substream: Option<u32>,
    /// What happened.
    pub kind: Kind,
}

const fn bit(word: u64, index: u32) -> bool {
    word >> index & 1 != 0
}

const IPA: u64 = (1 << 56) - (1 << 12);
const FETCH: u64 = (1 << 56) - (1 << 3);

const fn access(flags: u64) -> Access {
    match (bit(flags, 35), bit(flags, 34)) {
        (false, _) => Access::Write,
        (true, false) => Access::Read,
        (true, true) => Access::Fetch,
    }
}

impl Fault {
    const fn decode([_, flags, address, last]: [u64; 4]) -> Self {
        let stage = if bit(flags, 39) { Stage::Two } else { Stage::One };
        Self {
            address,
            access: access(flags),
            is_privileged: bit(flags, 33),
            class: match flags >> 40 & 0b11 {
                0b00 => Class::Descriptor,
                0b01 => Class::Walk,
                0b10 => Class::Input,
                _ => Class::Reserved,
            },
            stage,
            ipa: if let Stage::Two = stage { Some(last & IPA) } else { None },
            stalled: if bit(flags, 31) { Some(flags as u16) } else { None },
        }
    }

    /// In an event that has no Stall, and a reason in the place of STAG.
    const fn aborted(self) -> Self {
        Self { stalled: None, ..self }
    }
}

impl Event {
    /// From a record: four words, little-endian in the queue.
    pub const fn decode(record: [u64; 4]) -> Self {
        let [head, flags, input, last] = record;
        let number = head as u8;
        let kind = match number {
            0x02 => Kind::BadStreamId,
            0x03 => Kind::EntryFetch { address: last & FETCH },
            0x04 => Kind::BadEntry,
            0x07 => Kind::TranslatedForbidden { address: input, access: access(flags) },
            0x08 => Kind::BadSubstream,
            0x09 => Kind::DescriptorFetch { address: last & FETCH },
            0x0a => Kind::BadDescriptor,
            0x0b => {
                let fault = Fault { ipa: None, ..Fault::decode(record).aborted() };
                Kind::WalkAbort { fault, address: last & FETCH }
            }
            0x10 => Kind::Translation(Fault::decode(record)),
            0x11 => Kind::AddressSize(Fault::decode(record)),
            0x12 => Kind::AccessFlag(Fault::decode(record)),
            0x13 => Kind::Permission(Fault::decode(record)),
            0x20 => Kind::TlbConflict(Fault::decode(record).aborted()),
            0x21 => Kind::ConfigConflict,
            _ => Kind::Other(number, flags),
        };
        // C_BAD_SUBSTREAMID has no SSV: it always has a substream.
        let substream =
            if bit(head, 11) || number == 0x08 { Some((head >> 12) as u32 & 0xf_ffff) } else { None };
        Self { stream: StreamId((head >> 32) as u32), substream, kind }
    }
}

impl fmt::Display for Access {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Read => "read",
            Self::Fetch => "instruction fetch",
            Self::Write => "write",
        })
    }
}

impl fmt::Display for Fault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let privilege = if self.is_privileged { "privileged " } else { "" };
        write!(f, "{privilege}{} of {:#x}", self.access, self.address)?;
        f.write_str(match self.stage {
            Stage::One => ", stage 1",
            Stage::Two => ", stage 2",
        })?;
        if let Some(ipa) = self.ipa {
            write!(f, " at {ipa:#x}")?;
        }
        match self.class {
            Class::Descriptor => f.write_str(", fetching the context descriptor")?,
            Class::Walk => f.write_str(", walking its table")?,
            Class::Input => {}
            Class::Reserved => f.write_str(", of a reserved class")?,
        }
        match self.stalled {
            Some(tag) => write!(f, ", stalled with tag {tag:#x}"),
            None => Ok(()),
        }
    }
}

impl fmt::Display for Kind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::BadStreamId => f.write_str("not in the stream table (C_BAD_STREAMID)"),
            Self::EntryFetch { address } => {
                write!(f, "error on fetch of the stream table entry at {address:#x} (F_STE_FETCH)")
            }
            Self::BadEntry => f.write_str("bad stream table entry (C_BAD_STE)"),
            Self::TranslatedForbidden { address, access } => {
                write!(f, "translated {access} of {address:#x} is forbidden (F_TRANSL_FORBIDDEN)")
            }
            Self::BadSubstream => f.write_str("has no substreams (C_BAD_SUBSTREAMID)"),
            Self::DescriptorFetch { address } => {
                write!(f, "error on fetch of the context descriptor at {address:#x} (F_CD_FETCH)")
            }
            Self::BadDescriptor => f.write_str("bad context descriptor (C_BAD_CD)"),
            Self::WalkAbort { fault, address } => {
                write!(f, "error on fetch of a table at {address:#x}: {fault} (F_WALK_EABT)")
            }
            Self::Translation(fault) => write!(f, "not mapped: {fault} (F_TRANSLATION)"),
            Self::AddressSize(fault) => write!(f, "address too large: {fault} (F_ADDR_SIZE)"),
            Self::AccessFlag(fault) => write!(f, "access flag clear: {fault} (F_ACCESS)"),
            Self::Permission(fault) => write!(f, "not permitted: {fault} (F_PERMISSION)"),
            Self::TlbConflict(fault) => write!(f, "two translations match: {fault} (F_TLB_CONFLICT)"),
            Self::ConfigConflict => f.write_str("two cached stream table entries match (F_CFG_CONFLICT)"),
            Self::Other(number, flags) => write!(f, "event {number:#04x}, second word {flags:#x}"),
        }
    }
}

impl fmt::Display for Event {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "stream {:#x}", self.stream.0)?;
        if let Some(substream) = self.substream {
            write!(f, ", substream {substream:#x}")?;
        }
        write!(f, ": {}", self.kind)
    }
}
