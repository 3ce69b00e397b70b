//! Ports and addresses, with and without devices.

use core::arch::asm;

use super::mmio::{Strung, register, string};
use super::prelude::*;

/// Ports without a device: DMA, interrupt controllers, next to the timer, keyboard, next to the
/// clock, progress, the ports before and after PCI's, the second half of a word port, and the last.
const UNKNOWN_PORTS: [u16; 14] =
    [0x00, 0x20, 0x21, 0x3f, 0x44, 0x60, 0x62, 0x6f, 0x72, 0x80, 0xcf4, 0xd00, 0x3f6, 0xffff];

/// The first serial port's scratch register.
const SCRATCH: u16 = 0x3ff;

/// RAX after `IN` of this many bytes, with a value other than all ones before.
fn input(port: u16, size: u32) -> u64 {
    let mut rax = 0x0123_4567_89ab_cdef_u64;
    // SAFETY: there are no devices at the ports, so reading has no effect.
    unsafe {
        match size {
            1 => asm!("in al, dx", inout("rax") rax, in("dx") port),
            2 => asm!("in ax, dx", inout("rax") rax, in("dx") port),
            _ => asm!("in eax, dx", inout("rax") rax, in("dx") port),
        }
    }
    rax
}

/// A port without a device reads as all ones, in as many bits as are read, and accepts writes.
pub(super) fn unknown_port() -> Verdict {
    let wanted = [(1, 0x0123_4567_89ab_cdff), (2, 0x0123_4567_89ab_ffff), (4, 0xffff_ffff)];
    for port in UNKNOWN_PORTS {
        for (size, wanted) in wanted {
            let rax = input(port, size);
            ensure!(rax == wanted, "{size} bytes of port {port:#x}: RAX is {rax:#x}");
        }
        // SAFETY: there is no device at the port.
        unsafe {
            Port::new(port).write(0x5au8);
            Port::new(port).write(0x5a5au16);
            Port::new(port).write(0x5a5a_5a5au32);
        }
    }
    Ok(())
}

/// One string instruction on a port, with RSI and RDI = `index` and RCX = `count`.
macro_rules! port_string {
    ($instruction:expr, $port:expr, $index:expr, $count:expr) => {
        string!($instruction, $port, $index, $index, $count, 0u64)
    };
}

static BUFFER: Page = Page::new();

fn byte(index: u64) -> u8 {
    let word = &BUFFER.words()[(index / 8) as usize];
    word.load(core::sync::atomic::Ordering::Relaxed).to_le_bytes()[(index % 8) as usize]
}

fn fill(value: u8) {
    BUFFER.write(&[u64::from_le_bytes([value; 8]); 512]);
}

/// INS and OUTS, single and repeated: data, index, count, direction, and faults.
pub(super) fn string_io() -> Verdict {
    let buffer = BUFFER.address();
    fill(0xa5);
    port_string!("outsb", SCRATCH, buffer, 7u64).expect("OUTSB", buffer + 1, buffer, 7)?;
    let read = input(SCRATCH, 1) as u8;
    ensure!(read == 0xa5, "OUTSB wrote {read:#x}");

    // More than a hypervisor processes at once.
    fill(0x11);
    let repeated = port_string!("rep insb", SCRATCH, buffer + 8, 1000u64);
    repeated.expect("REP INSB", buffer + 8, buffer + 1008, 0)?;
    let (first, last) = (byte(8), byte(1007));
    ensure!((first, last) == (0xa5, 0xa5), "REP INSB stored {first:#x} to {last:#x}");
    ensure!((byte(7), byte(1008)) == (0x11, 0x11), "REP INSB stored out of bounds");

    port_string!("rep outsb", SCRATCH, buffer, 0u64).expect("REP OUTSB of nothing", buffer, buffer, 0)?;

    fill(0x3c);
    let down = port_string!("std\nrep outsb\ncld", SCRATCH, buffer + 99, 100u64);
    down.expect("REP OUTSB downwards", buffer.wrapping_sub(1), buffer + 99, 0)?;
    ensure!(input(SCRATCH, 1) as u8 == 0x3c, "REP OUTSB downwards wrote something else");

    fill(0);
    port_string!("rep insd", 0xcf4u16, buffer, 3u64).expect("REP INSD", buffer, buffer + 12, 0)?;
    ensure!((byte(0), byte(11), byte(12)) == (0xff, 0xff, 0), "REP INSD of no device is not all ones");

    string_faults()?;

    // ESI and ECX: the upper halves are ignored, and cleared.
    let narrow = port_string!(".byte 0x67, 0xf3, 0x6e", SCRATCH, buffer | 5 << 32, 0x5_0000_0002u64);
    narrow.expect("REP OUTSB with 32-bit addresses", buffer + 2, buffer | 5 << 32, 0)?;
    string_segments()
}

