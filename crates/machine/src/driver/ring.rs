//! The command ring of the IOMMU, shared by all virtual machines.

use std::ops::ControlFlow;
use std::rc::Rc;

use iommu::amd::command::completion_wait;
use iommu::{Command, Entry, Port, Queue, Stuck};
use stay::iommu as dma;
use stay::{Mistake, Mistakes};

use crate::hw::iommu::Order;
use crate::machine::AbstractMachine;

/// Turns of waiting after which the IOMMU is considered stuck: it does something in most of its
/// turns, and misses some hundred turns of others at most.
const TURNS_MAX: u64 = 20_000;
/// The most that the IOMMU does in a turn.
const STEPS_MAX: usize = 5;
/// Where waits are reported. The address is not used.
const REPORT: u64 = 0x1000;

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
        completion_wait(REPORT, position).expect("a valid address")
    }

    fn reported(&self) -> Option<u64> {
        Some(self.machine.hw.borrow().iommu.reported)
    }

    fn relax(&self, turns: u64) -> ControlFlow<()> {
        self.machine.give_way_inside();
        if turns < TURNS_MAX { ControlFlow::Continue(()) } else { ControlFlow::Break(()) }
    }

    fn spin(&self) {
        self.machine.give_way_inside();
    }
}

/// The ring.
#[derive(Debug)]
pub(crate) struct Ring<'m> {
    queue: Queue<Registers<'m>, Rc<[Entry]>>,
    entries: Rc<[Entry]>,
}

impl<'m> Ring<'m> {
    /// A machine's ring.
    pub(crate) fn new(machine: &'m AbstractMachine) -> Self {
        let len = machine.config.dma.ring;
        let entries: Rc<[Entry]> = (0..len).map(|_| Entry::default()).collect();
        let registers = Registers { machine, mask: len as u64 - 1 };
        Self { queue: Queue::new(registers, Rc::clone(&entries)), entries }
    }

    fn machine(&self) -> &'m AbstractMachine {
        self.queue.port().machine
    }

    /// [`dma::begin`].
    pub(super) fn begin(
        &self,
        domain: &dma::Domain<'_>,
        invalidation: paging::Invalidation<'_>,
    ) -> Result<dma::Begun, Stuck> {
        self.machine().note(|| format!("tells the IOMMU: {:?}, {invalidation:?}", domain.id));
        dma::begin(&self.queue, domain, invalidation)
    }

    /// [`dma::finish`].
    pub(super) fn finish(&self, begun: dma::Begun) -> Result<(), Stuck> {
        let finished = dma::finish(&self.queue, begun);
        self.machine().note(|| format!("has waited for the IOMMU: {begun:?}"));
        finished
    }

    /// [`dma::attach`].
    pub(super) fn attach(&self, devices: &[dma::Device]) -> Result<(), Stuck> {
        dma::attach(&self.queue, devices)
    }

    /// [`dma::detach`].
    pub(super) fn detach(&self, domain: &dma::Domain<'_>) -> Result<(), Stuck> {
        dma::detach(&self.queue, domain)
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
        let Some(order) = Order::decode(words) else {
            return machine.fail(|| format!("the IOMMU reads {words:x?} at {head}"));
        };
        let iommu = &mut machine.hw.borrow_mut().iommu;
        iommu.read(order);
        iommu.head = (head + 1) % self.entries.len();
    }

    /// It executes one that it has read, if there is one.
    fn execute(&self) {
        let done = self.machine().hw.borrow_mut().execute_command();
        if let Some(order) = done {
            self.machine().note(|| format!("does {order:x?}"));
        }
    }
}

/// The actor of the IOMMU.
pub(crate) fn run_iommu(ring: &Ring<'_>) {
    let machine = ring.machine();
    while machine.is_busy() {
        machine.give_way();
        for _ in 0..machine.below(STEPS_MAX + 1) {
            if machine.below(2) == 0 { ring.read() } else { ring.execute() }
        }
    }
}
