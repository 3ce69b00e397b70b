//! Which functions must belong to the same guest.
//!
//! An IOMMU controls only the requests that reach it. A request from one function to another may
//! take a shorter way: inside of a device with several functions, or through a switch or a bridge
//! that knows where the address is. And on a conventional bus the IOMMU cannot tell the functions
//! apart. Functions that may reach each other like this form a group. Linux calls the same an
//! IOMMU group.
//!
//! # The rule
//!
//! Access control services (ACS; PCIe, 6.12) tell a port to send all requests on towards the root,
//! to check who sent them, and to send no answers by a shorter way. Two functions are in the same
//! group if a chain of these relations connects them:
//!
//! * Both belong to one device, and neither [isolates] itself.
//! * One is a bridge that does not isolate, and the other is behind it, directly or not.
//!
//! A port of PCI Express isolates if it has ACS, with all services enabled that it has: those that
//! a port or a function lacks are not needed there, because it cannot do what they prevent (PCIe,
//! 6.12.1). A switch's port towards the root that is alone in its device has nothing to prevent,
//! and isolates. A bridge from or to conventional PCI never does: requests from its other side may
//! have the bridge's id, see [`requester_ids`]. Functions of a device with several functions
//! isolate like ports.
//!
//! So a function that is alone in its device, on a root bus, is a group of its own.

#[cfg(test)]
mod tests;

use crate::config::{Address, ConfigSpace};
use crate::physical::{Acs, Header, Node, Port};
use arrayvec::ArrayVec;

/// The services that isolate: source validation, request redirect, completion redirect, upstream
/// forwarding (PCIe, 7.7.8.2).
const ISOLATING: u16 = 1 << 0 | 1 << 2 | 1 << 3 | 1 << 4;

/// Ids with which requests of one function arrive, at most: its own, and one per conventional
/// bridge.
pub const REQUESTERS_MAX: usize = 4;

/// Bridges above a function, at most: each one has a bus of its own, with a higher number.
const DEPTH_MAX: usize = 256;

impl Acs {
    /// Whether it isolates: of the services that do, all that it has are enabled.
    pub const fn isolates(self) -> bool {
        let wanted = self.capability & ISOLATING;
        self.control & wanted == wanted
    }
}

/// Whether the function prevents requests that the IOMMU does not see: a port between functions
/// behind it, a function to others of its device.
pub fn isolates(node: &Node) -> bool {
    match node.port {
        Some(Port::Upstream) if !node.identity.is_multi_function => true,
        Some(Port::ToConventional | Port::FromConventional | Port::Other(_)) | None => false,
        Some(_) => node.acs.is_some_and(Acs::isolates),
    }
}

/// Enables the services that isolate, as far as `node` has them, and updates it.
///
/// To be done for all functions before [`assign`], and again for a port that was reset.
pub fn isolate(space: &impl ConfigSpace, node: &mut Node) {
    let Some(acs) = &mut node.acs else { return };
    let register = acs.offset + 4;
    let wanted = u32::from(acs.capability & ISOLATING) << 16;
    let value = space.read(node.address, register) | wanted;
    space.write(node.address, register, value);
    acs.control = (space.read(node.address, register) >> 16) as u16;
}

/// Puts the nodes of a whole [`walk`](crate::physical::walk()) into groups: sets
/// [`Node::group`] of each to the lowest address in its group.
///
/// It takes time with the square of their number, and more only where bridges are nested.
pub fn assign(nodes: &mut [Node]) {
    for node in &mut *nodes {
        node.group = node.address;
    }
    for index in 0..nodes.len() {
        let node = nodes[index];
        if !isolates(&node) {
            for other in 0..index {
                if nodes[other].address.is_same_device(node.address) && !isolates(&nodes[other]) {
                    unite(nodes, nodes[other].group, nodes[index].group);
                }
            }
        }
        let above: ArrayVec<Address, DEPTH_MAX> = bridges(nodes, node.address)
            .filter(|bridge| !isolates(bridge))
            .map(|bridge| bridge.group)
            .collect();
        for group in above {
            unite(nodes, group, nodes[index].group);
        }
    }
}

/// Makes one group of the groups of two nodes, by their indices: the caller knows a further reason,
/// such as an alias in the IVRS of AMD-Vi.
pub fn join(nodes: &mut [Node], one: usize, other: usize) {
    let group = |index: usize| nodes.get(index).map(|node| node.group);
    if let Some((one, other)) = group(one).zip(group(other)) {
        unite(nodes, one, other);
    }
}

/// Makes one group of two.
fn unite(nodes: &mut [Node], one: Address, other: Address) {
    let (kept, gone) = (one.min(other), one.max(other));
    if kept != gone {
        nodes.iter_mut().filter(|node| node.group == gone).for_each(|node| node.group = kept);
    }
}

/// The functions that belong to the group of `address`, bridges included.
pub fn members(nodes: &[Node], address: Address) -> impl Iterator<Item = &Node> {
    let group = find(nodes, address).map(|node| node.group);
    nodes.iter().filter(move |node| Some(node.group) == group)
}

/// The functions that one guest must own together if it owns `address`: the group without bridges,
/// which the hypervisor keeps.
pub fn partners(nodes: &[Node], address: Address) -> impl Iterator<Item = &Node> {
    members(nodes, address).filter(|node| node.identity.header == Header::Endpoint)
}

/// The ids with which requests of the function reach the IOMMU; the first is its own.
///
/// A bridge from PCI Express to conventional PCI may put its own id in place of another's: its
/// secondary bus, with device and function 0 (PCI Express to PCI/PCI-X Bridge Specification 1.0,
/// 2.3). A conventional bridge takes requests over under the id of its function. The caller gives
/// all of these ids the same translations. Firmware may name further ones (aliases in the IVRS of
/// AMD-Vi): [`join`].
pub fn requester_ids(nodes: &[Node], address: Address) -> ArrayVec<u16, REQUESTERS_MAX> {
    let mut ids = ArrayVec::new();
    ids.push(address.id());
    for bridge in bridges(nodes, address) {
        let id = match (bridge.port, bridge.buses) {
            (Some(Port::ToConventional), Some(buses)) => u16::from(buses.secondary) << 8,
            (None | Some(Port::FromConventional), _) => bridge.address.id(),
            _ => continue,
        };
        if ids.is_full() {
            // The bridge nearest to the root takes over from those before.
            ids.pop();
        }
        ids.push(id);
    }
    ids
}

/// The node of the function at `address`.
pub fn find(nodes: &[Node], address: Address) -> Option<&Node> {
    nodes.iter().find(|node| node.address == address)
}

/// The bridges above a function, the nearest first.
fn bridges(nodes: &[Node], address: Address) -> impl Iterator<Item = &Node> {
    let above = move |node: &Node| find(nodes, node.above?);
    core::iter::successors(find(nodes, address).and_then(above), move |node| above(node)).take(DEPTH_MAX)
}
