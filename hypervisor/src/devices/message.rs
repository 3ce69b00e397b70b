//! Interrupt messages: what a local APIC's ICR or an I/O APIC's pin sends, and to whom.

/// How an interrupt is signalled, which decides whether its EOI must reach the I/O APIC.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Trigger {
    /// One message per rising edge.
    Edge,
    /// The I/O APIC waits for the EOI before it sends again.
    Level,
}

/// What a message asks its targets to do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MessageKind {
    /// Accept this vector, in every target.
    Fixed(u8),
    /// Accept this vector, in one of the targets; see [`Destination::arbitrate`].
    Lowest(u8),
    /// Non-maskable interrupt.
    Nmi,
    /// Reset to the state after INIT and wait for a start-up message.
    Init,
    /// Leave the wait for start-up at real-mode address `page << 12`.
    Startup(u8),
}

/// Who a message is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Destination {
    /// The sender.
    SelfOnly,
    /// Everyone.
    All,
    /// Everyone except the sender.
    AllButSelf,
    /// The local APIC with this x2APIC id; [`BROADCAST`] is everyone.
    Physical(u32),
    /// Logical x2APIC mode: cluster number in bits 31:16, one bit per member in 15:0; [`BROADCAST`] is everyone.
    Logical(u32),
}

/// The 32-bit destination that means everyone, physical and logical.
pub const BROADCAST: u32 = u32::MAX;

/// An interrupt message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Message {
    /// What the targets do.
    pub kind: MessageKind,
    /// Who they are.
    pub destination: Destination,
    /// Edge or level, for [`MessageKind::Fixed`] and [`MessageKind::Lowest`].
    pub trigger: Trigger,
}

/// Logical x2APIC id of a local APIC: cluster `id[31:4]` in the high half, bit `id[3:0]` in the low half
/// (SDM vol. 3 section 12.12.10.2, APM vol. 2 section 16.13).
#[must_use]
pub const fn logical_id(apic_id: u32) -> u32 {
    (apic_id >> 4) << 16 | 1 << (apic_id & 0xf)
}

impl Destination {
    /// Whether the local APIC `apic_id` is meant by a message that `sender` sent. Messages that have no
    /// sender among the local APICs are never [`Self::SelfOnly`] or [`Self::AllButSelf`].
    #[must_use]
    pub const fn matches(self, apic_id: u32, sender: u32) -> bool {
        match self {
            Self::SelfOnly => apic_id == sender,
            Self::All | Self::Physical(BROADCAST) | Self::Logical(BROADCAST) => true,
            Self::AllButSelf => apic_id != sender,
            Self::Physical(id) => apic_id == id,
            Self::Logical(mask) => {
                let own = logical_id(apic_id);
                own >> 16 == mask >> 16 && own & mask & 0xffff != 0
            }
        }
    }

    /// The only local APIC that can match, if the form of the destination says so: spares the search
    /// through all of them.
    #[must_use]
    pub const fn single(self, sender: u32) -> Option<u32> {
        match self {
            Self::SelfOnly => Some(sender),
            Self::Physical(id) if id != BROADCAST => Some(id),
            _ => None,
        }
    }

    /// The target that accepts a [`MessageKind::Lowest`] message, out of all local APICs of the VM, or
    /// `None` if none matches. The vector picks it: real priorities belong to other CPUs, and this spreads
    /// vectors evenly while each stays with one vCPU.
    #[must_use]
    pub fn arbitrate<I>(self, vector: u8, apic_ids: I, sender: u32) -> Option<u32>
    where
        I: Iterator<Item = u32> + Clone,
    {
        let matching = apic_ids.filter(|&id| self.matches(id, sender));
        let count = matching.clone().count();
        matching.clone().nth(usize::from(vector).checked_rem(count)?)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn physical_broadcast_reaches_everyone_and_255_is_an_ordinary_id() {
        assert!(Destination::Physical(BROADCAST).matches(7, 0));
        assert!(Destination::Logical(BROADCAST).matches(300, 0));
        assert!(!Destination::Physical(255).matches(7, 0));
        assert!(Destination::Physical(255).matches(255, 0));
        assert_eq!(Destination::Physical(BROADCAST).single(0), None);
        assert_eq!(Destination::Physical(9).single(0), Some(9));
    }

    #[test]
    fn shorthands_are_relative_to_the_sender() {
        assert!(Destination::SelfOnly.matches(3, 3) && !Destination::SelfOnly.matches(4, 3));
        assert!(!Destination::AllButSelf.matches(3, 3) && Destination::AllButSelf.matches(4, 3));
        assert!(Destination::All.matches(3, 3));
        assert_eq!(Destination::SelfOnly.single(5), Some(5));
    }

    #[test]
    fn logical_clusters_hold_sixteen() {
        assert_eq!(logical_id(0), 1);
        assert_eq!(logical_id(15), 0x8000);
        assert_eq!(logical_id(0x12), 0x0001_0004);
        let cluster_1 = Destination::Logical(0x0001_0005);
        let hit: Vec<u32> = (0..64).filter(|&id| cluster_1.matches(id, 0)).collect();
        assert_eq!(hit, [16, 18]);
        assert!(!Destination::Logical(0x0001_0000).matches(16, 0), "an empty member mask names nobody");
    }

    #[test]
    fn lowest_priority_picks_exactly_one_match_and_keeps_to_it() {
        let to = Destination::Logical(0x0000_000e);
        for vector in 0x20..=0xff {
            let target = to.arbitrate(vector, 0..8, 0).unwrap();
            assert!((1..=3).contains(&target));
            assert_eq!(to.arbitrate(vector, 0..8, 5), Some(target));
        }
        let spread: Vec<u32> = (0x30..0x33).filter_map(|v| to.arbitrate(v, 0..8, 0)).collect();
        assert_eq!(spread, [1, 2, 3]);
        assert_eq!(Destination::Physical(9).arbitrate(0x30, 0..8, 0), None);
    }
}
