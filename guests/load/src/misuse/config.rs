//! Configuration space: writes and reads of all sizes at all places.

use arrayvec::ArrayVec;
use baremetal::pci::{BAR, COMMAND, ConfigSpace};
use baremetal::random::Random;
use x86_64::instructions::port::Port;

use super::{Devices, ensure};
use crate::guest::Failure;

/// Bytes of the address register that are no port of another device's. 0xcf9 resets the machine.
const ADDRESS_PORTS: [u64; 3] = [0xcf8, 0xcfa, 0xcfb];

fn identities() -> [u32; 256] {
    core::array::from_fn(|place| ConfigSpace::new(place as u16).read(0))
}

/// The capability by which a function is reset, and how far behind it that begins.
const RESET: u8 = 0x13;
const CONTROL: u8 = 4;
/// Of so many writes that would reset a function, one is made: it is absent for a while then.
const RESETS_EVERY: u64 = 32;
/// Looks at a function that is being reset. Each takes a microsecond or more, and the hypervisor
/// gives it up, which fails the test, after about two seconds.
const LOOKS_MAX: u32 = 100_000_000;

pub(super) fn config(devices: &Devices, random: &mut Random, count: u64) -> Result<(), Failure> {
    let before = identities();
    let controls: ArrayVec<_, 2> = devices
        .functions
        .iter()
        .filter_map(|function| Some((function.config, function.config.capability(RESET)? + CONTROL)))
        .collect();
    for _ in 0..count {
        one(devices, random, &controls);
    }
    for function in &devices.functions {
        let _is_back = (0..LOOKS_MAX).any(|_| function.config.read(0) != u32::MAX);
    }
    devices.put_in_order();
    ensure(identities() == before, "functions on the bus have changed after turn", count)
}

fn function(devices: &Devices, random: &mut Random) -> ConfigSpace {
    match random.below(8) {
        0 => ConfigSpace::new(random.word() as u16),
        1 => ConfigSpace::new(random.below(256) as u16),
        2 => super::ROM,
        _ => devices.any(random).function.config,
    }
}

fn one(devices: &Devices, random: &mut Random, controls: &[(ConfigSpace, u8)]) {
    let config = function(devices, random);
    let register = match random.below(4) {
        0 => random.word() as u8,
        1 => COMMAND,
        2 => BAR + random.below(24) as u8,
        _ => 0x40 + random.below(0x80) as u8,
    };
    if controls.contains(&(config, register & !3)) && random.below(RESETS_EVERY) != 0 {
        return;
    }
    let value = match random.below(4) {
        0 => u32::MAX,
        1 => 0xe000_0000 | random.word() as u32 & 0x0fff_f006,
        2 => 0x80 | random.below(8) as u32,
        _ => random.word() as u32,
    };
    let (size, first) = (1 << random.below(3), random.below(4) as u8);
    match random.below(16) {
        0 | 1 => drop(config.read_part(register, size, first)),
        2 => {
            let port = random.one_of(ADDRESS_PORTS) as u16;
            // SAFETY: the register names a function and a register, or there is nothing.
            unsafe { Port::<u8>::new(port).write(value as u8) };
        }
        _ => config.write_part(register, size, first, value),
    }
}
