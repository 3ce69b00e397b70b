use super::*;
use crate::mock::{Device, Machine, at, nvme, virtio_net};
use crate::physical::capability_id as id;
use std::vec::Vec;

pub(super) fn windows() -> Windows {
    Windows { low: 0xe000_0000..0xf000_0000, high: 0x80_0000_0000..0x90_0000_0000 }
}

pub(super) fn function(device: Device) -> Function {
    let machine = Machine::new([("00:04.0", device)]);
    Function::new(&Physical::read(&machine, at("00:04.0")).unwrap(), windows())
}

/// Offsets and ids of the guest's list, in its order. It ends, and is inside of its space.
pub(super) fn list(function: &Function) -> Vec<(u16, u8)> {
    let mut found: Vec<(u16, u8)> = Vec::new();
    let mut offset = (function.read(0x34 / 4) & 0xff) as u16;
    while offset != 0 {
        assert!((0x40..0x100).contains(&offset) && offset.is_multiple_of(4), "{offset:#x}");
        assert!(found.iter().all(|&(other, _)| other < offset), "a loop at {offset:#x}");
        let head = function.read(offset / 4);
        found.push((offset, head as u8));
        offset = (head >> 8 & 0xff) as u16;
    }
    assert_eq!(found.is_empty(), function.read(1) >> 20 & 1 == 0, "the status says so");
    found
}

fn set(function: &mut Function, register: u16, value: u32) {
    function.write(register / 4, value, u32::MAX);
}

fn read(function: &Function, register: u16) -> u32 {
    function.read(register / 4)
}

fn ranges(function: &Function) -> Vec<(usize, Range<u64>)> {
    let bars = function.bars();
    bars.iter().enumerate().filter_map(|(number, bar)| Some((number, bar.as_ref()?.range()))).collect()
}

#[test]
fn the_guest_sees_qemus_nvme() {
    let nvme = function(nvme());
    assert_eq!(read(&nvme, 0), 0x0010_1b36);
    assert_eq!(read(&nvme, 4), 0x0010_0000, "command is 0, whatever the real one is");
    assert_eq!(read(&nvme, 8), 0x0108_0202);
    assert_eq!(read(&nvme, 0xc), 0, "one function");
    assert_eq!(read(&nvme, 0x10), 4, "of 64 bits, at 0");
    assert_eq!(read(&nvme, 0x2c), 0x1100_1af4);
    assert_eq!(read(&nvme, 0x3c), 0, "no pin");
    assert_eq!(list(&nvme), [(0x40, id::MSIX)], "neither PCI Express nor power management");
    let words: Vec<u32> = [0x40, 0x44, 0x48].map(|register| read(&nvme, register)).into();
    assert_eq!(words, [0x0040_0011, 0x2000, 0x3000]);
    assert_eq!(nvme.vector_count(), 65);
    assert_eq!(nvme.trapped()[..], [Pages { bar: 0, offsets: 0x2000..0x4000 }]);
}

#[test]
fn the_guest_sees_the_vendors_part_of_virtio() {
    let net = function(virtio_net());
    let ids: Vec<u8> = list(&net).iter().map(|entry| entry.1).collect();
    assert_eq!(ids, [id::MSIX, id::VENDOR, id::VENDOR, id::VENDOR, id::VENDOR, id::VENDOR]);
    let parts: Vec<Vec<u32>> = list(&net)[1..]
        .iter()
        .map(|&(offset, _)| (0..4).map(|index| read(&net, offset + 4 * index) & !0xff00).collect())
        .collect();
    assert_eq!(parts[0], [0x0514_0009, 0, 0, 0]);
    assert_eq!(parts[1], [0x0214_0009, 4, 0, 0]);
    assert_eq!(parts[4][0], 0x0110_0009);
    assert_eq!(read(&net, list(&net)[2].0 + 8), 0x3000);
    assert_eq!(read(&net, list(&net)[2].0 + 16), 4, "the multiplier of the notifications");
    assert_eq!(read(&net, 0x14), 0);
    assert_eq!((read(&net, 0x20), read(&net, 0x24)), (0xc, 0));
}

