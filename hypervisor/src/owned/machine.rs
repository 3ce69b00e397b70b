//! All functions and IOMMUs of the machine, and who owns what.

use alloc::vec::Vec;
use hostlink::name::Name;
use iommu::{DeviceId, DomainId};
use pci::physical::{Header, Node, Unusable, walk};
use pci::reset::Method;
use pci::{Address, ConfigSpace, Physical, group, reset};
use spin::Mutex;
use stay::iommu::Device;

use super::faults::Faults;
use super::platform::{Iommu, Platform};
use crate::vm::GUEST;
use crate::vm::refused::{FUNCTIONS_MAX, Refused};

/// The machine's PCI, as far as only the machine can do it.
pub trait Bus: ConfigSpace + Sync {
    /// Reads 1, 2, 4 or 8 bytes at a host physical address of a function's registers.
    fn load(&self, address: u64, size: u8) -> u64;
    /// Writes them.
    fn store(&self, address: u64, size: u8, value: u64);
    /// Microseconds, of a clock that does not go backwards.
    fn now_us(&self) -> u64;
}

/// Guests that may own functions at the same time: their domains are 1 to this.
pub const DOMAINS_MAX: usize = 64;

/// The machine's functions and IOMMUs.
pub struct MachineDevices<P: Platform> {
    pub(crate) bus: &'static dyn Bus,
    nodes: Vec<Node>,
    iommus: Vec<P::Iommu>,
    /// The functions of the IOMMUs themselves, and others of the hypervisor's.
    own: Vec<DeviceId>,
    /// Those that firmware goes on using, from the first to the last.
    firmwares: Vec<(DeviceId, DeviceId)>,
    owners: Mutex<Owners>,
    /// Where interrupts go.
    pub(crate) routes: P::Routes,
}

#[derive(Default)]
struct Owners {
    functions: Vec<Ownership>,
    /// Functions that were returned and do not answer.
    lost: Vec<Address>,
    /// Domains in use: number 1 is bit 0.
    domains: u64,
}

/// Who owns a function.
struct Ownership {
    at: Address,
    known: Known,
    guest: Name,
    faults: Faults,
}

/// What an IOMMU tells requests of functions apart by: its index, and the id there.
pub(super) type Known = (usize, DeviceId);

/// A function that a guest has been given.
pub struct Given {
    /// What it is.
    pub physical: Physical,
    /// How it is reset.
    pub method: Method,
    /// Its IOMMU.
    pub iommu: usize,
    /// The id by which that knows it.
    pub device: Device,
}

impl Given {
    const fn known(&self) -> Known {
        (self.iommu, self.device.id)
    }

    /// Host physical address of a BAR.
    pub(crate) fn bar(&self, number: u8) -> Option<u64> {
        let bar = (*self.physical.bars.get(usize::from(number))?)?;
        bar.is_memory().then_some(bar.address)
    }
}

/// All functions on the buses from 0 on.
pub fn nodes(bus: &dyn Bus) -> Vec<Node> {
    let mut nodes = Vec::new();
    if walk(&bus, &[0], |node| nodes.push(node)).is_err() {
        log::warn!("some PCI bridges have wrong bus numbers: what is behind them is left alone");
    }
    nodes
}

/// How many buses there are for these functions, from bus 0 on.
pub fn buses(nodes: &[Node]) -> u16 {
    nodes.iter().map(|node| u16::from(node.address.bus()) + 1).max().unwrap_or(1)
}

/// The id with which requests of a function leave the buses.
fn requester(nodes: &[Node], address: Address) -> DeviceId {
    DeviceId(group::requester_ids(nodes, address).last().copied().unwrap_or(address.id()))
}

/// What requests with this id are known by; `None` if no IOMMU sees them.
fn known<I>(iommus: &[impl Iommu<I>], requester: DeviceId) -> Option<Known> {
    iommus.iter().enumerate().find_map(|(index, iommu)| Some((index, iommu.requester(requester)?)))
}

