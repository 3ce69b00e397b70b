//! What goes through a [channel](crate::channel): a header of 16 bytes, and what follows it.
//!
//! | frame | from | argument | what follows |
//! |---|---|---|---|
//! | `Hello` | source | | what must be the same on both sides |
//! | `Slot` | source | guest physical address | a [`MemorySlot`], which is in no other frame |
//! | `Zeros` | source | guest physical address | nothing: so many pages of zeros (`len` counts them) |
//! | `Pages` | source | guest physical address | pages |
//! | `Round` | source | its number | a [`Round`]: all pages that were written before it have been sent |
//! | `Clock` | source | 1 if it pauses | a [`Clock`]: the guest stands still |
//! | `State` | source | a [`Section`] | that state |
//! | `End` | source | number of frames before it | nothing: the guest is complete |
//! | `Go`, `Ready`, `Runs`, `Absent` | | | nothing: the [hand-over](crate::handover) |
//! | `Next`, `Finish`, `Cut` | tool | | nothing: another round; the last one; it is over |
//! | `Slow` | tool | percent | nothing: the guest stands still for that part of the time |
//! | `Failed` | hypervisor | | why, as text |
//!
//! Lengths are in bytes. What follows a header is padded to a multiple of 8 bytes.

use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, TryFromBytes};

use crate::{Flaw, described};

/// Version of the stream: of frames, and of all states in them.
pub const VERSION: u32 = 3;
/// Bytes of a header.
pub const HEADER: usize = 16;
/// Bytes of a page.
pub const PAGE: usize = 4096;
/// More bytes never follow a header.
pub const BODY_MAX: usize = 64 << 10;

/// A header.
#[derive(Clone, Copy, Debug, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct Header {
    kind: u32,
    len: u32,
    /// The argument.
    pub argument: u64,
}

/// The kind of a frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq, TryFromBytes)]
#[repr(u32)]
pub enum Kind {
    /// The beginning.
    Hello = 1,
    /// A slot besides the guest's own memory.
    Slot = 2,
    /// Pages of zeros.
    Zeros = 3,
    /// Pages.
    Pages = 4,
    /// The end of a round.
    Round = 5,
    /// The guest's clock.
    Clock = 6,
    /// The state of a device, or of a vCPU.
    State = 7,
    /// The guest is complete.
    End = 8,
    /// The target may run the guest.
    Go = 16,
    /// The target could run the guest.
    Ready = 17,
    /// The guest runs there.
    Runs = 18,
    /// The guest does not run there, and never will.
    Absent = 19,
    /// Another round.
    Next = 32,
    /// The last round.
    Finish = 33,
    /// The other side is gone, or wants no more.
    Cut = 34,
    /// It cannot go on.
    Failed = 35,
    /// The guest is slowed down: it stands still for so many of a hundred ticks.
    Slow = 36,
}

impl Header {
    /// A header; `len` counts pages for [`Kind::Zeros`], otherwise bytes.
    pub const fn new(kind: Kind, argument: u64, len: u32) -> Self {
        Self { kind: kind as u32, len, argument }
    }

    /// The frame's kind.
    ///
    /// # Errors
    ///
    /// [`Flaw::Value`] if there is no such kind, or more follows than any frame has.
    pub fn kind(&self) -> Result<Kind, Flaw> {
        let kind = Kind::try_read_from_bytes(self.kind.as_bytes())
            .map_err(|_| Flaw::Value("the kind of a frame"))?;
        let is_long = self.len as usize > BODY_MAX && kind != Kind::Zeros;
        let is_torn = kind == Kind::Pages && !(self.len as usize).is_multiple_of(PAGE);
        if is_long || is_torn { Err(Flaw::Value("the length of a frame")) } else { Ok(kind) }
    }

    /// Bytes that follow, without padding; for pages of zeros their number.
    pub const fn len(&self) -> usize {
        self.len as usize
    }

    /// Whether nothing follows.
    pub const fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Bytes that follow, with padding.
    pub const fn body(&self) -> usize {
        if self.kind == Kind::Zeros as u32 { 0 } else { padded(self.len as usize) }
    }
}

/// `len` bytes with their padding.
pub const fn padded(len: usize) -> usize {
    len.next_multiple_of(8)
}

/// Whose state follows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Section {
    /// What all vCPUs share.
    Shared,
    /// A vCPU, by its index.
    Vcpu(u32),
}

