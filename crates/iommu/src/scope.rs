//! Which devices are behind an IOMMU, whoever has made it.

use crate::DeviceId;

/// Devices behind an IOMMU.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Scope {
    /// Those from the first to the last.
    Devices {
        /// The first.
        first: DeviceId,
        /// The last.
        last: DeviceId,
        /// The id with which their requests arrive, if it is not their own.
        alias: Option<DeviceId>,
    },
    /// Those from the first to the last are behind another IOMMU.
    Elsewhere {
        /// The first.
        first: DeviceId,
        /// The last.
        last: DeviceId,
    },
    /// An I/O APIC: its interrupts arrive with this id.
    IoApic {
        /// The id.
        device: DeviceId,
        /// Its number in the list of processors and interrupt controllers (MADT).
        number: u8,
    },
    /// A timer (HPET): its interrupts arrive with this id.
    Hpet {
        /// The id.
        device: DeviceId,
    },
}

impl Scope {
    /// The first and the last device, of devices.
    #[must_use]
    pub const fn range(self) -> Option<(DeviceId, DeviceId)> {
        match self {
            Self::Devices { first, last, .. } => Some((first, last)),
            _ => None,
        }
    }
}

/// The id with which requests of a device reach the IOMMU with these scopes; `None` if it is not
/// behind it.
#[must_use]
pub fn requester(scopes: impl IntoIterator<Item = Scope>, device: DeviceId) -> Option<DeviceId> {
    scopes.into_iter().fold(None, |found, scope| match scope {
        // An entry for one device counts more than those for ranges, which come first.
        Scope::Devices { first, last, alias } if (first..=last).contains(&device) => {
            Some(alias.unwrap_or(device))
        }
        Scope::Elsewhere { first, last } if (first..=last).contains(&device) => None,
        _ => found,
    })
}

/// Whether interrupts of the machine's I/O APICs or timers arrive with this id.
#[must_use]
pub fn is_machines_own(scopes: impl IntoIterator<Item = Scope>, id: DeviceId) -> bool {
    scopes.into_iter().any(|scope| match scope {
        Scope::IoApic { device, .. } | Scope::Hpet { device } => id == device,
        Scope::Devices { .. } | Scope::Elsewhere { .. } => false,
    })
}