#[test]
fn sizes_are_determined_by_writing_ones() {
    let mut net = function(virtio_net());
    for register in [0x10, 0x14, 0x18, 0x1c, 0x20, 0x24, 0x30] {
        set(&mut net, register, u32::MAX);
    }
    let sizes = [0x10, 0x14, 0x18, 0x1c, 0x20, 0x24, 0x30].map(|register| read(&net, register));
    assert_eq!(sizes, [0, 0xffff_f000, 0, 0, 0xffff_c00c, 0xffff_ffff, 0]);
    let mut large = function(Device::new(1234, 1, 0).bar64(2, 12, 0, 8 << 30));
    set(&mut large, 0x18, u32::MAX);
    set(&mut large, 0x1c, u32::MAX);
    assert_eq!((read(&large, 0x18), read(&large, 0x1c)), (12, 0xffff_fffe));
    set(&mut large, 0x1c, 0x80);
    assert_eq!((read(&large, 0x18), read(&large, 0x1c)), (12, 0x80), "the halves are independent");
}

#[test]
fn bars_are_decoded_inside_of_the_windows_only() {
    let mut nvme = function(nvme());
    set(&mut nvme, 0x10, 0xe000_0000);
    assert_eq!(ranges(&nvme), [], "memory is not decoded");
    set(&mut nvme, 4, 2);
    assert_eq!(ranges(&nvme), [(0, 0xe000_0000..0xe000_4000)]);
    for (address, is_inside) in [
        (0, false),
        (0xdfff_c000, false),
        (0xefff_c000, true),
        (0xf000_0000, false),
        (0x7f_ffff_c000, false),
        (0x80_0000_0000, true),
        (0x8f_ffff_c000, true),
        (0x90_0000_0000, false),
        (u64::MAX << 14, false),
    ] {
        set(&mut nvme, 0x10, address as u32);
        set(&mut nvme, 0x14, (address >> 32) as u32);
        let expected = if is_inside { std::vec![(0, address..address + 0x4000)] } else { std::vec![] };
        assert_eq!(ranges(&nvme), expected, "{address:#x}");
    }
    let window = Windows { low: 0x1000..0x3000, high: 0..0 };
    assert!(window.contain(0x1000, 0x2000) && !window.contain(0x1000, 0x2001));
    assert!(!window.contain(0xfff, 1) && !window.contain(0x3000, 0));
}

#[test]
fn bars_that_overlap_are_not_decoded() {
    let mut net = function(virtio_net());
    set(&mut net, 4, 2);
    set(&mut net, 0x20, 0xe000_0000);
    for (address, count) in
        [(0xe000_0000, 0), (0xe000_3000, 0), (0xe000_4000, 2), (0xe000_1000, 0), (0xd000_0000, 1)]
    {
        set(&mut net, 0x14, address);
        assert_eq!(ranges(&net).len(), count, "{address:#x}");
    }
}

#[test]
fn small_bars_have_a_page_for_themselves_and_are_not_mapped() {
    let mut small = function(Device::new(1234, 1, 0).bar(0, 0, 0xfebf_0100, 256));
    assert_eq!(small.bar_len(0), Some(4096));
    assert!(!small.place(0, 0xe000_0100) && small.place(0, 0xe000_1000));
    set(&mut small, 4, 2);
    let bar = small.bars()[0].unwrap();
    assert_eq!((bar.range(), bar.real_len, bar.is_mappable()), (0xe000_1000..0xe000_2000, 256, false));
    let mut nvme = function(nvme());
    nvme.place(0, 0xe000_0000);
    set(&mut nvme, 4, 2);
    assert!(nvme.bars()[0].unwrap().is_mappable());
}

