//! Interrupt messages: sent by a local APIC's ICR or an I/O APIC's pin, with their destinations.

use super::apic_ids::ApicId;

/// How an interrupt is signalled. This decides whether its EOI must reach the I/O APIC.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Trigger {
    /// One message per rising edge.
    Edge,
    /// The I/O APIC waits for the EOI before it sends again.
    Level,
}

/// The action that a message requests of its targets.
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

/// The targets of a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Destination {
    /// The sender.
    SelfOnly,
    /// All local APICs.
    All,
    /// All local APICs except the sender.
    AllButSelf,
    /// The local APIC with this id; [`ApicId::BROADCAST`] is all.
    Physical(ApicId),
    /// Each target interprets it: see [`Logical`]. [`BROADCAST`] is all.
    Logical(u32),
}

/// How a local APIC interprets logical destinations.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Logical {
    /// It is off: it receives no messages at all.
    Off,
    /// x2APIC mode: cluster number in bits 31:16, one bit per member in 15:0.
    X2Apic,
    /// xAPIC mode, 8 bits of destination: one bit per local APIC; its own bits are given.
    Flat(u8),
    /// xAPIC mode, 8 bits of destination: cluster number in bits 7:4, one bit per member in 3:0.
    Cluster(u8),
}

/// The address at which messages find a local APIC.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Address {
    /// Its id.
    pub id: ApicId,
    /// How it interprets logical destinations.
    pub logical: Logical,
}

/// The logical destination that means all: [`ApicId::BROADCAST`] in numbers.
pub const BROADCAST: u32 = ApicId::BROADCAST.0;

/// An interrupt message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Message {
    /// The action of the targets.
    pub kind: MessageKind,
    /// The targets.
    pub destination: Destination,
    /// Edge or level, for [`MessageKind::Fixed`] and [`MessageKind::Lowest`].
    pub trigger: Trigger,
}

impl Message {
    /// The message that a device sends by writing `data` to `address` (APM vol. 2 section 16.11.1).
    /// `None` for an address without local APICs, and for delivery modes without a target here.
    ///
    /// Such a message is an edge, whatever its trigger mode says: no line is behind it.
    pub const fn from_msi(address: u64, data: u32) -> Option<Self> {
        const APICS: u64 = 0xfee;
        if address >> 20 != APICS {
            return None;
        }
        let vector = data as u8;
        let kind = match data >> 8 & 7 {
            0 => MessageKind::Fixed(vector),
            1 => MessageKind::Lowest(vector),
            4 => MessageKind::Nmi,
            5 => MessageKind::Init,
            _ => return None,
        };
        let destination = match (address >> 2 & 1 != 0, (address >> 12) as u8) {
            // Eight bits name the members of cluster 0.
            (true, members) => Destination::Logical(members as u32),
            (false, 0xff) => Destination::Physical(ApicId::BROADCAST),
            (false, id) => Destination::Physical(ApicId(id as u32)),
        };
        Some(Self { kind, destination, trigger: Trigger::Edge })
    }
}

/// Logical x2APIC id of a local APIC: cluster `id[31:4]` in the high half, bit `id[3:0]` in the low
/// half (SDM vol. 3 section 12.12.10.2, APM vol. 2 section 16.13).
pub const fn logical_id(ApicId(id): ApicId) -> u32 {
    (id >> 4) << 16 | 1 << (id & 0xf)
}

impl Logical {
    const OFF: u32 = 3 << 8;
    const X2APIC: u32 = 2 << 8;
    const CLUSTER: u32 = 1 << 8;

    /// Encodes it as a number; 0 is the state of a local APIC after reset.
    pub const fn to_bits(self) -> u32 {
        match self {
            Self::Off => Self::OFF,
            Self::X2Apic => Self::X2APIC,
            Self::Flat(id) => id as u32,
            Self::Cluster(id) => Self::CLUSTER | id as u32,
        }
    }

    /// Decodes it.
    pub const fn from_bits(bits: u32) -> Self {
        let id = bits as u8;
        match bits & !0xff {
            0 => Self::Flat(id),
            Self::CLUSTER => Self::Cluster(id),
            Self::X2APIC => Self::X2Apic,
            _ => Self::Off,
        }
    }

    /// Whether `destination`, which is not [`BROADCAST`], names the local APIC `apic_id`.
    const fn is_in(self, destination: u32, apic_id: ApicId) -> bool {
        // In destinations of 8 bits all ones mean all (SDM vol. 3 section 12.6.2.2).
        match self {
            Self::Off => false,
            Self::X2Apic => {
                let own = logical_id(apic_id);
                own >> 16 == destination >> 16 && own & destination & 0xffff != 0
            }
            Self::Flat(own) => destination == 0xff || destination < 0xff && own as u32 & destination != 0,
            Self::Cluster(own) => {
                let own = own as u32;
                let is_member = own & destination & 0xf != 0;
                destination == 0xff || destination < 0xff && own >> 4 == destination >> 4 && is_member
            }
        }
    }
}