/// Functions that an IOMMU knows by one id, for firmware says so, are one group.
fn join_aliases<I>(nodes: &mut [Node], iommus: &[impl Iommu<I>]) {
    let all: Vec<_> = nodes.iter().map(|node| known(iommus, requester(nodes, node.address))).collect();
    for (index, one) in all.iter().enumerate() {
        if let Some(other) = all.iter().take(index).position(|other| one.is_some() && other == one) {
            group::join(nodes, other, index);
        }
    }
}

impl<P: Platform> MachineDevices<P> {
    /// All [functions](nodes) of the bus. `own` are the ids of the IOMMUs, which are in operation.
    pub fn new(
        bus: &'static dyn Bus,
        mut nodes: Vec<Node>,
        iommus: Vec<P::Iommu>,
        own: Vec<DeviceId>,
        routes: P::Routes,
    ) -> Self {
        nodes.iter_mut().for_each(|node| group::isolate(&bus, node));
        group::assign(&mut nodes);
        join_aliases(&mut nodes, &iommus);
        for node in &nodes {
            log::info!("PCI {} {} (group {})", node.address, node.identity.kind(), node.group);
        }
        Self { bus, nodes, iommus, own, firmwares: Vec::new(), owners: Mutex::default(), routes }
    }

    /// The same, without devices that firmware still uses, from the first to the last of each pair.
    pub fn without(self, firmwares: Vec<(DeviceId, DeviceId)>) -> Self {
        Self { firmwares, ..self }
    }

    /// How many functions there are that guests may own, at most.
    pub(crate) fn function_count(&self) -> usize {
        self.nodes.iter().filter(|node| node.identity.header == Header::Endpoint).count()
    }

    pub(crate) fn iommu(&self, index: usize) -> Option<&P::Iommu> {
        self.iommus.get(index)
    }

    /// Enables the services again that isolate a function, which a reset switches off. Whether they
    /// do as when groups were made.
    pub(super) fn isolate(&self, address: Address) -> bool {
        let Some(mut node) = group::find(&self.nodes, address).copied() else { return true };
        let was_isolated = group::isolates(&node);
        group::isolate(&self.bus, &mut node);
        let is_lost = was_isolated && !group::isolates(&node);
        if is_lost {
            log::error!(target: GUEST, "{address} can no more be isolated");
        }
        !is_lost
    }

    /// Gives a guest the functions of `names`, addresses or kinds between spaces, and a domain.
    pub(super) fn give(&self, names: &'static str, guest: Name) -> Result<(Vec<Given>, DomainId), Refused> {
        let mut owners = self.owners.lock();
        let mut found = Vec::<Address>::new();
        for name in names.split_ascii_whitespace() {
            let address = self.find(name, &found, &owners).ok_or(Refused::Unknown(name))?;
            if found.contains(&address) {
                return Err(Refused::Twice(address));
            }
            if found.len() == FUNCTIONS_MAX {
                return Err(Refused::TooMany);
            }
            found.push(address);
        }
        let given = found
            .iter()
            .map(|&address| self.check(address, &found, &owners))
            .collect::<Result<Vec<_>, _>>()?;
        // An id has one root and one interrupt table.
        let owned = || owners.functions.iter().map(|owned| (owned.at, owned.known));
        for (index, one) in given.iter().enumerate() {
            let before = given.iter().take(index).map(|other| (other.physical.address, other.known()));
            if let Some((other, _)) = owned().chain(before).find(|(_, known)| *known == one.known()) {
                return Err(Refused::SameId(other, one.physical.address));
            }
        }
        let domain =
            (0..DOMAINS_MAX).find(|domain| owners.domains >> domain & 1 == 0).ok_or(Refused::NoDomain)?;
        owners.domains |= 1 << domain;
        owners.functions.extend(given.iter().map(|given| Ownership {
            at: given.physical.address,
            known: given.known(),
            guest,
            faults: Faults::default(),
        }));
        Ok((given, DomainId(domain as u16 + 1)))
    }

    /// The guest has returned its functions, which are blocked and reset, and its domain. Nobody
    /// gets the `lost` ones any more.
    pub(super) fn take_back(&self, guest: Name, domain: DomainId, lost: impl IntoIterator<Item = Address>) {
        let mut owners = self.owners.lock();
        owners.lost.extend(lost);
        owners.functions.retain(|owned| owned.guest != guest);
        owners.domains &= !(1 << domain.0.wrapping_sub(1));
    }