#[test]
fn ports_and_roms_are_hidden() {
    let device = Device::new(1234, 1, 0)
        .bar(0, 1, 0xc000, 0x20)
        .bar(1, 0, 0xfebf_0000, 0x1000)
        .with(0x30, 0xfeb0_0001)
        .writable(0x30, 0xffff_0001);
    let mut function = function(device);
    for register in [0x10, 0x30] {
        assert_eq!(read(&function, register), 0);
        set(&mut function, register, u32::MAX);
        assert_eq!(read(&function, register), 0);
    }
    assert!(!function.place(0, 0xc000));
    set(&mut function, 4, u32::MAX);
    assert_eq!(read(&function, 4), 0x0406, "no ports to decode; no status to clear");
}

#[test]
fn vectors_need_msix_enabled_and_neither_mask() {
    let message = Message { address: 0xfee0_1000, data: 0x41 };
    let mut nvme = function(nvme());
    nvme.trapped_write(0, 0x2010, 8, message.address);
    nvme.trapped_write(0, 0x2018, 8, message.data.into());
    assert_eq!((nvme.vector(1), nvme.interrupts()), (None, Interrupts::Off));
    set(&mut nvme, 0x40, 0x8000_0000);
    assert_eq!((nvme.vector(1), nvme.interrupts()), (Some(message), Interrupts::Msix));
    assert_eq!((nvme.vector(0), nvme.vector(65)), (None, None), "masked after reset, absent");
    set(&mut nvme, 0x40, 0xc000_0000);
    assert_eq!(nvme.vector(1), None, "all are masked");
    set(&mut nvme, 0x40, 0x8000_0000);
    nvme.trapped_write(0, 0x201c, 4, 1);
    assert_eq!(nvme.vector(1), None, "this one is masked");
    nvme.trapped_write(0, 0x201c, 4, 0);
    set(&mut nvme, 0x40, 0x7ff);
    assert_eq!((nvme.vector(1), read(&nvme, 0x40)), (None, 0x0040_0011), "the size is not writable");
}

/// A function with MSI of a form, and its offset.
fn with_msi(control: u32) -> (Function, u16) {
    let function = function(Device::new(1234, 1, 0).capability(0x50, &[control << 16 | 5, 0, 0, 0, 0, 0]));
    let offset = list(&function)[0].0;
    assert_eq!(read(&function, offset), (control & 0x180) << 16 | 5, "one message");
    (function, offset)
}

#[test]
fn msi_has_its_four_forms() {
    for (control, high, data, mask) in [
        (0x00a, None, 8, None),
        (0x08a, Some(8), 12, None),
        (0x10a, None, 8, Some(12)),
        (0x18a, Some(8), 12, Some(16)),
    ] {
        let (mut function, at) = with_msi(control);
        for register in (at + 4..0x100).step_by(4) {
            set(&mut function, register, u32::MAX);
        }
        assert_eq!(read(&function, at + 4), 0xffff_fffc);
        assert_eq!(high.map(|high| read(&function, at + high)), high.map(|_| u32::MAX));
        assert_eq!(read(&function, at + data), 0xffff);
        assert_eq!(mask.map(|mask| read(&function, at + mask)), mask.map(|_| 1));
        let set_bits = (at + 4..0x100).step_by(4).filter(|&register| read(&function, register) != 0).count();
        assert_eq!(set_bits, 2 + usize::from(high.is_some()) + usize::from(mask.is_some()));
        set(&mut function, at, 1 << 16 | 7 << 20);
        assert_eq!(read(&function, at) >> 16, control & 0x180 | 1, "more messages cannot be enabled");
        let message = Message { address: if high.is_some() { !3 } else { 0xffff_fffc }, data: 0xffff };
        assert_eq!(function.vector(0), if mask.is_some() { None } else { Some(message) });
        if let Some(mask) = mask {
            for (bits, expected) in [(2, Some(message)), (1, None), (0, Some(message))] {
                set(&mut function, at + mask, bits);
                assert_eq!(function.vector(0), expected, "{bits}");
            }
        }
        assert_eq!((function.vector(1), function.vector_count()), (None, 1));
        assert_eq!(function.interrupts(), Interrupts::Msi);
        set(&mut function, at, 0);
        assert_eq!((function.vector(0), function.interrupts()), (None, Interrupts::Off));
    }
}

