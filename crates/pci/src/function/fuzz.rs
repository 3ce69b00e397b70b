//! A million random writes, with what must hold after each.

use super::tests::{function, list, windows};
use super::*;
use crate::mock::{Device, nvme, virtio_net};
use std::vec::Vec;

/// Numbers from a seed (xorshift64*).
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        self.0.wrapping_mul(0x2545_f491_4f6c_dd1d)
    }

    fn below(&mut self, end: u64) -> u64 {
        (self.next() >> 16) % end
    }
}

/// What a function is, whatever is written: registers without the bits that can be written, and
/// those that are hidden.
fn fixed(function: &Function) -> Vec<u32> {
    let mut fixed: Vec<u32> = (0..64).map(|index| function.read(index)).collect();
    fixed[1] &= !0x0406;
    fixed[0xf] &= !0xff;
    for (number, word) in fixed[4..10].iter_mut().enumerate() {
        let is_high =
            number > 0 && function.bars.len(number - 1).is_some() && function.bars.len(number).is_none();
        *word &= if function.bars.len(number).is_some() {
            0xfff
        } else if is_high {
            0
        } else {
            u32::MAX
        };
    }
    for (offset, id) in list(function) {
        let at = usize::from(offset / 4);
        match id {
            0x11 => fixed[at] &= !(3 << 30),
            0x05 => {
                let len = 2 + (fixed[at] >> 23 & 1) as usize;
                let has_masks = fixed[at] >> 24 & 1 != 0;
                fixed[at] &= !(1 << 16);
                fixed[at + 1] &= 3;
                fixed[at + 2..at + len].fill(0);
                fixed[at + len] &= !0xffff;
                if has_masks {
                    fixed[at + len + 1] &= !1;
                }
            }
            _ => {}
        }
    }
    fixed
}

/// Checks one state.
fn check(function: &Function, before: &[u32]) {
    assert_eq!(fixed(function), before);
    let bars: Vec<Decoded> = function.bars().into_iter().flatten().collect();
    assert!(bars.is_empty() || function.read(1) & 2 != 0);
    for (index, bar) in bars.iter().enumerate() {
        assert!(bar.len.is_power_of_two() && bar.len >= 4096 && bar.address.is_multiple_of(bar.len));
        let Windows { low, high } = windows();
        let is_in = |window: &Range<u64>| window.start <= bar.address && bar.address + bar.len <= window.end;
        assert!(is_in(&low) || is_in(&high), "{bar:x?}");
        let others = &bars[index + 1..];
        assert!(
            others.iter().all(|other| other.range().end <= bar.address || bar.range().end <= other.address)
        );
    }
    assert_eq!(function.is_bus_master(), function.read(1) & 4 != 0);
    let control =
        |id| list(function).iter().find(|entry| entry.1 == id).map(|entry| function.read(entry.0 / 4));
    let (msix, msi) = (control(0x11).unwrap_or(0), control(5).unwrap_or(0));
    for vector in 0..=function.vector_count() {
        let is_possible = match (msix >> 30, msi >> 16 & 1) {
            (2, _) => vector < function.vector_count(),
            (3, _) | (_, 0) => false,
            _ => vector == 0,
        };
        assert!(is_possible || function.vector(vector).is_none(), "{vector}: {msix:#x} {msi:#x}");
    }
}

/// A write of a guest to configuration space: most to registers that exist, of all widths.
fn write(function: &mut Function, random: &mut Random) {
    let index = match random.below(8) {
        0 => random.next() as u16,
        1 | 2 => 1,
        3 | 4 => 4 + random.below(6) as u16,
        _ => random.below(70) as u16,
    };
    let mask = match random.below(4) {
        0 => 0xff << (8 * random.below(4)),
        1 => 0xffff << (16 * random.below(2)),
        2 => random.next() as u32,
        _ => u32::MAX,
    };
    let value = match random.below(4) {
        0 => u32::MAX,
        1 => 0xe000_0000 | random.next() as u32 & 0x0fff_f006,
        2 => 0x80 | random.below(8) as u32,
        _ => random.next() as u32,
    };
    function.write(index, value, mask);
    if random.below(5000) == 0 {
        function.reset();
    }
}

fn fuzz(device: Device, seed: u64, count: u32) {
    let mut random = Random(seed);
    let mut function = function(device);
    function.show_pin(1, 10);
    function.show_reset();
    let before = fixed(&function);
    let (mut decoded, mut enabled, mut resets) = (0, 0, 0);
    for _ in 0..count {
        write(&mut function, &mut random);
        if function.is_resetting() {
            resets += 1;
            assert!(function.bars().iter().all(Option::is_none) && !function.is_bus_master());
            assert_eq!(function.read(random.next() as u16), u32::MAX);
            function.end_reset();
        }
        let entry = random.below(u64::from(function.vector_count().max(1))) * 16;
        for pages in function.trapped().iter().take(1) {
            let _ = function.trapped_write(pages.bar, pages.offsets.start + entry + 12, 4, random.next() & 1);
        }
        check(&function, &before);
        decoded += usize::from(function.bars().iter().flatten().count() > 1);
        enabled += usize::from((0..function.vector_count()).any(|vector| function.vector(vector).is_some()));
    }
    // The writes reach what the checks are about.
    assert!(resets > count / 5000, "{resets}");
    assert!(decoded > count as usize / 1000 && enabled > count as usize / 1000, "{decoded} {enabled}");
}

#[test]
fn config_space_takes_a_million_random_writes() {
    let small = |device: Device| device.bar(3, 0, 0, 256).bar(5, 8, 0, 0x2_0000);
    fuzz(small(nvme().capability(0xc0, &[0x0180_0005, 0, 0, 0, 0, 0])), 0x5eed_0001, 250_000);
    fuzz(virtio_net().bar(0, 1, 0xc000, 0x20), 0x5eed_0002, 250_000);
    let msi = |control: u32| {
        let device = Device::new(1234, 1, 0x02_0000).bar64(0, 4, 0, 0x10_0000).bar64(4, 12, 0, 1 << 33);
        device.bar(2, 0, 0, 0x1000).capability(0x40, &[control << 16 | 5, 0, 0, 0, 0, 0])
    };
    fuzz(msi(0x000), 0x5eed_0003, 250_000);
    fuzz(msi(0x180), 0x5eed_0004, 250_000);
}