/// OUTS from other segments: in 64-bit code FS alone has a base. INS always stores to ES.
fn string_segments() -> Verdict {
    const FS_BASE: u32 = 0xc000_0100;
    const BASE: u64 = 64;
    let buffer = BUFFER.address();
    let words: [u64; 512] = core::array::from_fn(|word| u64::from_le_bytes([word as u8; 8]));
    BUFFER.write(&words);
    // SAFETY: only the instructions below use FS.
    let set_base = |base| unsafe { wrmsr(FS_BASE, base) };
    ensure!(set_base(BASE).is_ok(), "FS has no base");
    let outs = [
        (
            "FS",
            port_string!(".byte 0x64, 0x6e", SCRATCH, buffer, 0u64),
            input(SCRATCH, 1) as u8,
            (BASE / 8) as u8,
        ),
        ("ES", port_string!(".byte 0x26, 0x6e", SCRATCH, buffer + 8, 0u64), input(SCRATCH, 1) as u8, 1),
        ("SS", port_string!(".byte 0x36, 0x6e", SCRATCH, buffer + 16, 0u64), input(SCRATCH, 1) as u8, 2),
    ];
    let into = port_string!(".byte 0x64, 0x6c", SCRATCH, buffer + 24, 0u64);
    ensure!(set_base(0).is_ok(), "FS keeps its base");
    for (segment, out, read, wanted) in outs {
        ensure!(out.fault.is_ok(), "OUTSB from {segment}: {:x?}", out.fault);
        ensure!(read == wanted, "OUTSB from {segment} wrote {read:#x} instead of {wanted:#x}");
    }
    ensure!(into.fault.is_ok(), "INSB with an FS prefix: {:x?}", into.fault);
    let (there, elsewhere) = (byte(24), byte(24 + BASE));
    ensure!((there, elsewhere) == (2, 11), "INSB with an FS prefix stored {there:#x} and {elsewhere:#x}");
    Ok(())
}

/// A string instruction that reaches an absent page stops there with #PF.
fn string_faults() -> Verdict {
    const ABSENT_WRITE: Fault = Fault { vector: 14, error: 2 };
    paging::map(0, Some(&BUFFER));
    paging::map(1, None);
    let edge = WINDOW + PAGE;
    fill(0);
    let across = port_string!("rep insb", SCRATCH, edge - 2, 5u64);
    ensure!(across.fault == Err(ABSENT_WRITE), "REP INSB across the edge: {:?}", across.fault);
    ensure!(
        (across.destination, across.left) == (edge, 3),
        "REP INSB across the edge: index or count is wrong"
    );
    let cr2 = x86_64::registers::control::Cr2::read_raw();
    ensure!(cr2 == edge, "CR2 is {cr2:#x} instead of {edge:#x}");
    let split = port_string!("insd", 0xcf4u16, edge - 2, 0u64);
    ensure!(split.fault == Err(ABSENT_WRITE), "INSD across the edge: {:?}", split.fault);
    let written = byte(PAGE - 2);
    ensure!(written == 0x3c, "INSD that faults stored a part: {written:#x}");
    paging::map(0, None);
    Ok(())
}

/// An address without memory or device: above every machine's RAM, and below the devices.
pub(super) const HOLE: u64 = 0xd000_0000;
pub(super) const IOAPIC: u64 = 0xfec0_0000;
/// The version register of an I/O APIC with 24 pins.
pub(super) const IOAPIC_VERSION: u32 = 0x0017_0020;

/// One load into a RAX that was 0x0123456789abcdef.
macro_rules! load {
    ($instruction:expr, $address:expr) => {{
        let mut rax = 0x0123_4567_89ab_cdef_u64;
        // SAFETY: there is no memory at the address.
        unsafe { asm!($instruction, inout("rax") rax, in("rdi") $address) };
        rax
    }};
}

/// At unused addresses loads give all ones and stores are lost; the I/O APIC is at its address.
pub(super) fn mmio_hole() -> Verdict {
    let loads: [(&str, u64, u64); 8] = [
        ("mov al", load!("mov al, [rdi]", HOLE), 0x0123_4567_89ab_cdff),
        ("mov ah", load!("mov ah, [rdi]", HOLE), 0x0123_4567_89ab_ffef),
        ("mov ax", load!("mov ax, [rdi]", HOLE + 1), 0x0123_4567_89ab_ffff),
        ("mov eax", load!("mov eax, [rdi]", HOLE), 0xffff_ffff),
        ("mov rax", load!("mov rax, [rdi + 8]", HOLE), u64::MAX),
        ("movzx eax", load!("movzx eax, byte ptr [rdi]", HOLE), 0xff),
        ("movsx rax", load!("movsx rax, word ptr [rdi]", HOLE), u64::MAX),
        ("movsxd rax", load!("movsxd rax, dword ptr [rdi]", HOLE), u64::MAX),
    ];
    for (name, value, wanted) in loads {
        ensure!(value == wanted, "{name} from nothing: RAX is {value:#x}");
    }
    let nothing = HOLE as *mut u32;
    // SAFETY: there is no memory at the address, so nothing changes.
    let after = unsafe {
        asm!("mov byte ptr [{0}], 0x12", "mov qword ptr [{0}], 0x12345678", in(reg) nothing);
        nothing.write_volatile(0x1234_5678);
        nothing.read_volatile()
    };
    ensure!(after == u32::MAX, "a store to nothing is read back as {after:#x}");
    let (id, version) = (register(0), register(1));
    ensure!(id & 0xf0ff_ffff == 0, "the I/O APIC's id register is {id:#x}");
    ensure!(version == IOAPIC_VERSION, "the I/O APIC's version register is {version:#x}");
    Ok(())
}
