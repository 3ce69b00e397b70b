//! The operations of x86-64 processors in a storm.
//!
//! Some operations are left out, because the guest is entitled to them and would end by them: power
//! off (ports 0x600, 0x604), reset (port 0xcf9, bit 2; port 0x64; port 0x92; the synthetic MSR),
//! INIT and start-up interrupts, vectors of exceptions, whose handlers expect another stack frame,
//! overlay pages on the program itself, SMEP and SMAP, because the program is in pages of ring 3,
//! and the descriptor tables.

use core::arch::x86_64::__cpuid_count;

use baremetal::x86_64::guarded::{rdmsr, wrmsr};
use baremetal::x86_64::interrupts::{self, Frame};
use baremetal::x86_64::serial::{CONSOLE, REPORTS};
use baremetal::x86_64::{apic, processors};
use hostile::allowed::ports;
use x86_64::instructions::port::Port;
use x86_64::registers::control::{Cr0, Cr4, Cr4Flags};

use super::walk::{RANGE, RANGES};
use crate::tests::attack;
use crate::tests::prelude::*;
use hostile::allowed::msrs;

const APIC_BASE: u32 = 0x1b;
const X2APIC_AND_ENABLED: u64 = 3 << 10;
const EFER: u32 = 0xc000_0080;
const GS_BASE: u32 = 0xc000_0101;
const TPR: u32 = 0x808;
const IOAPIC: u64 = 0xfec0_0000;
const IOAPIC_WINDOW: u64 = 0x10;
/// The first redirection entry's low half; each has two.
const IOAPIC_REDIRECTION: u32 = 0x10;
const IOAPIC_PINS: u32 = 24;
const IOAPIC_MASKED: u32 = 1 << 16;
/// The lowest vector above those of exceptions.
const VECTOR: u64 = 0x40;
/// Delivery modes, and those that do not reset any processor: fixed and NMI.
const MODE: u64 = 7 << 8;
const MODE_NMI: u64 = 4 << 8;
/// An address that the program does not use: after the memory of a small guest, and mapped.
const BEYOND: u64 = 3 << 30;
const SCRATCH_PAGES: usize = 16;
/// CR0.NW, and CR0.CD with it.
const NOT_WRITE_THROUGH: u64 = 1 << 29;
const CACHES: u64 = 3 << 29;

/// Pages that may be overlaid, and input and output of hypercalls.
static SCRATCH: [Page; SCRATCH_PAGES] = [const { Page::new() }; SCRATCH_PAGES];

/// Makes the program continue after any exception.
pub(crate) fn prepare() {
    interrupts::catch(on_exception);
}

/// Removes a breakpoint that was set at random.
fn on_exception(frame: &mut Frame) -> bool {
    if frame.vector() != 1 {
        return false;
    }
    // SAFETY: the program continues without breakpoints.
    unsafe { asm!("mov dr7, {}", in(reg) 0x400u64, options(nostack, preserves_flags)) };
    true
}

fn scratch(random: &mut Random) -> u64 {
    SCRATCH[random.below(SCRATCH_PAGES as u64) as usize].address()
}

/// Performs an operation of a kind below [`KINDS`](crate::tests::storm::KINDS), interrupts masked.
pub(crate) fn operation(kind: u64, random: &mut Random, number: usize) {
    match kind {
        0..=4 => write_msr(random),
        5 | 6 => port(random),
        7 | 8 => device(random),
        9 | 10 => hypercall(random),
        11 => control(random),
        12 => instruction(random),
        13 => {
            let target = processors::id(random.below(machine::count() as u64) as usize);
            match random.below(4) {
                0 => apic::send_nmi(target),
                _ => apic::send_fixed(target, VECTOR as u8 | random.word() as u8),
            }
        }
        14 if number != 0 => sleep(),
        _ => (0..random.below(64)).for_each(|_| core::hint::spin_loop()),
    }
}

/// Wakes sleepers, and masks a pin of the I/O APIC once the caller's own storm `is_over`: a sleeper
/// gets nothing but the interrupts of a level-triggered line that nobody releases any more. `turn`
/// counts the calls, which take one pin after the other.
pub(crate) fn look_after_sleepers(is_over: bool, turn: u64) {
    if is_over {
        store(IOAPIC, IOAPIC_REDIRECTION + 2 * (turn as u32 % IOAPIC_PINS));
        store(IOAPIC + IOAPIC_WINDOW, IOAPIC_MASKED | VECTOR as u32);
    }
    machine::wake_all();
}

/// Writes to a register in memory, if there is one.
fn store(address: u64, value: u32) {
    // SAFETY: the program uses nothing there.
    let _ = unsafe { guarded_asm!("mov [{}], {:e}"; in(reg) address, in(reg) value,) };
}

