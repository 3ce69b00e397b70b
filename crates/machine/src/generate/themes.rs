//! The topics of random programs.

use GuestKind::*;

use crate::hw::format::Arch;
use crate::rng::Rng;

/// The topic of a program.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Topic {
    /// A little of everything.
    Anything,
    /// A guest that stores while its dirty log is fetched.
    Logging,
    /// Slots that are added and removed under the guest's accesses.
    Slots,
    /// Nested tables that change their shape.
    Tables,
    /// Many generations of the slots.
    Generations,
    /// Guests without changes by the host.
    Guests,
    /// Guests whose vCPUs halt and meanwhile flush each other's address spaces.
    Halts,
    /// Guests that come and go.
    Lives,
    /// Devices with DMA under changes of all kinds.
    Devices,
    /// Few vCPUs that go from CPU to CPU, under changes.
    Moves,
    /// Guests whose memory is sent, and that go on elsewhere.
    Migrations,
}

impl Topic {
    /// A random topic, some more frequent than others.
    pub(super) fn random(arch: Arch, rng: &mut Rng) -> Self {
        match rng.below(17) {
            0 => Self::Logging,
            1 => Self::Slots,
            2 => Self::Tables,
            3 => Self::Generations,
            4 => Self::Guests,
            // On Arm64 more can go wrong with tables, and there are no hypercalls.
            5 | 6 | 13 | 14 if arch == Arch::Arm64 => Self::Tables,
            5 => Self::Guests,
            6 => Self::Generations,
            13 if arch == Arch::Intel64 => Self::Moves,
            13 | 14 => Self::Halts,
            15 | 16 => Self::Lives,
            _ => Self::Anything,
        }
    }

    /// How frequent each kind of operation is.
    pub(super) const fn theme(self) -> &'static Theme {
        match self {
            Self::Anything => &ANYTHING,
            Self::Logging => &LOGGING,
            Self::Slots => &SLOTS,
            Self::Tables => &TABLES,
            Self::Generations => &GENERATIONS,
            Self::Guests => &GUESTS,
            Self::Halts => &HALTS,
            Self::Lives => &LIVES,
            Self::Devices => &DEVICES,
            Self::Moves => &MOVES,
            Self::Migrations => &MIGRATIONS,
        }
    }
}

/// Kinds of guest operations.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum GuestKind {
    Load,
    Store,
    Direct,
    Map,
    MapLarge,
    Unmap,
    Link,
    LinkMiddle,
    FlushOwn,
    Reload,
    Switch,
    Flush,
    Halt,
    Yield,
    Spin,
    Preempt,
    StartOver,
    Replace,
}

/// Kinds of host operations.
#[derive(Clone, Copy, Debug)]
pub(super) enum HostKind {
    Add,
    Remove,
    Move,
    SetReadOnly,
    Replace,
    StartLog,
    Fetch,
    StopLog,
    Split,
    Collapse,
    Zap,
    Write,
    Toggle,
    Wake,
    Recreate,
    Migrate,
}

/// A topic: how frequent each kind of operation is.
#[derive(Debug)]
pub(super) struct Theme {
    pub(super) guest: &'static [(GuestKind, u32)],
    pub(super) host: &'static [(HostKind, u32)],
}

