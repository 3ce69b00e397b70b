//! The topics of random programs.

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
    const COUNT: usize = Self::Migrations as usize + 1;

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
}

/// Defines kinds of operations, and how frequent each is: a column for each topic, in their order.
macro_rules! kinds {
    ($($(#[$doc:meta])+ $Kind:ident { $($kind:ident [$($weight:literal),+])+ })+) => {$(
        $(#[$doc])+
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        pub(super) enum $Kind {
            $($kind,)+
        }

        impl $Kind {
            pub(super) const FREQUENCIES: &[(Self, [u32; Topic::COUNT])] =
                &[$((Self::$kind, [$($weight),+]),)+];
        }
    )+};
}

kinds! {
    /// Kinds of guest operations.
    GuestKind {
        Load         [18,  4,  8, 12,  0, 16, 20, 20,  4, 12,  4]
        Store        [18, 20,  8, 12,  0, 10,  6, 10,  4,  4, 20]
        Direct       [12, 14, 24, 12,  4,  0,  0,  8, 24, 16, 14]
        Map          [10,  2,  4,  3,  0,  8, 10,  6,  2,  6,  2]
        MapLarge     [ 3,  0,  0,  0,  0,  3,  0,  0,  0,  0,  0]
        Unmap        [ 3,  0,  0,  0,  0,  3,  0,  0,  0,  0,  0]
        Link         [ 4,  0,  0,  0,  0,  8,  3,  3,  0,  0,  0]
        LinkMiddle   [ 2,  0,  0,  0,  0,  3,  0,  0,  0,  0,  0]
        FlushOwn     [ 2,  0,  0,  0,  0,  2,  0,  2,  0,  0,  0]
        Reload       [ 1,  0,  0,  0,  0,  1,  0,  0,  0,  0,  0]
        Switch       [ 2,  0,  0,  0,  0,  5,  8,  3,  0,  0,  0]
        Flush        [12,  1,  1,  0,  0, 16, 14,  4,  0,  8,  2]
        Halt         [ 2,  0,  0,  0,  2,  2, 10,  1,  0,  0,  1]
        Yield        [ 2,  0,  0,  0,  0,  1,  0,  0,  0,  0,  0]
        Spin         [ 6,  3,  2,  3, 12,  4,  2,  2,  3,  1,  3]
        Preempt      [ 5,  1,  1,  2,  2,  3,  0,  6,  2, 16,  2]
        StartOver    [ 1,  0,  0,  0,  0,  1,  0,  0,  0,  0,  0]
        Replace      [ 1,  0,  0,  0,  0,  0,  0,  3,  0,  0,  1]
    }

    /// Kinds of host operations.
    HostKind {
        Add          [ 6,  0,  8,  0,  4,  0,  0,  2,  5,  4,  2]
        Remove       [ 4,  0,  7,  0,  3,  0,  0,  3,  5,  4,  1]
        Move         [ 2,  1,  2,  0,  0,  0,  0,  0,  1,  0,  0]
        SetReadOnly  [ 3,  1,  0,  2,  0,  0,  0,  0,  2,  0,  0]
        Replace      [ 2,  0,  3,  0,  0,  0,  0,  2,  3,  8,  1]
        StartLog     [ 3,  2,  0,  1,  0,  0,  0,  0,  1,  0,  0]
        Fetch        [ 6, 12,  0,  0,  0,  0,  0,  0,  0,  0,  0]
        StopLog      [ 1,  1,  0,  1,  0,  0,  0,  0,  0,  0,  0]
        Split        [ 2,  0,  0,  4,  0,  0,  0,  0,  2,  0,  0]
        Collapse     [ 2,  0,  0,  4,  0,  0,  0,  0,  2,  0,  0]
        Zap          [ 2,  0,  0, 10,  0,  0,  0,  1,  5,  2,  0]
        Write        [ 2,  1,  0,  0,  0,  0,  0,  0,  0,  0,  1]
        Toggle       [ 1,  0,  2,  0,  8,  0,  0,  0,  1,  0,  0]
        Wake         [ 1,  0,  0,  0,  0,  1,  1,  1,  0,  0,  0]
        Recreate     [ 1,  0,  0,  0,  0,  0,  0,  8,  1,  0,  0]
        Migrate      [ 0,  0,  0,  0,  0,  0,  0,  0,  0,  0, 12]
    }
}
