//! What a guest can do to its devices to disturb others: everything that it reaches, with random
//! values. A seed determines all of it.
//!
//! Memory of its own stays what it is, and the devices work again when the guest was reset. What
//! the devices are told to do by DMA is never in the guest's own memory.

mod bars;
mod config;
mod messages;
mod registers;

use arrayvec::ArrayVec;
use baremetal::nvme;
use baremetal::pages::PAGE;
use baremetal::pci::{CLASS, COMMAND, ConfigSpace, MEMORY_AND_DMA, Messages};
use baremetal::random::Random;
use load::command::Misuse;

use crate::guest::Failure;

const NETWORK: u32 = 0x02_0000;
/// The device that shows a ROM, and the register with the ROM's place.
const ROM: ConfigSpace = ConfigSpace::new(1 << 3);
const ROM_BASE: u8 = 0x30;
/// Where BARs are put that are in order, one after the other.
const HOME: u64 = 0xe900_0000;
const HOME_STEP: u64 = 1 << 16;
/// BARs of a function, and of both.
const BARS: u8 = 6;
const PLACES: usize = 4;
/// Addresses that devices are told to use: no memory of this guest's, but perhaps another's. The
/// window of interrupts is not among them, because QEMU 7.2 ends there (`docs/qemu.md`).
const WILD: [u64; 8] =
    [0x3000_0000, 0x7fff_f000, 0x8000_0000, HOME, 0xf000_0000, 1 << 32, 1 << 40, u64::MAX - 4095];

#[derive(Clone, Copy)]
struct Function {
    config: ConfigSpace,
    is_nvme: bool,
}

/// A BAR, and where it is when it is in order.
#[derive(Clone, Copy)]
struct BarHome {
    function: Function,
    bar: u8,
    home: u64,
    len: u64,
}

struct Devices {
    functions: ArrayVec<Function, 2>,
    places: ArrayVec<BarHome, PLACES>,
}

pub(crate) fn misuse(what: Misuse, seed: u64, count: u64) -> Result<u64, Failure> {
    let devices = Devices::find()?;
    let mut random = Random::new(seed);
    devices.put_in_order();
    match what {
        Misuse::Config => config::config(&devices, &mut random, count),
        Misuse::Bars => bars::bars(&devices, &mut random, count),
        Misuse::Messages => messages::messages(&devices, &mut random, count),
        Misuse::Registers => registers::registers(&devices, &mut random, count),
    }?;
    devices.put_in_order();
    Ok(count)
}

impl Devices {
    fn find() -> Result<Self, Failure> {
        let of_class = |class| ConfigSpace::find(|config| config.read(CLASS) >> 8 == class);
        let mut devices = Self { functions: ArrayVec::new(), places: ArrayVec::new() };
        for (class, is_nvme) in [(nvme::CLASS, true), (NETWORK, false)] {
            let config = of_class(class).ok_or(Failure::Absent)?;
            devices.functions.push(Function { config, is_nvme });
        }
        for function in devices.functions.clone() {
            // Sizes are found by writing ones, while nothing is decoded.
            function.config.write(COMMAND, 0);
            for bar in (0..BARS).filter(|bar| !function.is_upper_half(*bar)) {
                function.config.place(bar, u64::MAX);
                let ones = function.config.base(bar);
                let home = HOME + devices.places.len() as u64 * HOME_STEP;
                let len = 1 << ones.trailing_zeros().min(63);
                if ones != 0 {
                    let place = BarHome { function, bar, home, len };
                    devices.places.try_push(place).map_err(|_| Failure::Absent)?;
                }
            }
        }
        Ok(devices)
    }

    /// Puts all BARs where they do not overlap anything, and enables the functions.
    fn put_in_order(&self) {
        ROM.write(ROM_BASE, 0);
        self.functions.iter().for_each(|function| function.config.write(COMMAND, 0));
        self.places.iter().for_each(|place| place.function.config.place(place.bar, place.home));
        self.functions.iter().for_each(|function| function.config.write(COMMAND, MEMORY_AND_DMA));
    }

    fn any(&self, random: &mut Random) -> &BarHome {
        &self.places[random.below(self.places.len() as u64) as usize]
    }

    /// The NVMe controller's function, and its registers.
    fn nvme(&self) -> &BarHome {
        &self.places[0]
    }
}

impl Function {
    /// Whether a BAR's register is the upper half of the one before.
    fn is_upper_half(&self, bar: u8) -> bool {
        let Some(before) = bar.checked_sub(1) else { return false };
        let register = |bar: u8| self.config.read(baremetal::pci::BAR + bar * 4);
        register(before) & 6 == 4 && !self.is_upper_half(before)
    }
}

/// The place of a function's table of MSI-X: the address where it is when it is in order, and the
/// number of entries; and the capability's register.
fn table(devices: &Devices, function: &Function) -> Option<(u64, u64, u8)> {
    let Messages { control, table: (bar, offset), count } = function.config.messages()?;
    let is_it = |of: &&BarHome| of.function.config == function.config && of.bar == bar;
    Some((devices.places.iter().find(is_it)?.home + offset, count, control))
}

/// Fails unless something is as it has to be, in this turn.
fn ensure(is_so: bool, what: &'static str, turn: u64) -> Result<(), Failure> {
    if is_so { Ok(()) } else { Err(Failure::Misused { what, number: turn }) }
}

/// Fails if something that should happen in some of all turns has hardly happened.
fn is_enough(found: u64, turns: u64, what: &'static str) -> Result<(), Failure> {
    if found >= turns / 64 { Ok(()) } else { Err(Failure::Misused { what, number: found }) }
}

const fn page_of(address: u64) -> u64 {
    address & !(PAGE - 1)
}
