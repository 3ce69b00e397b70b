//! Functions of the real machine, as their configuration space describes them.
//!
//! [`walk()`] finds all functions, and only reads. [`Physical::read`] then describes one function
//! completely; it sizes BARs, which must not be done to a device in use.

mod bar;
mod capability;
mod identity;
mod interrupt;
mod placing;
#[cfg(test)]
mod tests;
mod walk;

pub use bar::{Bar, BarKind};
pub use capability::{
    Acs, AdvancedFeatures, Ats, BarPlace, Capabilities, Express, Msi, Msix, Port, Power, VENDOR_WORDS_MAX,
    VENDORS_MAX, Vendor,
};
pub use identity::{Header, Identity};
pub use placing::place;
pub use walk::{Buses, Node, Unvisited, walk};

pub(crate) use bar::flags as bar_flags;
pub(crate) use capability::id as capability_id;

use crate::config::{Address, BAR_COUNT, ConfigSpace};

/// Why a function cannot be described as one that a guest may own.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Unusable {
    /// No function answers at the address.
    Absent,
    /// It is a bridge, or has an unknown header.
    NoEndpoint,
}

/// A function of the real machine.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Physical {
    /// Where it is.
    pub address: Address,
    /// What it is.
    pub identity: Identity,
    /// Its BARs, by their number. The upper half of a BAR of 64 bits is `None`.
    pub bars: [Option<Bar>; BAR_COUNT],
    /// What it can do.
    pub capabilities: Capabilities,
    /// Its interrupt pin: 0 for none, 1 for INTA, to 4.
    pub pin: u8,
}

impl Physical {
    /// Describes the function at `address`.
    ///
    /// Sizes its BARs: they are not decoded for some microseconds, and DMA is off. So the function
    /// must not be in use. Command and BARs are as before afterwards.
    ///
    /// # Errors
    ///
    /// [`Unusable`] if there is no function, or not one with an ordinary header.
    pub fn read(space: &impl ConfigSpace, address: Address) -> Result<Self, Unusable> {
        let identity = Identity::read(space, address).ok_or(Unusable::Absent)?;
        if identity.header != Header::Endpoint {
            return Err(Unusable::NoEndpoint);
        }
        let capabilities = Capabilities::read(space, address);
        let interrupt = space.read(address, crate::config::register::INTERRUPT);
        let pin = match interrupt.to_le_bytes()[1] {
            pin @ 1..=4 => pin,
            _ => 0,
        };
        Ok(Self { address, identity, bars: bar::read_all(space, address), capabilities, pin })
    }
}
