//! A device with DMA: the first NVMe controller. It writes to any address that it is told.

use baremetal::nvme::{self, Controller, Queue};
use baremetal::pages::{PAGE, Page};
use baremetal::pci::{CLASS, COMMAND, ConfigSpace, MEMORY_AND_DMA};

use crate::guest::Failure;

const ADMIN_ENTRIES: u32 = 4;
const FLIGHT_BYTES: u64 = 2 * PAGE;

static ADMIN: [Page; 2] = [const { Page::new() }; 2];
static FLIGHT: [Page; 2] = [const { Page::new() }; 2];

impl From<nvme::Refused> for Failure {
    fn from(refused: nvme::Refused) -> Self {
        match refused {
            nvme::Refused::Silent => Self::Silent,
            nvme::Refused::Status(status) => Self::Refused(status),
        }
    }
}

fn start() -> Result<(Controller, Queue), Failure> {
    let config = ConfigSpace::find(|config| config.read(CLASS) >> 8 == nvme::CLASS).ok_or(Failure::Absent)?;
    config.write(COMMAND, MEMORY_AND_DMA);
    // SAFETY: the BAR is decoded; the controller writes to its queues, and where it is told.
    let controller = unsafe { Controller::new(config.base(0)) };
    let mut admin = Queue::new(0, ADMIN_ENTRIES, &ADMIN);
    controller.start(&mut admin)?;
    Ok((controller, admin))
}

pub(crate) fn identify(address: u64) -> Result<u64, Failure> {
    let (controller, mut admin) = start()?;
    admin.execute(&controller, &nvme::identify(address))?;
    controller.stop()?;
    Ok(1)
}

/// Has the controller read the beginning of the disk to `address` and after it, as often as there
/// is room for. None of that is waited for, unless the controller is then reset.
pub(crate) fn fly(address: u64, count: u64, then_reset: bool) -> Result<u64, Failure> {
    let (controller, mut admin) = start()?;
    let mut queue = Queue::new(1, nvme::ENTRIES_MAX, &FLIGHT);
    controller.add(&mut admin, &mut queue, 0)?;
    let count = count.min(u64::from(nvme::ENTRIES_MAX) - 1);
    for number in 0..count {
        queue.push(&nvme::read_two_pages(address + number * FLIGHT_BYTES));
    }
    queue.ring(&controller);
    if then_reset {
        controller.stop()?;
    }
    Ok(count)
}