impl Destination {
    /// Whether a message from `sender` is meant for the local APIC at `target`. Messages that were
    /// not sent by a local APIC are never [`Self::SelfOnly`] or [`Self::AllButSelf`].
    pub const fn matches(self, target: Address, sender: ApicId) -> bool {
        if matches!(target.logical, Logical::Off) {
            return false;
        }
        match self {
            Self::SelfOnly => target.id.0 == sender.0,
            Self::All | Self::Physical(ApicId::BROADCAST) | Self::Logical(BROADCAST) => true,
            Self::AllButSelf => target.id.0 != sender.0,
            Self::Physical(id) => target.id.0 == id.0,
            Self::Logical(destination) => target.logical.is_in(destination, target.id),
        }
    }

    /// The only local APIC that can match, if the form of the destination determines it: avoids the
    /// search through all of them.
    pub const fn single(self, sender: ApicId) -> Option<ApicId> {
        match self {
            Self::SelfOnly => Some(sender),
            Self::Physical(id) if id.0 != ApicId::BROADCAST.0 => Some(id),
            _ => None,
        }
    }

    /// The target that accepts a [`MessageKind::Lowest`] message, out of all local APICs of the VM,
    /// or `None` if none matches. The vector selects it: the real priorities belong to other CPUs,
    /// and this spreads vectors evenly while each stays with one vCPU.
    pub fn arbitrate<I>(self, vector: u8, targets: I, sender: ApicId) -> Option<ApicId>
    where
        I: Iterator<Item = Address> + Clone,
    {
        let matching = targets.filter(|&target| self.matches(target, sender));
        let count = matching.clone().count();
        // Local APICs may change mode between the two searches; then there may be no target, as on
        // a bus.
        matching.clone().nth(usize::from(vector).checked_rem(count)?).map(|target| target.id)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const fn x2apic(id: u32) -> Address {
        Address { id: ApicId(id), logical: Logical::X2Apic }
    }

    fn hit(destination: u32, logical: impl Fn(u8) -> Logical) -> Vec<u32> {
        let targets = (0..8).map(|id| Address { id: ApicId(id.into()), logical: logical(id) });
        targets
            .filter(|&target| Destination::Logical(destination).matches(target, ApicId(0)))
            .map(|to| to.id.0)
            .collect()
    }

    #[test]
    fn u26_eight_bits_of_logical_destination_are_flat_or_in_clusters() {
        let flat = |id| Logical::Flat(1_u8 << id);
        let clusters = |id| Logical::Cluster((id / 4) << 4 | 1_u8 << (id % 4));
        assert_eq!(hit(0x05, flat), [0, 2]);
        assert_eq!(hit(0x05, clusters), [0, 2]);
        assert_eq!(hit(0x1a, clusters), [5, 7]);
        assert_eq!(hit(0x20, clusters), []);
        assert_eq!(hit(0, flat), []);
        assert_eq!(hit(0x100, flat), [], "no destination of 8 bits");
        assert_eq!(hit(0x0001_0005, clusters), []);
        for all in [0xff, BROADCAST] {
            assert_eq!((hit(all, flat).len(), hit(all, clusters).len()), (8, 8));
            assert_eq!(hit(all, |_| Logical::Flat(0)).len(), 8, "whatever their own bits are");
        }
        // Eight APICs in x2APIC mode interpret the same destination as members of the first
        // cluster.
        assert_eq!(hit(0x05, |_| Logical::X2Apic), [0, 2]);
    }

    #[test]
    fn u26_nothing_reaches_a_local_apic_that_is_off() {
        let off = Address { id: ApicId(3), logical: Logical::Off };
        for destination in [
            Destination::All,
            Destination::AllButSelf,
            Destination::Physical(ApicId(3)),
            Destination::Physical(ApicId::BROADCAST),
            Destination::Logical(0xff),
            Destination::Logical(BROADCAST),
        ] {
            assert!(!destination.matches(off, ApicId(0)), "{destination:?}");
        }
    }

    #[test]
    fn u26_modes_go_through_numbers() {
        for id in 0..=u8::MAX {
            for logical in [Logical::Flat(id), Logical::Cluster(id), Logical::X2Apic, Logical::Off] {
                assert_eq!(Logical::from_bits(logical.to_bits()), logical);
            }
        }
        assert_eq!(Logical::from_bits(0), Logical::Flat(0));
    }

    #[test]
    fn physical_broadcast_reaches_everyone_and_255_is_an_ordinary_id() {
        assert!(Destination::Physical(ApicId::BROADCAST).matches(x2apic(7), ApicId(0)));
        assert!(Destination::Logical(BROADCAST).matches(x2apic(300), ApicId(0)));
        assert!(!Destination::Physical(ApicId(255)).matches(x2apic(7), ApicId(0)));
        assert!(Destination::Physical(ApicId(255)).matches(x2apic(255), ApicId(0)));
        assert_eq!(Destination::Physical(ApicId::BROADCAST).single(ApicId(0)), None);
        assert_eq!(Destination::Physical(ApicId(9)).single(ApicId(0)), Some(ApicId(9)));
    }

    #[test]
    fn shorthands_are_relative_to_the_sender() {
        assert!(
            Destination::SelfOnly.matches(x2apic(3), ApicId(3))
                && !Destination::SelfOnly.matches(x2apic(4), ApicId(3))
        );
        assert!(
            !Destination::AllButSelf.matches(x2apic(3), ApicId(3))
                && Destination::AllButSelf.matches(x2apic(4), ApicId(3))
        );
        assert!(Destination::All.matches(x2apic(3), ApicId(3)));
        assert_eq!(Destination::SelfOnly.single(ApicId(5)), Some(ApicId(5)));
    }

    #[test]
    fn logical_clusters_hold_sixteen() {
        assert_eq!([0, 15, 0x12].map(|id| logical_id(ApicId(id))), [1, 0x8000, 0x0001_0004]);
        let cluster_1 = Destination::Logical(0x0001_0005);
        let hit: Vec<u32> = (0..64).filter(|&id| cluster_1.matches(x2apic(id), ApicId(0))).collect();
        assert_eq!(hit, [16, 18]);
        assert!(
            !Destination::Logical(0x0001_0000).matches(x2apic(16), ApicId(0)),
            "an empty member mask names nobody"
        );
    }

    #[test]
    fn lowest_priority_picks_exactly_one_match_and_keeps_to_it() {
        let to = Destination::Logical(0x0000_000e);
        for vector in 0x20..=0xff {
            let target = to.arbitrate(vector, (0..8).map(x2apic), ApicId(0)).unwrap();
            assert!((1..=3).contains(&target.0));
            assert_eq!(to.arbitrate(vector, (0..8).map(x2apic), ApicId(5)), Some(target));
        }
        let spread: Vec<_> =
            (0x30..0x33).filter_map(|v| to.arbitrate(v, (0..8).map(x2apic), ApicId(0))).collect();
        assert_eq!(spread, [1, 2, 3].map(ApicId));
        assert_eq!(Destination::Physical(ApicId(9)).arbitrate(0x30, (0..8).map(x2apic), ApicId(0)), None);
    }

    #[test]
    fn messages_of_devices_are_decoded_as_the_bus_has_them() {
        use MessageKind::{Fixed, Init, Lowest, Nmi};
        let physical = |id| Destination::Physical(ApicId(id));
        for (address, data, kind, destination) in [
            (0xfee0_0000, 0x41, Fixed(0x41), physical(0)),
            (0xfee0_5000, 0x41, Fixed(0x41), physical(5)),
            (0xfeef_e000, 0xfe, Fixed(0xfe), physical(0xfe)),
            (0xfeef_f000, 0x41, Fixed(0x41), physical(BROADCAST)),
            (0xfee0_3004, 0x41, Fixed(0x41), Destination::Logical(3)),
            (0xfeef_f004, 0x41, Fixed(0x41), Destination::Logical(0xff)),
            // A hint of redirection means nothing without a logical destination.
            (0xfee0_5008, 0x141, Lowest(0x41), physical(5)),
            (0xfee0_300c, 0x141, Lowest(0x41), Destination::Logical(3)),
            (0xfee0_1000, 0x400, Nmi, physical(1)),
            (0xfee0_1000, 0x500, Init, physical(1)),
            // Level, asserted: an edge all the same. Other bits are reserved.
            (0xfee0_1000, 0xc041, Fixed(0x41), physical(1)),
            (0xfee0_1000, 0xffff_0041, Fixed(0x41), physical(1)),
            (0xfee0_1ff0, 0x41, Fixed(0x41), physical(1)),
        ] {
            let message = Message { kind, destination, trigger: Trigger::Edge };
            assert_eq!(Message::from_msi(address, data), Some(message), "{address:#x}, {data:#x}");
        }
        for (address, data) in [
            (0, 0x41),
            (0xfed0_0000, 0x41),
            (0xfef0_0000, 0x41),
            (0x1_fee0_0000, 0x41),
            (0xfee0_0000, 0x241),
            (0xfee0_0000, 0x341),
            (0xfee0_0000, 0x641),
            (0xfee0_0000, 0x741),
        ] {
            assert_eq!(Message::from_msi(address, data), None, "{address:#x}, {data:#x}");
        }
    }
}
