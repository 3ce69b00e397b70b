//! Memory that the guest shares with others, and its doorbell: the first device 1af4:1110 (QEMU,
//! `docs/specs/ivshmem-spec.rst`).

use core::sync::atomic::{AtomicBool, Ordering};

use baremetal::arch::{clock, guarded};
use baremetal::pci::{COMMAND, ConfigSpace, MEMORY_AND_DMA};
use load::command::Share;

use crate::guest::Failure;
use crate::machine;

/// What the device is: its first register of configuration space.
const DEVICE: u32 = 0x1110_1af4;
/// The BARs of its registers, of the table of MSI-X, and of the memory.
const REGISTERS: u8 = 0;
const TABLE: u8 = 1;
const MEMORY: u8 = 2;
/// Registers.
const POSITION: u64 = 8;
const DOORBELL: u64 = 12;
/// Milliseconds to wait for another guest.
const PATIENCE_MS: u64 = 60_000;

/// Interrupts have been set up. The only processor that uses this has done it.
static LISTENS: AtomicBool = AtomicBool::new(false);

/// Does something with the device; returns the guest's own number, or how often it was rung.
pub(crate) fn share(what: Share, place: u64, value: u64) -> Result<u64, Failure> {
    let config = ConfigSpace::find(|config| config.read(0) == DEVICE).ok_or(Failure::Absent)?;
    // Messages are DMA.
    config.write(COMMAND, MEMORY_AND_DMA);
    let registers = config.base(REGISTERS);
    if !LISTENS.swap(true, Ordering::Relaxed) {
        machine::listen(&config, registers, config.base(TABLE));
    }
    let at = config.base(MEMORY) + place;
    match what {
        // SAFETY: the memory is there for this, and a fault is guarded.
        Share::Put => unsafe { guarded::store(at, value) }.map_err(|_| Failure::Fault(at))?,
        Share::Get => wait(|| guarded::load(at) == Ok(value))?,
        Share::Ring => write(registers + DOORBELL, (place << 16 | value & 0xffff) as u32),
        Share::Rung => {
            wait(|| machine::heard(place) >= value)?;
            return Ok(machine::heard(place));
        }
    }
    Ok(read(registers + POSITION).into())
}

pub(crate) fn read(address: u64) -> u32 {
    // SAFETY: the caller's device is there.
    unsafe { (address as *const u32).read_volatile() }
}

pub(crate) fn write(address: u64, value: u32) {
    // SAFETY: as above; the device interrupts, and does nothing else on its own.
    unsafe { (address as *mut u32).write_volatile(value) };
}

fn wait(is_so: impl Fn() -> bool) -> Result<(), Failure> {
    if clock::wait_until(PATIENCE_MS, is_so) { Ok(()) } else { Err(Failure::Silent) }
}
