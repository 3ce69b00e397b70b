//! The command ring of the IOMMU, shared by all virtual machines.

use std::ops::ControlFlow;
use std::rc::Rc;

use iommu::amd::command::completion_wait;
use iommu::smmu::change::Words;
use iommu::smmu::command::sync_poll;
use iommu::smmu::stream::{OutputSize, Reads, Tables};
use iommu::smmu::{Asid, ContextDescriptor, Granule, Setup, StreamEntry};
use iommu::{Command, DomainId, Entry, Port, Queue, Stuck, amd, vtd};
use paging::Arm64Stage1;
use stay::iommu as dma;
use stay::iommu::smmu::{Smmu, Structure, Structures};
use stay::{Mistake, Mistakes};

use crate::hw::format::Arch;
use crate::hw::iommu::{DeviceEntry, Order, amd_vi, smmu, vtd as vtd_hw};
use crate::machine::AbstractMachine;

/// Turns of waiting after which the IOMMU is considered stuck: it does something in most of its
/// turns, and misses some hundred turns of others at most.
const TURNS_MAX: u64 = 20_000;
/// The most that the IOMMU does in a turn.
const STEPS_MAX: usize = 5;
/// Where waits are reported. The address is not used.
const REPORT: u64 = 0x1000;

/// The descriptors of VT-d.
const VTD: vtd::Commands = vtd::Commands { order_max: Some(vtd_hw::ORDER_MAX) };
/// Commands to an SMMU up to which addresses are invalidated one by one.
const COMMANDS_MAX: u32 = 8;

/// The IOMMU's registers, as the software sees them.
#[derive(Debug)]
struct Registers<'m> {
    machine: &'m AbstractMachine,
    mask: u64,
}

impl Mistakes for Registers<'_> {
    fn makes(&self, mistake: Mistake) -> bool {
        self.machine.makes(mistake)
    }
}

impl Port for Registers<'_> {
    fn set_tail(&self, position: u64) {
        self.machine.hook();
        self.machine.hw.borrow_mut().iommu.tail = (position & self.mask) as usize;
        self.machine.hook();
    }

    fn head(&self) -> u32 {
        self.machine.hook();
        self.machine.hw.borrow().iommu.head as u32
    }

    fn sync(&self, position: u64) -> Command {
        self.machine.hook();
        match self.machine.config.arch {
            Arch::Amd64 => completion_wait(REPORT, position).expect("a valid address"),
            Arch::Intel64 => vtd::command::wait(REPORT, position as u32).expect("a valid address"),
            Arch::Arm64 => sync_poll(),
        }
    }

    fn reported(&self) -> Option<u64> {
        let is_told = self.machine.config.arch.is_x86();
        is_told.then(|| self.machine.hw.borrow().iommu.reported)
    }

    fn relax(&self, turns: u64) -> ControlFlow<()> {
        self.machine.give_way_inside();
        if turns < TURNS_MAX { ControlFlow::Continue(()) } else { ControlFlow::Break(()) }
    }

    fn spin(&self) {
        self.machine.give_way_inside();
    }
}

impl Structures for Registers<'_> {
    fn load(&self, of: Structure) -> Words {
        self.machine.hw.borrow().iommu.structures().load(of)
    }

    fn store(&self, of: Structure, word: usize, value: u64) {
        self.machine.hook();
        self.machine.hw.borrow_mut().write_structure(of, word, value);
        self.machine.hook();
    }
}

/// The entry and the descriptor by which devices of a domain translate by these tables.
fn stage_1(DeviceEntry { domain, root }: DeviceEntry) -> Option<(StreamEntry, ContextDescriptor)> {
    let tables = Tables {
        asid: Asid(domain),
        table: root,
        t0sz: 16,
        granule: Granule::Size4K,
        reads: Reads::Coherent,
        size: OutputSize::Bits48,
        mair: Arm64Stage1::MAIR,
    };
    let context = smmu::DESCRIPTORS + u64::from(domain) * 64;
    StreamEntry::stage_1(context, Reads::Coherent).zip(ContextDescriptor::new(&tables))
}

#[derive(Debug)]
pub(crate) struct Ring<'m> {
    queue: Queue<Registers<'m>, Rc<[Entry]>>,
    entries: Rc<[Entry]>,
}

impl<'m> Ring<'m> {
    pub(crate) fn new(machine: &'m AbstractMachine) -> Self {
        let len = machine.config.dma.ring;
        let entries: Rc<[Entry]> = (0..len).map(|_| Entry::default()).collect();
        let registers = Registers { machine, mask: len as u64 - 1 };
        Self { queue: Queue::new(registers, Rc::clone(&entries)), entries }
    }

