//! Devices with DMA, and the virtual machines that have them.

use coherence::DeviceTlbs;
use iommu::{DeviceId, DomainId, Stuck};
use paging::Invalidation;
use stay::iommu::mirror::Slots;
use stay::iommu::{Device, Domain};

use super::mirror::{Awaited, GuestMirror};
use super::ring::Ring;
use crate::bug::Bug;
use crate::hw::dma::Dma;
use crate::hw::format::Arch;
use crate::hw::iommu::DeviceEntry;
use crate::hw::walk::Fault;
use crate::layout::{AREAS, PAGE_SIZE, PAGES, area};
use crate::machine::AbstractMachine;
use crate::program::{Config, GpaPage};

/// The number on the bus of the first device, and the most invalidations that a device queues.
const FIRST_ID: u16 = 8;
const QUEUE_DEPTH: u8 = 4;
/// The domain of the first virtual machine.
const FIRST_DOMAIN: u16 = 1;
/// Two devices at most.
type Devices = arrayvec::ArrayVec<Device, 2>;

/// The numbers on the bus of all devices, and whether each has ATS.
pub(crate) fn all(config: &Config) -> impl Iterator<Item = (u16, bool)> {
    let config = *config;
    (0..config.vms).flat_map(move |vm| config.dma.of(vm)).map(move |place| numbered(&config, place))
}

fn numbered(config: &Config, place: usize) -> (u16, bool) {
    // Streams of an SMMU are given no ATS.
    let has_ats = config.arch == Arch::Amd64 && config.dma.ats >> place & 1 != 0;
    (FIRST_ID + place as u16, has_ats)
}

/// The devices of one virtual machine, as a flush sees them.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Behind<'m> {
    pub(super) machine: &'m AbstractMachine,
    /// `None` if there are no devices.
    ring: Option<&'m Ring<'m>>,
    vm: usize,
}

impl<'m> Behind<'m> {
    /// Those of this machine's virtual machine.
    pub(crate) fn new(machine: &'m AbstractMachine, ring: &'m Ring<'m>, vm: usize) -> Self {
        let has_devices = !machine.config.dma.of(vm).is_empty();
        Self { machine, ring: has_devices.then_some(ring), vm }
    }

    pub(crate) fn has_devices(&self) -> bool {
        self.ring.is_some()
    }

    fn devices(&self) -> Devices {
        let config = &self.machine.config;
        let device = |place| {
            let (id, has_ats) = numbered(config, place);
            Device { id: DeviceId(id), ats: has_ats.then_some(QUEUE_DEPTH) }
        };
        config.dma.of(self.vm).map(device).collect()
    }

    fn domain(devices: &Devices, vm: usize) -> Domain<'_> {
        Domain { id: DomainId(FIRST_DOMAIN + vm as u16), devices }
    }

    /// A new guest gets the devices.
    pub(super) fn attach(&self, root: u64) {
        let Some(ring) = self.ring else { return };
        self.machine.dma_roots[self.vm].set(Some(root));
        let entry = DeviceEntry { domain: FIRST_DOMAIN + self.vm as u16, root };
        self.machine.note(|| format!("machine {} gets its devices", self.vm));
        let devices = self.devices();
        let domain = Self::domain(&devices, self.vm);
        self.demand(ring.attach(&domain, self.machine.config.dma.of(self.vm), entry));
    }

    /// A guest's devices are taken away.
    pub(super) fn detach(&self) {
        let Some(ring) = self.ring else { return };
        self.machine.note(|| format!("the devices of machine {} are taken away", self.vm));
        let devices = self.devices();
        let domain = Self::domain(&devices, self.vm);
        self.demand(ring.detach(&domain, self.machine.config.dma.of(self.vm)));
        self.machine.dma_roots[self.vm].set(None);
    }

    fn demand(&self, result: Result<(), Stuck>) {
        self.machine.demand(result.map_err(|stuck| format!("G5: {stuck}")));
    }
}

/// Looks up the slots of a virtual machine.
type LookUp<'a> = &'a dyn Fn(&mut Slots);

/// The devices of a virtual machine, and what they have to drop.
pub(crate) struct DeviceFlush<'a, 'm> {
    behind: Behind<'m>,
    /// `None` for a mistake: they are left out.
    invalidation: Option<Invalidation<'a>>,
    /// The tables that they have for themselves, and the slots which these follow.
    mirror: Option<(GuestMirror<'m>, LookUp<'a>)>,
}