const ANYTHING: Theme = Theme {
    guest: &[
        (Load, 18),
        (Store, 18),
        (Direct, 12),
        (Map, 10),
        (MapLarge, 3),
        (Unmap, 3),
        (Link, 4),
        (LinkMiddle, 2),
        (FlushOwn, 2),
        (Reload, 1),
        (Switch, 2),
        (Flush, 12),
        (Halt, 2),
        (Yield, 2),
        (Spin, 6),
        (Preempt, 5),
        (StartOver, 1),
        (Replace, 1),
    ],
    host: &[
        (HostKind::Add, 6),
        (HostKind::Remove, 4),
        (HostKind::Move, 2),
        (HostKind::SetReadOnly, 3),
        (HostKind::Replace, 2),
        (HostKind::StartLog, 3),
        (HostKind::Fetch, 6),
        (HostKind::StopLog, 1),
        (HostKind::Split, 2),
        (HostKind::Collapse, 2),
        (HostKind::Zap, 2),
        (HostKind::Write, 2),
        (HostKind::Toggle, 1),
        (HostKind::Wake, 1),
        (HostKind::Recreate, 1),
    ],
};
const LOGGING: Theme = Theme {
    guest: &[(Load, 4), (Store, 20), (Direct, 14), (Map, 2), (Spin, 3), (Preempt, 1), (Flush, 1)],
    host: &[
        (HostKind::StartLog, 2),
        (HostKind::Fetch, 12),
        (HostKind::StopLog, 1),
        (HostKind::SetReadOnly, 1),
        (HostKind::Move, 1),
        (HostKind::Write, 1),
    ],
};
const SLOTS: Theme = Theme {
    guest: &[(Load, 8), (Store, 8), (Direct, 24), (Map, 4), (Spin, 2), (Flush, 1), (Preempt, 1)],
    host: &[
        (HostKind::Add, 8),
        (HostKind::Remove, 7),
        (HostKind::Move, 2),
        (HostKind::Replace, 3),
        (HostKind::Toggle, 2),
    ],
};
const TABLES: Theme = Theme {
    guest: &[(Load, 12), (Store, 12), (Direct, 12), (Map, 3), (Spin, 3), (Preempt, 2)],
    host: &[
        (HostKind::Split, 4),
        (HostKind::Collapse, 4),
        (HostKind::Zap, 10),
        (HostKind::SetReadOnly, 2),
        (HostKind::StartLog, 1),
        (HostKind::StopLog, 1),
    ],
};
const GENERATIONS: Theme = Theme {
    guest: &[(Direct, 4), (Spin, 12), (Halt, 2), (Preempt, 2)],
    host: &[(HostKind::Toggle, 8), (HostKind::Add, 4), (HostKind::Remove, 3)],
};
const HALTS: Theme = Theme {
    guest: &[(Load, 20), (Store, 6), (Map, 10), (Link, 3), (Flush, 14), (Halt, 10), (Switch, 8), (Spin, 2)],
    host: &[(HostKind::Wake, 1)],
};
const LIVES: Theme = Theme {
    guest: &[
        (Load, 20),
        (Store, 10),
        (Direct, 8),
        (Map, 6),
        (Link, 3),
        (FlushOwn, 2),
        (Switch, 3),
        (Flush, 4),
        (Halt, 1),
        (Spin, 2),
        (Preempt, 6),
        (Replace, 3),
    ],
    host: &[
        (HostKind::Recreate, 8),
        (HostKind::Add, 2),
        (HostKind::Remove, 3),
        (HostKind::Replace, 2),
        (HostKind::Zap, 1),
        (HostKind::Wake, 1),
    ],
};
const DEVICES: Theme = Theme {
    guest: &[(Load, 4), (Store, 4), (Direct, 24), (Map, 2), (Spin, 3), (Preempt, 2)],
    host: &[
        (HostKind::Add, 5),
        (HostKind::Remove, 5),
        (HostKind::Move, 1),
        (HostKind::SetReadOnly, 2),
        (HostKind::Replace, 3),
        (HostKind::Split, 2),
        (HostKind::Collapse, 2),
        (HostKind::Zap, 5),
        (HostKind::StartLog, 1),
        (HostKind::Toggle, 1),
        (HostKind::Recreate, 1),
    ],
};
const MOVES: Theme = Theme {
    guest: &[(Load, 12), (Store, 4), (Direct, 16), (Map, 6), (Flush, 8), (Preempt, 16), (Spin, 1)],
    host: &[(HostKind::Add, 4), (HostKind::Remove, 4), (HostKind::Replace, 8), (HostKind::Zap, 2)],
};
const MIGRATIONS: Theme = Theme {
    guest: &[
        (Load, 4),
        (Store, 20),
        (Direct, 14),
        (Map, 2),
        (Flush, 2),
        (Halt, 1),
        (Spin, 3),
        (Preempt, 2),
        (Replace, 1),
    ],
    host: &[
        (HostKind::Migrate, 12),
        (HostKind::Add, 2),
        (HostKind::Remove, 1),
        (HostKind::Replace, 1),
        (HostKind::Write, 1),
    ],
};
const GUESTS: Theme = Theme {
    guest: &[
        (Load, 16),
        (Store, 10),
        (Map, 8),
        (MapLarge, 3),
        (Unmap, 3),
        (Link, 8),
        (LinkMiddle, 3),
        (FlushOwn, 2),
        (Reload, 1),
        (Switch, 5),
        (Flush, 16),
        (Halt, 2),
        (Yield, 1),
        (Spin, 4),
        (Preempt, 3),
        (StartOver, 1),
    ],
    host: &[(HostKind::Wake, 1)],
};