    fn machine(&self) -> &'m AbstractMachine {
        self.queue.port().machine
    }

    pub(super) fn begin(
        &self,
        domain: &dma::Domain<'_>,
        invalidation: paging::Invalidation<'_>,
    ) -> Result<dma::Begun, Stuck> {
        self.machine().note(|| format!("tells the IOMMU: {:?}, {invalidation:?}", domain.id));
        match self.machine().config.arch {
            Arch::Amd64 => dma::nested::begin(&self.queue, &amd::Commands, domain, invalidation),
            Arch::Intel64 => dma::nested::begin(&self.queue, &VTD, domain, invalidation),
            Arch::Arm64 => {
                let has_ranges = self.machine().config.arm.range;
                let setup = Setup { granule: Granule::Size4K, has_ranges, commands_max: COMMANDS_MAX };
                dma::smmu::begin(&self.queue, &setup, domain.id, invalidation)
            }
        }
    }

    pub(super) fn finish(&self, begun: dma::Begun) -> Result<(), Stuck> {
        let finished = dma::finish(&self.queue, begun);
        self.machine().note(|| format!("has waited for the IOMMU: {begun:?}"));
        finished
    }

    fn smmu(&self) -> Smmu<'_, Registers<'m>, Rc<[Entry]>, Registers<'m>> {
        Smmu { queue: &self.queue, structures: self.queue.port() }
    }

    /// The devices of a domain, which are at these places, get to translate by `entry`.
    pub(super) fn attach(
        &self,
        domain: &dma::Domain<'_>,
        places: core::ops::Range<usize>,
        entry: DeviceEntry,
    ) -> Result<(), Stuck> {
        match self.machine().config.arch {
            Arch::Amd64 => {
                dma::nested::attach(&self.queue, &amd::Commands, domain, self.writes(places, Some(entry)))
            }
            Arch::Intel64 => dma::nested::attach(&self.queue, &VTD, domain, self.writes(places, Some(entry))),
            Arch::Arm64 => domain.devices.iter().try_for_each(|device| {
                let by = stage_1(entry).expect("addresses fit");
                self.smmu().attach(device.id, DomainId(entry.domain), by)
            }),
        }
    }

    /// The devices of a domain, which are at these places, are taken away.
    pub(super) fn detach(
        &self,
        domain: &dma::Domain<'_>,
        places: core::ops::Range<usize>,
    ) -> Result<(), Stuck> {
        match self.machine().config.arch {
            Arch::Amd64 => {
                dma::nested::detach(&self.queue, &amd::Commands, domain, self.writes(places, None))
            }
            Arch::Intel64 => dma::nested::detach(&self.queue, &VTD, domain, self.writes(places, None)),
            Arch::Arm64 => self.smmu().detach(domain),
        }
    }

    /// The devices' entries, which are at these places, become this one.
    fn writes(
        &self,
        mut places: core::ops::Range<usize>,
        entry: Option<DeviceEntry>,
    ) -> impl FnMut(&dma::Device) {
        move |_| {
            let place = places.next().expect("each device has a place");
            self.machine().point();
            self.machine().hw.borrow_mut().write_device_entry(place, entry);
        }
    }

    /// The IOMMU reads a command, if there is one and it is not held back.
    fn read(&self) {
        let machine = self.machine();
        let (head, tail, is_reading) = {
            let iommu = &machine.hw.borrow().iommu;
            (iommu.head, iommu.tail, iommu.is_reading())
        };
        if head == tail || !is_reading {
            return;
        }
        let Command(words) = self.entries[head].load();
        let decoded = match machine.config.arch {
            Arch::Amd64 => amd_vi::decode(words),
            Arch::Intel64 => vtd_hw::decode(words),
            Arch::Arm64 => smmu::decode(words),
        };
        let Some(order) = decoded else {
            return machine.fail(|| format!("the IOMMU reads {words:x?} at {head}"));
        };
        let iommu = &mut machine.hw.borrow_mut().iommu;
        iommu.read(order);
        if order != Order::Sync {
            iommu.head = self.after(head);
        }
    }

    fn after(&self, head: usize) -> usize {
        (head + 1) % self.entries.len()
    }

    /// It executes one that it has read, if there is one.
    fn execute(&self) {
        let done = self.machine().hw.borrow_mut().execute_command();
        if let Some(order) = done {
            if order == Order::Sync {
                let iommu = &mut self.machine().hw.borrow_mut().iommu;
                iommu.head = self.after(iommu.head);
            }
            self.machine().note(|| format!("does {order:x?}"));
        }
    }
}

pub(crate) fn run_iommu(ring: &Ring<'_>) {
    let machine = ring.machine();
    while machine.is_busy() {
        machine.give_way();
        for _ in 0..machine.below(STEPS_MAX + 1) {
            if machine.below(2) == 0 { ring.read() } else { ring.execute() }
        }
    }
}