    /// The function of an address, or the first free one of a kind.
    fn find(&self, name: &str, but: &[Address], owners: &Owners) -> Option<Address> {
        if let Ok(address) = name.parse() {
            return group::find(&self.nodes, address).map(|node| node.address);
        }
        let is_free = |at: Address| {
            let is_owned = owners.functions.iter().any(|owned| owned.at == at);
            !is_owned && !but.contains(&at) && !owners.lost.contains(&at)
        };
        let node = self.nodes.iter().find(|node| node.identity.kind() == name && is_free(node.address));
        node.map(|node| node.address)
    }

    fn check(&self, address: Address, all: &[Address], owners: &Owners) -> Result<Given, Refused> {
        if owners.functions.iter().any(|owned| owned.at == address) {
            return Err(Refused::Taken(address));
        }
        if owners.lost.contains(&address) {
            return Err(Refused::Lost(address));
        }
        let node = group::find(&self.nodes, address).ok_or(Refused::NotForGuests(address))?;
        let is_endpoint = node.identity.header == Header::Endpoint;
        if !is_endpoint || node.identity.is_bridge() || self.own.contains(&DeviceId(address.id())) {
            return Err(Refused::NotForGuests(address));
        }
        if let Some(other) = group::partners(&self.nodes, address)
            .map(|other| other.address)
            .find(|other| !all.contains(other))
        {
            return Err(Refused::Group(address, other));
        }
        let requester = requester(&self.nodes, address);
        let ids = [DeviceId(address.id()), requester];
        if self.firmwares.iter().any(|(first, last)| ids.iter().any(|id| (first..=last).contains(&id))) {
            return Err(Refused::Firmware(address));
        }
        let (iommu, id) = known(&self.iommus, requester).ok_or(Refused::NoIommu(address))?;
        if self.iommu(iommu).is_some_and(|iommu| iommu.is_machines_own(id)) {
            return Err(Refused::NotForGuests(address));
        }
        let physical = Physical::read(&self.bus, address).map_err(|why| match why {
            Unusable::Absent | Unusable::NoEndpoint => Refused::NotForGuests(address),
        })?;
        let method = reset::method(&physical, &self.nodes).ok_or(Refused::NoReset(address))?;
        if physical.bars.iter().flatten().any(|bar| bar.is_memory() && bar.address == 0) {
            return Err(Refused::NoRegisters(address));
        }
        let mut neighbours = owners.functions.iter().map(|owned| owned.at);
        P::check(self, &physical, &mut neighbours)?;
        // Translations by the device itself are left off: nothing enables ATS.
        Ok(Given { physical, method, iommu, device: Device { id, ats: None } })
    }

    /// The guest whose function the IOMMU of this index knows by this id.
    pub fn owner_of(&self, iommu: usize, device: DeviceId) -> Option<Name> {
        let owners = self.owners.lock();
        owners.functions.iter().find(|owned| owned.known == (iommu, device)).map(|owned| owned.guest)
    }

    /// The IOMMUs in the order of their indices.
    pub(crate) fn iommus(&self) -> impl Iterator<Item = &P::Iommu> {
        self.iommus.iter()
    }

    /// Acts on the function that an IOMMU knows like this: its address, its guest, its faults.
    pub(super) fn with_owned<R>(
        &self,
        known: Known,
        act: impl FnOnce(Address, Name, &mut Faults) -> R,
    ) -> Option<R> {
        let mut owners = self.owners.lock();
        let owned = owners.functions.iter_mut().find(|owned| owned.known == known)?;
        Some(act(owned.at, owned.guest, &mut owned.faults))
    }

    /// Whether a function has caused too many faults since its guest was last reset.
    pub(super) fn is_silent(&self, at: Address) -> bool {
        self.owners.lock().functions.iter().any(|owned| owned.at == at && owned.faults.is_silent)
    }

    /// The functions of a guest are reset: what they have caused is forgotten.
    pub(super) fn forget_faults(&self, guest: Name) {
        let mut owners = self.owners.lock();
        let of_guest = owners.functions.iter_mut().filter(|owned| owned.guest == guest);
        of_guest.for_each(|owned| owned.faults = Faults::default());
    }
}
