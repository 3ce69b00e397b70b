//! Registers of devices: accesses of all sizes at all offsets, random values, and resets amid that.

use baremetal::guarded_asm;
use baremetal::nvme;
use baremetal::pages::PAGE;
use baremetal::random::Random;
use core::ops::Range;

use super::{BarHome, Devices, WILD};
use crate::guest::{self, Failure};

/// Registers of a disk with the addresses and sizes of its queues; of virtio's common
/// configuration: the status, the number of a queue, and its addresses.
const DISK_QUEUES: Range<u64> = nvme::QUEUE_SIZES..nvme::COMPLETIONS + 8;
const NET_STATUS: u64 = 0x14;
const NET_QUEUE: u64 = 0x16;
const NET_ENABLE: u64 = 0x1c;
const NET_QUEUES: Range<u64> = 0x20..0x38;
/// BARs of less than this are no registers of virtio's.
const NET_LEN: u64 = 4 * PAGE;
const NET_QUEUE_COUNT: u64 = 4;

pub(super) fn registers(devices: &Devices, random: &mut Random, count: u64) -> Result<(), Failure> {
    for _ in 0..count {
        one(devices.any(random), random);
        if random.one_in(64) {
            aim(devices, random);
        }
    }
    Ok(())
}

/// Registers that say where the device writes to: only [`aim`] writes them.
fn aims(place: &BarHome) -> Range<u64> {
    if place.function.is_nvme { DISK_QUEUES } else { NET_QUEUES }
}

/// Makes the devices use wild addresses, and starts or resets them.
fn aim(devices: &Devices, random: &mut Random) {
    for place in devices.places.iter().filter(|place| place.function.is_nvme || place.len >= NET_LEN) {
        // The addresses are no memory of the program's.
        let store = |offset: u64, value: u64| guest::write(place.home + offset, value as u32);
        let store_address = |offset: u64, value: u64| {
            store(offset, value);
            store(offset + 4, value >> 32);
        };
        if place.function.is_nvme {
            store(nvme::QUEUE_SIZES, 0x003f_003f);
            store_address(nvme::SUBMISSIONS, random.one_of(WILD));
            store_address(nvme::COMPLETIONS, random.one_of(WILD));
            // Disabled and enabled, as a driver does it.
            store(0x14, 0);
            store(0x14, random.one_of([0, 0x0046_0001]));
            store(0x1000, random.below(64));
            continue;
        }
        let half = |offset: u64, value: u64| {
            // SAFETY: the registers are in order.
            unsafe { ((place.home + offset) as *mut u16).write_volatile(value as u16) };
        };
        half(NET_STATUS, 0);
        half(NET_STATUS, 3);
        for queue in 0..NET_QUEUE_COUNT {
            half(NET_QUEUE, queue);
            (0..3).for_each(|part| store_address(NET_QUEUES.start + part * 8, random.one_of(WILD)));
            half(NET_ENABLE, random.below(2));
        }
        half(NET_STATUS, random.one_of([0, 0xb, 0xf]));
    }
}

fn one(place: &BarHome, random: &mut Random) {
    let offset = match random.below(4) {
        0 => random.below(64),
        1 => random.below(place.len),
        // Around the ends of pages: the next may be trapped, or no register.
        2 => (random.below(place.len / PAGE + 1) << 12).wrapping_add(random.below(32)).wrapping_sub(16),
        _ => random.below(place.len / 8) * 8,
    };
    let size = 1 << random.below(5);
    let touched = offset.wrapping_sub(16)..offset.wrapping_add(64);
    let aims = aims(place);
    let is_aim = touched.start < aims.end && aims.start < touched.end || offset > place.len;
    let at = place.home.wrapping_add(offset);
    if random.one_in(2) && !is_aim { write(at, size, random) } else { read(at, size, random) }
}

macro_rules! access {
    ($text:expr, $at:expr, $value:expr) => {
        // SAFETY: devices are there, or nothing; a fault is guarded. RAX, RCX and XMM0 are free.
        _ = unsafe { guarded_asm!($text; at = in(reg) $at, inout("rax") $value => _, out("xmm0") _,) }
    };
}

fn write(at: u64, size: u64, random: &mut Random) {
    let value = random.word();
    match (size, random.below(4)) {
        (1, _) => access!("mov byte ptr [{at}], al", at, value),
        (2, _) => access!("mov word ptr [{at}], ax", at, value),
        (4, 0) => access!("lock xadd dword ptr [{at}], eax", at, value),
        (4, 1) => access!("xchg dword ptr [{at}], eax", at, value),
        (4, 2) => access!("or dword ptr [{at}], eax", at, value),
        (4, _) => access!("mov dword ptr [{at}], eax", at, value),
        (8, _) => access!("mov qword ptr [{at}], rax", at, value),
        _ => access!("movups xmmword ptr [{at}], xmm0", at, value),
    }
}

fn read(at: u64, size: u64, random: &mut Random) {
    let value = random.word();
    match (size, random.below(4)) {
        (1, _) => access!("movzx eax, byte ptr [{at}]", at, value),
        (2, _) => access!("mov ax, word ptr [{at}]", at, value),
        (4, 0) => access!("test dword ptr [{at}], eax", at, value),
        (4, _) => access!("mov eax, dword ptr [{at}]", at, value),
        (8, _) => access!("mov rax, qword ptr [{at}]", at, value),
        _ => access!("movups xmm0, xmmword ptr [{at}]", at, value),
    }
}
