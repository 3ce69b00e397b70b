//! The expansion ROM: read-only memory that comes, goes and moves by writes to configuration space.

use core::arch::asm;

use hostlink::rom::{self, DEVICE_ID, LEN, LINE, VENDOR_ID};

use super::io::IOAPIC_VERSION;
use super::prelude::*;
use super::{hypercalls, mmio};
use crate::pci::{COMMAND, COMMAND_MEMORY, DEVICE, ID, ROM, ROM_ENABLE, place_rom, word};

/// Addresses for the ROM, in the window of the bus.
pub(super) const PLACES: [u32; 2] = [0xe000_0000, 0xe7f0_0000];

/// Offset of a valid call's input in the image's header: a space, no flags, processor 5 alone.
pub(super) const INPUT: u64 = 8;

/// Offset in the image of the first word that a read at `base` finds changed.
fn first_wrong(base: u32) -> Option<u32> {
    (0..LEN / LINE).find_map(|index| {
        let address = base + index * LINE;
        let mut line = [0; LINE as usize];
        for (part, offset) in line.chunks_exact_mut(8).zip((0..).step_by(8)) {
            part.copy_from_slice(&word(u64::from(address) + offset).to_le_bytes());
        }
        rom::first_wrong(LEN, index * LINE, &line)
    })
}

/// Whether nothing is visible at `base`: checks each page.
fn is_away(base: u32) -> bool {
    (0..LEN).step_by(PAGE as usize).all(|offset| word(u64::from(base + offset + offset / 512)) == u64::MAX)
}

/// The ROM is visible at the address in the registers, and nowhere else.
pub(super) fn rom_follows_writes() -> Verdict {
    let id = DEVICE.read(ID);
    ensure!(id == u32::from(VENDOR_ID) | u32::from(DEVICE_ID) << 16, "the device's id is {id:#x}");
    DEVICE.write(ROM, !ROM_ENABLE);
    let len = (DEVICE.read(ROM) & !ROM_ENABLE).wrapping_neg();
    ensure!(len == LEN, "the ROM takes {len:#x} bytes");
    let result = shown_and_hidden().and_then(|()| moved()).and_then(|()| not_written());
    DEVICE.write(COMMAND, COMMAND_MEMORY);
    place_rom(None);
    result
}

/// The conditions that show and hide the ROM at one address.
fn shown_and_hidden() -> Verdict {
    let base = PLACES[0];
    let show: [fn(); 3] = [
        || place_rom(Some(PLACES[0])),
        || DEVICE.write_part(ROM, 1, 0, ROM_ENABLE),
        || DEVICE.write(COMMAND, COMMAND_MEMORY),
    ];
    let hide: [fn(); 3] =
        [|| DEVICE.write(ROM, PLACES[0]), || DEVICE.write_part(ROM, 1, 0, 0), || DEVICE.write(COMMAND, 0)];
    for (show, hide) in show.into_iter().zip([hide[0], hide[2], hide[1]]) {
        ensure!(is_away(base), "there is something where the ROM is to be");
        show();
        let wrong = first_wrong(base);
        ensure!(wrong.is_none(), "the ROM is wrong at {:#x}", wrong.unwrap_or(0));
        let (before, behind) = (word(u64::from(base) - 8), word(u64::from(base + LEN)));
        ensure!((before, behind) == (u64::MAX, u64::MAX), "before and behind it: {before:#x}, {behind:#x}");
        hide();
    }
    ensure!(is_away(base), "the ROM stays");
    Ok(())
}

/// It moves in one step; where something else is mapped it is not visible.
fn moved() -> Verdict {
    place_rom(Some(PLACES[0]));
    for (&from, &to) in PLACES.iter().zip([PLACES[1], PLACES[0]].iter()) {
        ensure!(first_wrong(from).is_none(), "the ROM is not at {from:#x}");
        place_rom(Some(to));
        ensure!(is_away(from), "the ROM is seen at {from:#x}, from where it has moved");
        ensure!(first_wrong(to).is_none(), "the ROM is not at {to:#x}, to where it has moved");
    }
    static MEMORY: Page = Page::new();
    MEMORY.write(&[0x1234_5678_9abc_def0]);
    for place in [MEMORY.address() as u32 & !(LEN - 1), IOAPIC as u32, 0xc000_0000, 0xf000_0000, 0xfffc_0000]
    {
        place_rom(Some(place));
        ensure!(DEVICE.read(ROM) == place | ROM_ENABLE, "the register does not take {place:#x}");
        ensure!(is_away(PLACES[0]), "the ROM stays when it is put at {place:#x}");
        let seen = word(MEMORY.address());
        ensure!(seen == 0x1234_5678_9abc_def0, "memory holds {seen:#x} with the ROM at {place:#x}");
        ensure!(mmio::register(1) == IOAPIC_VERSION, "the I/O APIC is gone with the ROM at {place:#x}");
    }
    place_rom(Some(PLACES[0]));
    ensure!(first_wrong(PLACES[0]).is_none(), "the ROM does not come back");
    Ok(())
}

/// Stores of all kinds leave it unchanged, and have the same results as on memory.
fn not_written() -> Verdict {
    let base = u64::from(PLACES[0]);
    let line = rom::line(LEN, 0x1000 / LINE);
    let mut rax = u64::from_le_bytes(*line.first_chunk().unwrap_or(&[0; 8]));
    let old = rax;
    // SAFETY: the ROM is there, and stores do not change it.
    unsafe {
        asm!(
            "mov byte ptr [{base}], 1", "mov [{base} + 2], ax", "mov dword ptr [{base} + 4], 2",
            "lock add qword ptr [{base} + 8], 3",
            "mov rdi, {base}", "mov ecx, 100", "rep stosq",
            "xchg [{base}], rax",
            base = in(reg) base + 0x1000, inout("rax") rax, out("rdi") _, out("rcx") _,
        );
    }
    ensure!(rax == old, "an exchange with the ROM gives {rax:#x}, not {old:#x}");
    let wrong = first_wrong(PLACES[0]);
    ensure!(wrong.is_none(), "stores have changed the ROM at {:#x}", wrong.unwrap_or(0));
    input_in_rom(base)
}

/// A call with input in the ROM is like any other, to its last byte, and not after it (H5, H6).
fn input_in_rom(base: u64) -> Verdict {
    enable()?;
    let inside = call(hypercalls::space(), base + INPUT, 0);
    ensure!(inside == Ok(HvResult::of(Status::SUCCESS, 0)), "a call with input in the ROM: {inside:?}");
    let last = call(hypercalls::space(), base + u64::from(LEN) - 24, 0);
    ensure!(matches!(last, Ok(result) if result.status_code() != 0), "a call with text for flags: {last:?}");
    let behind = call(hypercalls::space(), base + u64::from(LEN), 0);
    ensure!(behind == Err(Fault::PROTECTION), "a call with input behind the ROM: {behind:?}");
    place_rom(None);
    let away = call(hypercalls::space(), base + INPUT, 0);
    ensure!(away == Err(Fault::PROTECTION), "a call with input where the ROM was: {away:?}");
    Ok(())
}
