//! The walk of all buses, through bridges.

use super::capability::{Acs, Capabilities, Port};
use super::identity::{Header, Identity};
use crate::config::{Address, ConfigSpace, register};

/// A bus that the walk visits.
#[derive(Clone, Copy)]
struct Bus {
    /// The bridge to it.
    above: Option<Address>,
    /// Whether only device 0 can be there.
    is_link: bool,
}

/// The buses behind a bridge.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Buses {
    /// The bus directly behind it.
    pub secondary: u8,
    /// The last bus behind it.
    pub subordinate: u8,
}

/// A function in the tree of buses.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Node {
    /// Where it is.
    pub address: Address,
    /// What it is.
    pub identity: Identity,
    /// The bridge to its bus; none on a root bus.
    pub above: Option<Address>,
    /// What it is in PCI Express; none if it has no such capability.
    pub port: Option<Port>,
    /// Its access control services.
    pub acs: Option<Acs>,
    /// The buses behind it, if it is a bridge.
    pub buses: Option<Buses>,
    /// The group: the lowest address in it. It is the function itself until
    /// [`group::assign`](crate::group::assign).
    pub group: Address,
}

/// A bridge whose buses were not visited, because its numbers are wrong: its secondary bus is not
/// above its own, or another bridge leads to it, or its last bus is below its first.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Unvisited(pub Address);

/// Finds all functions from the buses `roots` on, in the order of their addresses, and gives each
/// one to `visit`. A bridge comes before what is behind it, because its bus has a lower number.
///
/// Only reads. Each bus is visited once, so at most 65536 functions are looked for. Of a device,
/// the functions from 1 on are looked for if its function 0 says so (PCI, 6.2.1). Behind a port
/// of PCI Express only device 0 is looked for (PCIe, 7.3.1). Functions above 7 (ARI) are not
/// found. Nothing is behind a bridge that nobody has given a bus.
///
/// # Errors
///
/// The last bridge whose buses could not be visited. All others were.
pub fn walk(space: &impl ConfigSpace, roots: &[u8], mut visit: impl FnMut(Node)) -> Result<(), Unvisited> {
    let mut buses = [None; 256];
    for &root in roots {
        buses[usize::from(root)] = Some(Bus { above: None, is_link: false });
    }
    let mut result = Ok(());
    for bus in 0..=u8::MAX {
        let Some(Bus { above, is_link }) = buses[usize::from(bus)] else { continue };
        functions(space, bus, is_link, &mut |address, identity| {
            let node = node(space, address, identity, above);
            visit(node);
            let Some(behind) = node.buses.filter(|behind| behind.secondary != 0) else { return };
            let found = &mut buses[usize::from(behind.secondary)];
            if behind.secondary > bus && behind.subordinate >= behind.secondary && found.is_none() {
                let is_link = node.port.is_some_and(Port::is_downstream);
                *found = Some(Bus { above: Some(address), is_link });
            } else {
                result = Err(Unvisited(address));
            }
        });
    }
    result
}

/// Finds the functions on one bus.
fn functions(space: &impl ConfigSpace, bus: u8, is_link: bool, found: &mut impl FnMut(Address, Identity)) {
    for device in 0..if is_link { 1 } else { 32 } {
        let mut count = 1;
        let mut function = 0;
        while function < count {
            if let Some(address) = Address::new(bus, device, function)
                && let Some(identity) = Identity::read(space, address)
            {
                if identity.is_multi_function {
                    count = 8;
                }
                found(address, identity);
            }
            function += 1;
        }
    }
}

/// Describes a function that was found.
fn node(space: &impl ConfigSpace, address: Address, identity: Identity, above: Option<Address>) -> Node {
    let capabilities = match identity.header {
        Header::Endpoint | Header::Bridge => Capabilities::read(space, address),
        Header::Other(_) => Capabilities::default(),
    };
    let buses = (identity.header == Header::Bridge).then(|| {
        let [_, secondary, subordinate, _] = space.read(address, register::BUSES).to_le_bytes();
        Buses { secondary, subordinate }
    });
    let port = capabilities.express.map(|express| express.port);
    Node { address, identity, above, port, acs: capabilities.acs, buses, group: address }
}
