//! BARs over memory, over each other, over tables of MSI-X, and where nothing is.

use baremetal::arch::guarded;
use baremetal::nvme::VERSION;
use baremetal::pages::Page;
use baremetal::pci::{COMMAND, MEMORY_AND_DMA};
use baremetal::random::Random;
use core::sync::atomic::Ordering;

use super::{Devices, HOME, HOME_STEP, ensure, is_enough, page_of};
use crate::guest::Failure;

/// Memory that BARs are moved over. What is in it must stay.
static CANARY: [Page; 16] = [const { Page::new() }; 16];
/// After so many moves everything is put in order, and has to work.
const PERIOD: u64 = 32;
/// Edges of the window, devices of the machine's, and the ends of addresses.
const EDGES: [[u64; 8]; 2] = [
    [0, 0x10_0000, 1 << 30, 0x8000_0000, 0xdfff_c000, 0xe000_0000, 0xe000_1000, 0xefff_c000],
    [0xefff_f000, 0xf000_0000, 0xfec0_0000, 0xfee0_0000, 0xffff_f000, 1 << 32, 1 << 40, u64::MAX],
];

/// What a word of the memory has.
fn pattern(page: &Page, index: usize) -> u64 {
    page.address().wrapping_add(index as u64).wrapping_mul(0x9e37_79b9_7f4a_7c15)
}

fn changed() -> usize {
    let of = |page: &Page| {
        let words = page.words().iter().enumerate();
        words.filter(|(index, word)| word.load(Ordering::Relaxed) != pattern(page, *index)).count()
    };
    CANARY.iter().map(of).sum()
}

pub(super) fn bars(devices: &Devices, random: &mut Random, count: u64) -> Result<(), Failure> {
    for page in &CANARY {
        (0..512).for_each(|index| page.write_at(index, &[pattern(page, index)]));
    }
    // SAFETY: a BAR is there, or nothing.
    let version = || guarded::load(devices.nvme().home + VERSION).unwrap_or(0) as u32;
    let before = version();
    ensure(before != u32::MAX && before != 0, "the disk is not found in turn", 0)?;
    let mut seen = 0;
    for turn in 1..=count {
        let address = one(devices, random);
        // What is there is memory, a device, or nothing.
        let found = guarded::load((address & !7).wrapping_add(VERSION)).unwrap_or(0) as u32;
        seen += u64::from(found == before);
        let page = &CANARY[random.below(CANARY.len() as u64) as usize];
        let index = random.below(512) as usize;
        let word = page.words()[index].load(Ordering::Relaxed);
        ensure(word == pattern(page, index), "memory below a BAR has changed in turn", turn)?;
        if turn % PERIOD == 0 {
            devices.put_in_order();
            ensure(version() == before, "the disk is not found in turn", turn)?;
            ensure(changed() == 0, "memory below a BAR has changed in turn", turn)?;
        }
    }
    // The moves reach what the checks are about.
    is_enough(seen, count, "too few disks at a new place")
}

/// Moves a BAR, and returns where to.
fn one(devices: &Devices, random: &mut Random) -> u64 {
    let place = devices.any(random);
    let address = match random.below(8) {
        // Memory, and the program itself.
        0 => CANARY[random.below(CANARY.len() as u64) as usize].address(),
        1 => page_of((one as fn(&Devices, &mut Random) -> u64) as usize as u64),
        // Another one, or itself; the pages of the tables among them.
        2 => devices.any(random).home + (random.below(4) << 12),
        3 => HOME + random.below(4) * HOME_STEP + (random.below(16) << 12),
        4 => 0xe000_0000 + (random.below(1 << 16) << 12),
        5 => random.word(),
        _ => EDGES.as_flattened()[random.below(16) as usize],
    };
    if random.one_in(4) {
        place.function.config.write(COMMAND, 0);
    }
    place.function.config.place(place.bar, address);
    if !random.one_in(8) {
        place.function.config.write(COMMAND, MEMORY_AND_DMA);
    }
    address
}