impl Section {
    /// As a frame's argument.
    pub fn argument(self) -> u64 {
        match self {
            Self::Shared => 0,
            Self::Vcpu(index) => 1 << 32 | u64::from(index),
        }
    }

    /// The section of an argument.
    pub const fn of(argument: u64) -> Option<Self> {
        match (argument >> 32, argument as u32) {
            (0, 0) => Some(Self::Shared),
            (1, index) => Some(Self::Vcpu(index)),
            _ => None,
        }
    }
}

/// A slot besides the guest's own memory, to which the guest can store.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct MemorySlot {
    /// Its number.
    pub id: u16,
    /// Bytes.
    pub size: u64,
}

described!(MemorySlot: id, size);

/// What a round has sent.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct Round {
    /// Pages that are not zero.
    pub pages: u64,
    /// Pages of zeros.
    pub zeros: u64,
    /// Ticks that it took.
    pub ticks: u64,
    /// Ticks per second.
    pub hz: u64,
}

impl Round {
    /// So many pages more, of zeros or not.
    pub const fn add(&mut self, count: u64, zeros: bool) {
        *if zeros { &mut self.zeros } else { &mut self.pages } += count;
    }
}

described!(Round: pages, zeros, ticks, hz);

/// What the guest's clocks showed when it stood still.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct Clock {
    /// The guest's counter.
    pub ticks: u64,
    /// The guest's date, in nanoseconds since the beginning of 1970.
    pub wall_ns: u64,
    /// When that was: by the counter of the hypervisor's machine in its channel; between two tools,
    /// and in a file, in nanoseconds since 1970. [`Self::NOW`] for whenever the guest goes on.
    pub at: u64,
    /// Ticks per second.
    pub hz: u64,
}

impl Clock {
    /// The guest's counter goes on where it was.
    pub const NOW: u64 = u64::MAX;
}

described!(Clock: ticks, wall_ns, at, hz);

/// Whether a guest may go on with a counter of another rate, as it was told its own: by NTP it
/// corrects 500 ppm, of which its own clock needs a part.
pub const fn is_same_rate(here: u64, there: u64) -> bool {
    const PPM: u64 = 200;
    here.abs_diff(there) <= here / (1_000_000 / PPM)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn m6_headers_are_checked_before_anything_is_read() {
        let known = |code: &u32| Kind::try_read_from_bytes(code.as_bytes()).is_ok();
        assert_eq!((0..100).filter(known).count(), 17);
        assert_eq!(Header::new(Kind::Ready, 7, 0).kind(), Ok(Kind::Ready));
        for code in [0, 9, 15, 20, 31, 37, u32::MAX] {
            let header = Header { kind: code, len: 0, argument: 0 };
            assert_eq!(header.kind(), Err(Flaw::Value("the kind of a frame")), "{code}");
        }
        let max = BODY_MAX as u32;
        for (kind, len, is_right, body) in [
            (Kind::State, 0, true, 0),
            (Kind::State, 9, true, 16),
            (Kind::State, max, true, 65_536),
            (Kind::State, max + 1, false, 65_544),
            (Kind::Pages, 8192, true, 8192),
            (Kind::Pages, 4097, false, 4104),
            (Kind::Pages, max + 4096, false, 69_632),
            (Kind::Zeros, u32::MAX, true, 0),
        ] {
            let header = Header::new(kind, 0, len);
            let expected = if is_right { Ok(kind) } else { Err(Flaw::Value("the length of a frame")) };
            assert_eq!((header.kind(), header.body()), (expected, body), "{kind:?} {len}");
            assert_eq!((header.len(), header.is_empty()), (len as usize, len == 0));
        }
    }

    #[test]
    fn rates_are_the_same_within_200_ppm() {
        for (there, is_same) in
            [(1_000_200, true), (1_000_201, false), (999_800, true), (999_799, false), (1_000_000, true)]
        {
            assert_eq!(is_same_rate(1_000_000, there), is_same, "{there}");
        }
        let mut round = Round::default();
        round.add(3, true);
        round.add(4, false);
        assert_eq!(round, Round { pages: 4, zeros: 3, ..Round::default() });
    }

    #[test]
    fn sections_are_their_arguments() {
        for section in [Section::Shared, Section::Vcpu(0), Section::Vcpu(u32::MAX)] {
            assert_eq!(Section::of(section.argument()), Some(section));
        }
        assert_eq!(Section::Vcpu(7).argument(), 0x1_0000_0007);
        assert_eq!((Section::of(1), Section::of(2 << 32)), (None, None));
    }
}