/// Makes the processor's own APIC deliver interrupts again, without timers. A timer whose period is
/// shorter than its handler would leave no time for anything else once interrupts are on.
fn open_apic() {
    for config in [0x4000_00b0, 0x4000_00b2, 0x4000_00b4, 0x4000_00b6] {
        // SAFETY: the synthetic timers are not in use.
        let _ = unsafe { wrmsr(config, 0) };
    }
    let base = rdmsr(APIC_BASE).unwrap_or(0);
    if base & X2APIC_AND_ENABLED != X2APIC_AND_ENABLED {
        for mode in [0, 2 << 10, X2APIC_AND_ENABLED] {
            // SAFETY: by legal steps to its previous mode.
            let _ = unsafe { wrmsr(APIC_BASE, base & !X2APIC_AND_ENABLED | mode) };
        }
    }
    apic::enable();
    // SAFETY: all priorities are admitted.
    let _ = unsafe { wrmsr(TPR, 0) };
    for _ in 0..256 {
        // Interrupts in service would hold others back.
        apic::end_of_interrupt();
    }
}

fn sleep() {
    open_apic();
    x86_64::instructions::interrupts::enable_and_hlt();
    interrupts::disable();
}

/// Restores the processor's own state, and on the first one the shared state.
pub(crate) fn put_in_order(number: usize) {
    open_apic();
    if number == 0 {
        CONSOLE.set_up();
        REPORTS.set_up();
        while CONSOLE.receive().is_some() {}
        // Removes overlay pages.
        for msr in [0x4000_0001, 0x4000_0021] {
            // SAFETY: they are not in use.
            let _ = unsafe { wrmsr(msr, 0) };
        }
    }
    for msr in [0x4000_0073, 0x4000_0082, 0x4000_0083] {
        // SAFETY: they are not in use.
        let _ = unsafe { wrmsr(msr, 0) };
    }
    // SAFETY: disables breakpoints; the timers are quiet.
    unsafe { asm!("mov dr7, {}", in(reg) 0x400u64, options(nostack, preserves_flags)) };
}

/// A harmless variant of a value for an MSR, if there is one.
fn harmless(number: u32, value: u64, random: &mut Random) -> Option<u64> {
    Some(match number {
        // RESET.
        0x4000_0003 => return None,
        APIC_BASE => rdmsr(number).unwrap_or(0) & !X2APIC_AND_ENABLED | value & X2APIC_AND_ENABLED,
        // Interrupt commands.
        0x830 | 0x4000_0071 => value & !(MODE | 0xff) | value & (0xff | MODE_NMI) | VECTOR,
        // Local vectors.
        0x832..=0x837 => value & !MODE | value & MODE_NMI | VECTOR,
        0x80f | 0x83f | 0x4000_0090..=0x4000_009f => value | VECTOR,
        0x4000_00b0 | 0x4000_00b2 | 0x4000_00b4 | 0x4000_00b6 => value | VECTOR << 4,
        // Pages that overlay the guest's.
        0x4000_0001 | 0x4000_0021 | 0x4000_0073 | 0x4000_0082 | 0x4000_0083 => {
            scratch(random) | value & (PAGE - 1)
        }
        _ => value,
    })
}

fn write_msr(random: &mut Random) {
    let number = match random.below(8) {
        0 => random.word() as u32,
        1 => RANGES[random.below(4) as usize] + random.below(RANGE.into()) as u32,
        _ => {
            let row = msrs::ROWS[random.below(msrs::ROWS.len() as u64) as usize];
            row.first + random.below(u64::from(row.last - row.first) + 1) as u32
        }
    };
    let any = value(random);
    let Some(value) = harmless(number, any, random) else { return };
    let old = rdmsr(number);
    // SAFETY: values that the program cannot cope with have been left out, or are reverted at once.
    let _ = unsafe { wrmsr(number, value) };
    let is_kept = msrs::find(number).is_some_and(|row| row.what == Kind::Kept);
    if let (EFER | GS_BASE, Ok(old)) = (number, old) {
        // SAFETY: it is the previous value.
        let _ = unsafe { wrmsr(number, old) };
    } else if number == APIC_BASE && is_kept {
        open_apic();
    }
}

fn port(random: &mut Random) {
    let port = match random.below(4) {
        0 => random.word() as u16,
        _ => {
            let row = ports::ROWS[random.below(ports::ROWS.len() as u64) as usize];
            row.first + random.below(u64::from(row.last - row.first) + 1) as u16
        }
    };
    let (size, is_write) = (random.below(3), random.one_in(2));
    let value = match port {
        0x5fd..=0x607 | 0x62..=0x64 | 0x8f..=0x92 if is_write => return,
        0xcf6..=0xcf9 if size != 2 => 0,
        _ => value(random) as u32,
    };
    // SAFETY: writes that would end the guest have been left out; no device writes to memory.
    unsafe {
        match (size, is_write) {
            (0, true) => Port::<u8>::new(port).write(value as u8),
            (1, true) => Port::<u16>::new(port).write(value as u16),
            (_, true) => Port::<u32>::new(port).write(value),
            (0, _) => drop(Port::<u8>::new(port).read()),
            (1, _) => drop(Port::<u16>::new(port).read()),
            _ => drop(Port::<u32>::new(port).read()),
        }
    }
}

