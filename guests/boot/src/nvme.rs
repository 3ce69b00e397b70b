//! NVMe disks: polled, with one command at a time, into memory of their own.

use core::array;

use baremetal::nvme::{self, Controller, Queue, Refused};
use baremetal::pages::{PAGE, Page};
use baremetal::pci::{CLASS, COMMAND, ConfigSpace, MEMORY_AND_DMA};
use boot::disk::{Disk, Failed};

/// The most disks that are used, and the pages that are read at once.
const DISKS: usize = 4;
const WINDOW: usize = 64;
/// The command register: no interrupts by wires.
const NO_INTERRUPTS: u32 = 1 << 10;
const ENTRIES: u32 = 4;
/// Bits of the command register; those above are status, and are cleared by writing ones.
const COMMAND_BITS: u32 = 0xffff;

/// What a controller writes to, and is told by.
struct Pages {
    admin: [Page; 2],
    queue: [Page; 2],
    /// Addresses of the window's pages from the second on.
    list: Page,
    window: [Page; WINDOW],
}

static PAGES: [Pages; DISKS] = [const {
    Pages {
        admin: [const { Page::new() }; 2],
        queue: [const { Page::new() }; 2],
        list: Page::new(),
        window: [const { Page::new() }; WINDOW],
    }
}; DISKS];

/// A disk.
pub(crate) struct Nvme {
    config: ConfigSpace,
    /// The command register as it was found.
    command: u32,
    controller: Controller,
    queue: Queue,
    pages: &'static Pages,
    block: u32,
    blocks: u64,
    /// Blocks that are read at once.
    step: u64,
    /// The first block of those in the window.
    window: Option<u64>,
}

/// The disks on bus 0.
pub(crate) fn all() -> impl Iterator<Item = Result<Nvme, Refused>> {
    let functions = (0..32).map(|device| ConfigSpace::new(device << 3));
    let controllers = functions.filter(|config| config.read(CLASS) >> 8 == nvme::CLASS);
    controllers.zip(&PAGES).map(|(config, pages)| Nvme::start(config, pages))
}

impl Nvme {
    fn start(config: ConfigSpace, pages: &'static Pages) -> Result<Self, Refused> {
        let command = config.read(COMMAND) & COMMAND_BITS;
        config.write(COMMAND, MEMORY_AND_DMA | NO_INTERRUPTS);
        // SAFETY: the BAR is decoded; the controller writes to its own pages only.
        let controller = unsafe { Controller::new(config.base(0)) };
        let mut admin = Queue::new(0, ENTRIES, &pages.admin);
        controller.start(&mut admin)?;
        let described = pages.window[0].address();
        admin.execute(&controller, &nvme::identify(described))?;
        let [most] = bytes(described + 77);
        admin.execute(&controller, &nvme::identify_disk(described))?;
        let blocks = u64::from_le_bytes(bytes(described));
        let [format] = bytes::<1>(described + 26).map(|byte| u64::from(byte & 15));
        let [_, _, shift, _] = bytes(described + 128 + 4 * format);
        // From 512 bytes to a page.
        let shift = u32::from(shift).clamp(9, 12);
        let mut queue = Queue::new(1, ENTRIES, &pages.queue);
        controller.add(&mut admin, &mut queue, 0)?;
        let addresses: [u64; WINDOW] =
            array::from_fn(|index| pages.window.get(index + 1).map_or(0, Page::address));
        pages.list.write(&addresses);
        // The controller's limit counts pages, as a power of two; 0 is none.
        let most = if most == 0 { WINDOW } else { WINDOW.min(1 << most.min(16)) };
        let step = (most as u64 * PAGE) >> shift;
        Ok(Self { config, command, controller, queue, pages, block: 1 << shift, blocks, step, window: None })
    }

    /// Reads the blocks around one into the window.
    fn turn_to(&mut self, block: u64) -> Result<u64, Failed> {
        let first = block - block % self.step;
        if self.window != Some(first) {
            self.window = None;
            let count = self.step.min(self.blocks - first);
            let is_short = count * u64::from(self.block) <= 2 * PAGE;
            let next = if is_short { &self.pages.window[1] } else { &self.pages.list };
            let command = nvme::read(first, count as u16, self.pages.window[0].address(), next.address());
            self.queue.execute(&self.controller, &command).map_err(|_| Failed)?;
            self.window = Some(first);
        }
        Ok(first)
    }

    /// Leaves it as after a reset.
    pub(crate) fn give_back(&mut self) {
        // If it does not stop, the kernel's driver will see.
        let _ = self.controller.stop();
        self.config.write(COMMAND, self.command);
    }
}

impl Disk for Nvme {
    fn block(&self) -> u32 {
        self.block
    }

    fn size(&self) -> u64 {
        self.blocks.saturating_mul(self.block.into())
    }

    fn read(&mut self, from: u64, into: &mut [u8]) -> Result<(), Failed> {
        let (mut from, mut left) = (from, into);
        while !left.is_empty() {
            let start = self.turn_to(from / u64::from(self.block))? * u64::from(self.block);
            let end = (start + self.step * u64::from(self.block)).min(self.size());
            let count = left.len().min((end - from) as usize);
            let (now, later) = left.split_at_mut(count);
            let source = (self.pages.window[0].address() + (from - start)) as *const u8;
            // SAFETY: the window's pages are one behind the other, so that all of it is there. The
            // controller has done the command, and writes no more.
            unsafe { source.copy_to_nonoverlapping(now.as_mut_ptr(), count) };
            (from, left) = (from + count as u64, later);
        }
        Ok(())
    }
}

/// Bytes of what a controller has written.
fn bytes<const N: usize>(address: u64) -> [u8; N] {
    // SAFETY: the address is in a window's first page, and the controller has done the command.
    unsafe { (address as *const [u8; N]).read() }
}