impl<'a, 'm> DeviceFlush<'a, 'm> {
    pub(super) fn new(
        behind: Behind<'m>,
        invalidation: Option<Invalidation<'a>>,
        mirror: Option<GuestMirror<'m>>,
        look_up: LookUp<'a>,
    ) -> Self {
        Self { behind, invalidation, mirror: mirror.map(|mirror| (mirror, look_up)) }
    }

    /// Has the devices drop it, and waits for that.
    pub(super) fn tell(&self) {
        self.behind.demand(self.begin().and_then(|begun| self.finish(begun)));
    }
}

// SAFETY: the commands name all that `invalidation` does, or all that is not in the mirror any
// more, and the IOMMU of the model executes them. A violation is detected and ends the run.
unsafe impl DeviceTlbs for DeviceFlush<'_, '_> {
    type Begun = Awaited;
    type Error = Stuck;

    fn begin(&self) -> Result<Awaited, Stuck> {
        let Behind { machine, ring, vm } = self.behind;
        let ring = ring.filter(|_| !machine.has(Bug::DevicesNotTold));
        let (Some(ring), Some(invalidation)) = (ring, self.invalidation) else { return Ok(None) };
        let devices = self.behind.devices();
        let domain = Behind::domain(&devices, vm);
        match &self.mirror {
            Some((mirror, look_up)) => mirror.follow(look_up, |stale| ring.begin(&domain, stale)),
            None => Ok(Some((ring.begin(&domain, invalidation)?, 0))),
        }
    }

    fn finish(&self, awaited: Awaited) -> Result<(), Stuck> {
        let Behind { machine, ring, vm } = self.behind;
        let (Some(ring), Some((begun, time))) = (ring, awaited) else { return Ok(()) };
        ring.finish(begun)?;
        machine.oracle.borrow_mut().promise_devices(vm, time);
        Ok(())
    }
}

/// The actor of a device: does DMA at addresses of its machine, without end.
pub(crate) fn run_device(machine: &AbstractMachine, vm: usize, place: usize) {
    while machine.is_busy() {
        machine.give_way();
        let GpaPage { area: number, page } = match machine.below(3) {
            0 => GpaPage { area: machine.below(AREAS), page: machine.below(PAGES.len()) },
            1 => GpaPage { page: machine.below(PAGES.len()), ..machine.config.dma.at },
            _ => machine.config.dma.at,
        };
        let gpa = area(number) + PAGES[page] * PAGE_SIZE;
        let is_store = machine.below(2) == 0;
        let done = {
            let mut hw = machine.hw.borrow_mut();
            let value = is_store.then(|| hw.memory.now());
            hw.dma(place, gpa, value)
        };
        let result = match done {
            Ok(dma) => {
                note(machine, place, gpa, is_store, &dma);
                check(machine, vm, &dma)
            }
            Err(Fault::Forbidden(what)) => Err(what),
            // The hypervisor would be told.
            Err(Fault::Guest | Fault::Nested { .. } | Fault::Unknown) => Ok(()),
        };
        machine.demand(result.map_err(|what| format!("device {place} of machine {vm}: {what}")));
    }
}

fn note(machine: &AbstractMachine, place: usize, gpa: u64, is_store: bool, dma: &Dma) {
    machine.note(|| {
        let name = machine.hw.borrow().memory.name(dma.nested.place.pa);
        let verb = if is_store { "stores to" } else { "loads" };
        format!("device {place} {verb} {gpa:#x}: {name} ({:?}, of {})", dma.nested.level, dma.nested.time)
    });
}

/// Checks the access that was just done against the guarantees.
fn check(machine: &AbstractMachine, vm: usize, dma: &Dma) -> Result<(), String> {
    match machine.dma_roots[vm].get() {
        None => return Err("it translates for the guest that was here before".into()),
        Some(root) if root != dma.root => return Err("a translation of another virtual machine".into()),
        Some(_) => {}
    }
    let hw = machine.hw.borrow();
    // All entries are nested ones, for which it does not matter who translates by them.
    machine.oracle.borrow().check(&hw.memory, vm, 0, 0, &hw.steps)
}