#[test]
fn msix_counts_if_both_are_enabled() {
    let mut both = function(nvme().capability(0xc0, &[5, 0, 0]));
    assert_eq!(list(&both), [(0x40, id::MSIX), (0x4c, id::MSI)]);
    set(&mut both, 0x4c, 1 << 16);
    assert_eq!(both.vector(0), Some(Message { address: 0, data: 0 }));
    set(&mut both, 0x40, 1 << 31);
    assert_eq!((both.interrupts(), both.vector(0)), (Interrupts::Msix, None));
    assert_eq!(both.vector_count(), 65);
}

#[test]
fn the_pin_is_shown_if_it_is_asked_for() {
    let mut nvme = function(nvme());
    nvme.show_pin(1, 11);
    assert_eq!((read(&nvme, 0x3c), nvme.interrupts()), (0x010b, Interrupts::Intx));
    set(&mut nvme, 0x3c, u32::MAX);
    assert_eq!(read(&nvme, 0x3c), 0x01ff, "the line is writable");
    set(&mut nvme, 4, 1 << 10);
    assert_eq!(nvme.interrupts(), Interrupts::Off);
    nvme.reset();
    assert_eq!((read(&nvme, 0x3c), nvme.interrupts()), (0x010b, Interrupts::Intx));
    for pin in [0, 5] {
        let mut nvme = function(crate::mock::nvme());
        nvme.show_pin(pin, 11);
        assert_eq!(read(&nvme, 0x3c), 0);
    }
}

#[test]
fn a_table_that_is_nowhere_is_hidden() {
    for place in [[1, 0x3000], [0x2000, 6], [0x3c00, 0x3000], [0x2000, 0x2400], [0x2000, 0x3ff8]] {
        let device = Device::new(1234, 1, 0).bar64(0, 4, 0, 0x4000);
        let hidden = function(device.capability(0x40, &[0x0040_0011, place[0], place[1]]));
        assert_eq!(list(&hidden), [], "{place:x?}");
        assert_eq!((hidden.vector_count(), hidden.trapped().len()), (0, 0));
    }
}

#[test]
fn the_list_keeps_what_fits() {
    let mut device = Device::new(1234, 1, 0).capability(0xe0, &[0x0180_0005, 0, 0, 0, 0, 0]);
    for offset in 4..10 {
        device = device.capability(offset * 16, &[0x0010_0009, 1, 2, 3]);
    }
    assert_eq!(list(&function(device)).len(), 7);
    let mut device = Device::new(1234, 1, 0);
    for offset in [0x40, 0x60, 0x80, 0xa0, 0xc0] {
        device = device.capability(offset, &[0x0020_0009, 1, 2, 3, 4, 5, 6, 7]);
    }
    let large = device.capability(0xe0, &[0x0180_0005, 0, 0, 0, 0, 0]);
    let found = list(&function(large));
    assert_eq!(found.len(), 6);
    assert_eq!(found[0].1, id::MSI, "interrupts come first");
}

#[test]
fn reset_returns_to_power_on() {
    let mut net = function(virtio_net());
    assert!(net.place(1, 0xe000_0000) && !net.place(4, 0xe000_2000) && !net.place(1, 1 << 32));
    let all = |function: &Function| (0..64).map(|index| function.read(index)).collect::<Vec<_>>();
    let before = all(&net);
    for index in 0..64 {
        net.write(index, u32::MAX, u32::MAX);
    }
    net.trapped_write(1, 0, 8, 0xfee0_0000);
    net.trapped_write(1, 8, 8, 5);
    set(&mut net, 0x40, 1 << 31);
    assert!(net.vector(0).is_some() && all(&net) != before);
    net.reset();
    assert_eq!(all(&net), before);
    set(&mut net, 0x40, 1 << 31);
    assert_eq!(net.vector(0), None, "the table is masked");
    let (mut msi, _) = with_msi(0x180);
    let before = all(&msi);
    (0..64).for_each(|index| msi.write(index, u32::MAX, u32::MAX));
    assert!(all(&msi) != before);
    msi.reset();
    assert_eq!(all(&msi), before, "of MSI too");
}

