//! Encodings of commands (IHI 0070, chapter 4).
//!
//! | command | 7:0 | 16:12 | 24:20 | 31:12 | 47:32 | 63:32 | 63:48 |
//! |---|---|---|---|---|---|---|---|
//! | CFGI | opcode | | | SubstreamID 0 | | StreamID | |
//! | TLBI by address | opcode | NUM | SCALE | | VMID 0 | | ASID |
//! | SYNC | opcode | | | | | | |
//!
//! | second word | 0 | 4:0 | 5:0 | 9:8 | 11:10 | above |
//! |---|---|---|---|---|---|---|
//! | CFGI | Leaf | Range | | | | |
//! | TLBI by address | Leaf | | | TTL | TG | `Address[63:12]` |
//!
//! A command is complete when a [sync](sync_poll) behind it is. Commands that an SMMU does not have
//! stop its queue with CERROR_ILL; the documentation of each says what it needs.

use coherence::tlbi::{Granule, LeafLevel, level_hint};

use crate::Command;

/// Number of a stream, which the system gives to a device (3.2). At most 32 bits: IDR1.SIDSIZE.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct StreamId(pub u32);

/// Address space identifier, the tag of stage-1 translations (3.17). At most 8 bits unless
/// IDR0.ASID16 is set.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Asid(pub u16);

/// Which cached entries have to go: the bit Leaf.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Depth {
    /// Entries of the last level only: those above it have not changed.
    Leaf,
    /// Entries above the last level too: a table was removed or replaced.
    All,
}

impl Depth {
    const fn field(self) -> u64 {
        match self {
            Self::Leaf => 1,
            Self::All => 0,
        }
    }
}

/// Invalidates a cached stream table entry, and the context descriptors that were fetched through
/// it; with [`Depth::All`] also the descriptor of level 1 that leads to it (4.3.1).
pub const fn cfgi_ste(stream: StreamId, depth: Depth) -> Command {
    Command([0x03 | on_stream(stream), depth.field()])
}

/// Invalidates the `2^(range + 1)` entries of the aligned span around `stream`, and everything that
/// leads to them (4.3.2). `range` is truncated to 0–31.
pub const fn cfgi_ste_range(stream: StreamId, range: u8) -> Command {
    Command([0x04 | on_stream(stream), (range & 31) as u64])
}

/// Invalidates all configuration (4.3.3).
pub const fn cfgi_all() -> Command {
    cfgi_ste_range(StreamId(0), 31)
}

/// Invalidates the cached context descriptor of substream 0, which is the only one (4.3.5).
pub const fn cfgi_cd(stream: StreamId) -> Command {
    Command([0x05 | on_stream(stream), Depth::Leaf.field()])
}

const fn on_stream(StreamId(stream): StreamId) -> u64 {
    (stream as u64) << 32
}

/// The addresses that a TLBI concerns: the fields NUM, SCALE, TG, TTL, Leaf and Address (4.4.1.1).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Span([u64; 2]);

impl Span {
    /// Everything that translates `address`, whatever its granule and level. Bits 11:0 are ignored.
    /// One command is enough for a block.
    pub const fn address(address: u64, depth: Depth) -> Self {
        Self([0, address & PAGE_ADDRESS | depth.field()])
    }

    /// `units << scale` granules from `address` (needs IDR3.RIL). With a `leaf`, only leaves of
    /// that level, and the address is a multiple of their size (P18); without, of the granule. The
    /// range ends with the address space at the latest.
    ///
    /// `scale` is truncated to 0–31, `units` to 1–32. One unit with scale 0 and no hint is
    /// reserved, so it becomes [`Self::address`].
    pub const fn range(
        granule: Granule,
        address: u64,
        scale: u32,
        units: u64,
        leaf: Option<LeafLevel>,
        depth: Depth,
    ) -> Self {
        let num = units.wrapping_sub(1) & (UNITS_MAX - 1);
        let scale = (scale & SCALE_MAX) as u64;
        let ttl = level_hint(granule, leaf);
        if num == 0 && scale == 0 && ttl == 0 {
            return Self::address(address, depth);
        }
        let start = address & PAGE_ADDRESS & !(granule.bytes() - 1);
        let high = start | granule.tg() << TG_SHIFT | ttl << TTL_SHIFT | depth.field();
        Self([num << NUM_SHIFT | scale << SCALE_SHIFT, high])
    }
}

const PAGE_ADDRESS: u64 = !0xfff;
const NUM_SHIFT: u32 = 12;
const SCALE_SHIFT: u32 = 20;
const TTL_SHIFT: u32 = 8;
const TG_SHIFT: u32 = 10;
/// Largest SCALE; with IDR5.DS = 0 the field has 5 bits.
pub(super) const SCALE_MAX: u32 = 31;
/// Largest NUM, plus 1.
pub(super) const UNITS_MAX: u64 = 32;

/// Invalidates the stage-1 translations of an ASID that are not global (4.4.2.2; needs IDR0.S1P).
/// Global ones stay: set nG in the tables. The VMID is 0.
pub const fn tlbi_nh_asid(Asid(asid): Asid) -> Command {
    Command([0x11 | (asid as u64) << 48, 0])
}

/// Invalidates stage-1 translations of an ASID by address, and global ones (4.4.2.4; needs
/// IDR0.S1P).
pub const fn tlbi_nh_va(Asid(asid): Asid, Span([low, high]): Span) -> Command {
    Command([0x12 | (asid as u64) << 48 | low, high])
}

/// Invalidates all translations of the EL2 regime, with and without ASIDs (4.4.2.7; needs
/// IDR0.Hyp).
pub const fn tlbi_el2_all() -> Command {
    Command([0x20, 0])
}

/// Invalidates everything except the EL2 regime (4.4.4.1): for a reset, together with
/// [`tlbi_el2_all`].
pub const fn tlbi_nsnh_all() -> Command {
    Command([0x30, 0])
}

/// Complete when all commands before it are. Tells nobody: whoever waits reads the head, CMDQ_CONS
/// (4.7.3).
pub const fn sync_poll() -> Command {
    Command([0x46, 0])
}

const _: () = {
    assert!(UNITS_MAX == 32 && SCALE_MAX == 31);
    assert!(UNITS_MAX << SCALE_MAX == 1 << 36, "the most that one command covers, in granules");
    assert!(TTL_SHIFT + 2 == TG_SHIFT && TG_SHIFT + 2 == 12);
    assert!(LeafLevel::Two.shift(Granule::Size4K) == 21 && LeafLevel::One.shift(Granule::Size4K) == 30);
    assert!(LeafLevel::Two.shift(Granule::Size16K) == 25 && LeafLevel::Two.shift(Granule::Size64K) == 29);
};