/// Registers in memory, and unused addresses.
fn device(random: &mut Random) {
    let address = match random.below(4) {
        0 => IOAPIC + random.one_of([0, IOAPIC_WINDOW]),
        1 => IOAPIC + random.below(PAGE),
        2 => 0xfee0_0000 + (random.below(PAGE) & !0xf),
        _ => BEYOND + random.below(1 << 30),
    };
    let any = value(random) as u32;
    let is_ioapic = address - (address & (PAGE - 1)) == IOAPIC;
    // Redirection entries have vector and delivery mode at the same bits as commands.
    let value = match is_ioapic && address != IOAPIC {
        true => any & !0x7ff | any & 0x4ff | VECTOR as u32,
        false => any,
    };
    if random.one_in(2) {
        store(address, value);
    } else {
        // SAFETY: reading has no effect that the program cannot cope with.
        let _ = unsafe { guarded_asm!("mov {:e}, [{}]"; out(reg) _, in(reg) address,) };
    }
}

fn hypercall(random: &mut Random) {
    const CODES: [u64; 12] = [2, 3, 8, 0xb, 0x13, 0x14, 0x15, 0x57, 0x5c, 0x5d, 0x8001, 0];
    let page = &SCRATCH[random.below(SCRATCH_PAGES as u64) as usize];
    for word in page.words().iter().take(64) {
        // The word may contain the vector of an interrupt.
        word.store(value(random) | VECTOR, core::sync::atomic::Ordering::Relaxed);
    }
    let any = value(random);
    let control = match random.below(4) {
        0 => any,
        1 => random.one_of(CODES) | any & !0xffff,
        _ => random.one_of(CODES) | (any & 0xfff) << 32 | (any >> 12 & 0xfff) << 48 | (any >> 24 & 3) << 16,
    };
    let is_fast = control & 1 << 16 != 0;
    let input =
        if is_fast { value(random) | VECTOR } else { page.address() + random.one_of([0, 8, 0xff8, 4]) };
    let output = if is_fast { value(random) } else { scratch(random) };
    let _ = attack::hypercall(control, input, output);
}

/// Control and debug registers. The previous values are restored.
fn control(random: &mut Random) {
    let value = value(random);
    let cr0 = Cr0::read_raw();
    let cr4 = Cr4::read_raw();
    // Keeps SMEP and SMAP, and the translation mode.
    let kept = Cr4Flags::SUPERVISOR_MODE_EXECUTION_PROTECTION.bits()
        | Cr4Flags::SUPERVISOR_MODE_ACCESS_PREVENTION.bits();
    macro_rules! guard {
        ($text:expr; $value:expr) => {
            // SAFETY: the program runs with these values, or they are refused.
            _ = unsafe { guarded_asm!($text; value = in(reg) $value,) }
        };
    }
    match random.below(7) {
        0 => {
            // Paging and protected mode stay enabled; caches and write-through may be disabled. NW
            // without CD is not tried: an emulator accepts it, and refuses to continue with it at
            // the next VMRUN (docs/qemu.md).
            let value = if value & CACHES == NOT_WRITE_THROUGH { value | CACHES } else { value };
            guard!("mov cr0, {value}"; value & 0x7fff_fffe | 0x8000_0001);
            guard!("mov cr0, {value}"; cr0);
        }
        1 => {
            guard!("mov cr4, {value}"; value & !kept);
            guard!("mov cr4, {value}"; cr4);
        }
        6 => {
            guard!("mov cr8, {value}"; value & 0x1f);
            // Interrupts are not held off any longer.
            guard!("mov cr8, {value}"; 0u64);
        }
        2 => guard!("mov dr1, {value}"; value),
        3 => guard!("mov dr0, {value}"; value),
        4 => guard!("mov dr6, {value}"; value),
        _ => guard!("mov dr7, {value}"; value & 0xffff_ffff & !0xff),
    }
}

/// Instructions that are intercepted, or that a guest does not have.
fn instruction(random: &mut Random) {
    let any = value(random);
    macro_rules! guard {
        ($text:expr) => {
            // SAFETY: each faults or has no effect that the program cannot cope with.
            _ = unsafe {
                guarded_asm!($text;
                    inout("rax") any => _, inout("rcx") any >> 7 => _, inout("rdx") any >> 9 => _,)
            }
        };
    }
    match random.below(20) {
        0 => drop(__cpuid_count(any as u32, (any >> 32) as u32)),
        1 => guard!("invlpg [rax]"),
        2 => guard!("wbinvd"),
        3 => guard!("rdpmc"),
        4 => guard!("xsetbv"),
        5 => guard!("vmrun rax"),
        6 => guard!("vmload rax"),
        7 => guard!("vmsave rax"),
        8 => guard!("clgi"),
        9 => guard!("stgi"),
        10 => guard!("skinit eax"),
        11 => guard!("invlpga rax, ecx"),
        12 => guard!("monitor"),
        13 => guard!("mwait"),
        14 => guard!("rdtscp"),
        15 => guard!("clts"),
        16 => guard!("vmcall"),
        17 => guard!("rsm"),
        18 => guard!("rdpru"),
        _ => guard!("invd"),
    }
}