#[test]
fn indices_beyond_the_space_are_hidden() {
    let mut nvme = function(nvme());
    for index in [64, 0x400, 0x4001, 0x8001, u16::MAX] {
        nvme.write(index, u32::MAX, u32::MAX);
        assert_eq!(nvme.read(index), 0);
    }
    nvme.write(1, 4, 0xff00);
    assert!(!nvme.is_bus_master(), "another byte was written");
}

#[test]
fn a_reset_by_the_guest_leaves_nothing_and_lasts_until_the_real_one_is_over() {
    let mut nvme = function(nvme());
    assert!(nvme.place(0, 0xe000_0000));
    nvme.show_reset();
    assert_eq!(list(&nvme), [(0x40, id::MSIX), (0x4c, id::ADVANCED_FEATURES)]);
    assert_eq!((read(&nvme, 0x4c) >> 16, read(&nvme, 0x50)), (0x0306, 0));
    for (register, value) in [(4, 6), (0x40, 1 << 31)] {
        set(&mut nvme, register, value);
    }
    let _ = nvme.trapped_write(0, 0x200c, 4, 0);
    assert!(nvme.vector(0).is_some() && !ranges(&nvme).is_empty());
    // Other bits, and other bytes, do nothing.
    set(&mut nvme, 0x50, !1);
    nvme.write(0x50 / 4, u32::MAX, 0xff00);
    assert!(!nvme.is_resetting());
    nvme.write(0x50 / 4, 1, 0xff);
    assert!(nvme.is_resetting() && !nvme.is_bus_master() && nvme.vector(0).is_none());
    assert_eq!((ranges(&nvme), nvme.interrupts()), (Vec::new(), Interrupts::Off));
    assert!((0..1024).all(|index| nvme.read(index) == u32::MAX), "it does not answer");
    set(&mut nvme, 4, 6);
    nvme.end_reset();
    let registers = [0, 4, 0x10, 0x14, 0x40, 0x50].map(|register| read(&nvme, register));
    assert_eq!(registers, [0x0010_1b36, 0x10_0000, 4, 0, 0x0040_4c11, 0]);
    nvme.write(0x50 / 4, 1, 1);
    nvme.reset();
    assert_eq!((nvme.is_resetting(), read(&nvme, 0x10)), (false, 0xe000_0004), "as firmware placed it");
    let mut full = function(Device::new(1234, 1, 0).capability(0x40, &[5]));
    (0..40).for_each(|_| full.show_reset());
    assert!(list(&full).len() < 40, "a list without room for it stays as it is");
}

#[test]
fn without_messages_the_table_is_trapped_all_the_same() {
    let machine = Machine::new([("00:04.0", nvme().capability(0xc0, &[0x0180_0005, 0, 0, 0, 0, 0]))]);
    let physical = Physical::read(&machine, at("00:04.0")).unwrap();
    let mut function = Function::without_messages(&physical, windows());
    assert_eq!(list(&function), []);
    assert_eq!(function.trapped()[..], [Pages { bar: 0, offsets: 0x2000..0x4000 }]);
    assert_eq!(function.trapped_write(0, 0x200c, 4, 0), Write::Vector(0));
    (0x40..0x100).step_by(4).for_each(|register| set(&mut function, register, u32::MAX));
    assert_eq!((function.interrupts(), function.vector(0)), (Interrupts::Off, None));
}
