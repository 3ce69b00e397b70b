//! A device with DMA: an NVMe controller, as far as one command needs it.
//!
//! It is asked to identify itself, and writes the answer of 4096 bytes to any address. Source: NVM
//! Express Base Specification 1.4, sections 3.1 (registers), 5.15 (Identify), 7.6.1
//! (initialisation).

use core::sync::atomic::{AtomicU32, Ordering};

use crate::guest::Failure;
use crate::machine::{ConfigSpace, nanoseconds};
use baremetal::arch::clock;

/// Class code of NVMe controllers.
const CLASS: u32 = 0x01_0802;
/// Registers of configuration space: class, command, first BAR.
const CLASS_REGISTER: u8 = 0x08;
const COMMAND_REGISTER: u8 = 0x04;
const BAR: u8 = 0x10;
/// The command register: memory is decoded, DMA is on.
const MEMORY_AND_DMA: u32 = 6;

/// Registers of the controller.
const CONFIGURATION: u64 = 0x14;
const STATUS: u64 = 0x1c;
const QUEUE_SIZES: u64 = 0x24;
const SUBMISSIONS: u64 = 0x28;
const COMPLETIONS: u64 = 0x30;
const SUBMISSION_BELL: u64 = 0x1000;
/// The doorbell of completions, with doorbells side by side, as all known controllers have them.
const COMPLETION_BELL: u64 = 0x1004;
/// Configuration: enabled, entries of 64 and of 16 bytes.
const ENABLED: u32 = 1 | 6 << 16 | 4 << 20;
const READY: u32 = 1;

/// Entries of each queue.
const ENTRIES: u32 = 4;
/// Identify, and what: the controller.
const IDENTIFY: u32 = 6;
const CONTROLLER: u32 = 1;
/// Nanoseconds to wait for the controller.
const PATIENCE_NS: u64 = 5_000_000_000;

/// Queues, in memory that is mapped one to one.
#[repr(C, align(4096))]
struct Queues {
    submissions: [AtomicU32; 1024],
    completions: [AtomicU32; 1024],
}

static QUEUES: Queues = Queues {
    submissions: [const { AtomicU32::new(0) }; 1024],
    completions: [const { AtomicU32::new(0) }; 1024],
};

/// Has the first NVMe controller write its description to `address`.
pub(crate) fn identify(address: u64) -> Result<u64, Failure> {
    let config =
        ConfigSpace::find(|config| config.read(CLASS_REGISTER) >> 8 == CLASS).ok_or(Failure::Absent)?;
    config.write(COMMAND_REGISTER, MEMORY_AND_DMA);
    let base = u64::from(config.read(BAR) & !15) | u64::from(config.read(BAR + 4)) << 32;
    let controller = Controller(base);
    controller.start()?;
    for (word, value) in
        [(0, IDENTIFY), (1, 0), (6, address as u32), (7, (address >> 32) as u32), (10, CONTROLLER)]
    {
        // Relaxed: the doorbell is a device's register, and orders it.
        QUEUES.submissions[word].store(value, Ordering::Relaxed);
    }
    controller.write(SUBMISSION_BELL, 1);
    // The phase of a completion is 1 in the first round. Pairs with the controller's store.
    wait(|| QUEUES.completions[3].load(Ordering::Acquire) >> 16 & 1 != 0)?;
    let status = QUEUES.completions[3].load(Ordering::Relaxed) >> 17;
    controller.write(COMPLETION_BELL, 1);
    controller.stop()?;
    if status == 0 { Ok(1) } else { Err(Failure::Refused(status)) }
}

/// The controller's registers.
struct Controller(u64);

impl Controller {
    fn read(&self, register: u64) -> u32 {
        // SAFETY: the registers are there: the BAR is decoded.
        unsafe { ((self.0 + register) as *const u32).read_volatile() }
    }

    fn write(&self, register: u64, value: u32) {
        // SAFETY: the same; what the controller writes to memory is its queue, and what it was
        // asked for.
        unsafe { ((self.0 + register) as *mut u32).write_volatile(value) };
    }

    fn write_address(&self, register: u64, address: u64) {
        self.write(register, address as u32);
        self.write(register + 4, (address >> 32) as u32);
    }

    /// Starts the controller with empty queues.
    fn start(&self) -> Result<(), Failure> {
        self.stop()?;
        for word in QUEUES.submissions.iter().chain(&QUEUES.completions) {
            word.store(0, Ordering::Relaxed);
        }
        let queue = |words: &[AtomicU32; 1024]| words.as_ptr().expose_provenance() as u64;
        self.write(QUEUE_SIZES, (ENTRIES - 1) << 16 | (ENTRIES - 1));
        self.write_address(SUBMISSIONS, queue(&QUEUES.submissions));
        self.write_address(COMPLETIONS, queue(&QUEUES.completions));
        self.write(CONFIGURATION, ENABLED);
        wait(|| self.read(STATUS) & READY != 0)
    }

    fn stop(&self) -> Result<(), Failure> {
        self.write(CONFIGURATION, 0);
        wait(|| self.read(STATUS) & READY == 0)
    }
}

/// Waits until something is so.
fn wait(is_so: impl Fn() -> bool) -> Result<(), Failure> {
    let begin = clock::now();
    while !is_so() {
        if nanoseconds(clock::now() - begin) > PATIENCE_NS {
            return Err(Failure::Silent);
        }
        core::hint::spin_loop();
    }
    Ok(())
}
