//! The operations of Arm64 processors in a storm, with interrupts masked all the time: a sleeper
//! polls for pending interrupts.
//!
//! Some operations are left out, because the guest is entitled to them and would end by them:
//! SYSTEM_OFF, SYSTEM_RESET and CPU_OFF, registers that the program depends on (those marked as
//! kept in the table, and parts of SCTLR_EL1, MAIR_EL1 and PSTATE), data cache instructions on the
//! program, and writes to the serial port's data register, which the host reads.

use baremetal::aarch64::gic;
use baremetal::aarch64::interrupts::{self, Frame};
use baremetal::aarch64::serial::CONSOLE;
use baremetal::guarded;
use hostile::allowed::sysregs::{self, ROWS};

use super::call;
use super::code::{self, Name};
use crate::tests::prelude::*;

/// Devices: distributor, the first redistributor, serial port; and the ranges that are tried.
const GICD: u64 = 0x0800_0000;
const GICR: u64 = 0x080a_0000;
const UART: u64 = 0x0900_0000;
const GICR_SIZE: u64 = 0x2_0000;
/// The virtual timer's interrupt.
const TIMER: u64 = 27;
/// Number of words of 32 shared interrupts.
const SHARED_WORDS: u64 = 32;
/// Functions of PSCI and of the SMC calling convention, by their low bits; CPU_OFF, SYSTEM_OFF,
/// SYSTEM_RESET and SYSTEM_RESET2 are left out.
const FUNCTIONS: [u64; 12] = [0, 1, 3, 4, 5, 6, 7, 0xa, 0xc, 0xe, 0x10, 0x1f];
const FORBIDDEN: [u64; 4] = [2, 8, 9, 0x12];

static SCRATCH: Page = Page::new();

/// Makes the program continue after any exception.
pub(crate) fn prepare() {
    interrupts::catch(on_exception);
}

/// Removes breakpoints, watchpoints and steps that were set at random; ignores SErrors and FIQs.
fn on_exception(frame: &mut Frame) -> bool {
    let is_debug = matches!(frame.syndrome() >> 26 & 0x3f, 0x30..=0x35);
    // SAFETY: MDSCR_EL1: the program continues without debug exceptions.
    unsafe { asm!("msr mdscr_el1, xzr", "isb", options(nostack, preserves_flags)) };
    frame.vector() > 4 || is_debug
}

/// Performs an operation of a kind below [`KINDS`](crate::tests::storm::KINDS), interrupts masked.
pub(crate) fn operation(kind: u64, random: &mut Random, number: usize) {
    match kind {
        0..=4 => register(random),
        5 | 6 => instruction(random),
        7..=10 => device(random),
        11 | 12 => call(random, number),
        13 => {
            let target = random.below(machine::count() as u64) as usize;
            gic::send(processors::id(target), random.word() as u8 & 15);
        }
        14 if number != 0 => sleep(),
        _ => (0..random.below(64)).for_each(|_| clock::relax()),
    }
}

/// Wakes sleepers. Any processor may have disabled the distributor's groups. No sleeper takes
/// interrupts, so no line that stays asserted can keep one.
pub(crate) fn look_after_sleepers(_is_over: bool, _turn: u64) {
    let _ = gic::enable_distributor();
    machine::wake_all();
}

/// Ends pending interrupts.
fn drain() {
    for _ in 0..32 {
        let id: u64;
        // SAFETY: ICC_IAR1_EL1, and ICC_EOIR1_EL1 and ICC_DIR_EL1 of the acknowledged interrupt.
        unsafe {
            asm!("mrs {id}, s3_0_c12_c12_0", "msr s3_0_c12_c12_1, {id}", "msr s3_0_c12_c11_1, {id}", "isb",
                id = out(reg) id, options(nostack, preserves_flags));
        }
        if id as u32 >= gic::SPECIAL {
            break;
        }
    }
}

fn quiet_timers() {
    // SAFETY: these timers are not in use.
    unsafe {
        asm!("msr cntv_ctl_el0, xzr", guarded!("msr cntp_ctl_el0, xzr"), "isb",
            inout("x16") 0u64 => _, inout("x17") 0u64 => _, options(nostack, preserves_flags));
    }
}

/// Sleeps, with a timer, in case no other processor wakes it.
fn sleep() {
    open_interface();
    clock::set_timer(500);
    // SAFETY: a masked interrupt ends it.
    unsafe { asm!("dsb sy", "wfi", options(nostack, preserves_flags)) };
    quiet_timers();
    drain();
}

/// Makes the processor's interface show interrupts again, and its redistributor those that wake it.
fn open_interface() {
    let own = GICR + machine::number() as u64 * GICR_SIZE + 0x1_0000;
    for intid in [u64::from(interrupts::WAKE), TIMER] {
        // IPRIORITYR; group 1, not active, enabled.
        store(own + 0x400 + intid, 0, 0);
        store(own + 0x80, 0xffff_ffff, 2);
        store(own + 0x380, 1 << intid, 2);
        store(own + 0x100, 1 << intid, 2);
    }

    // SAFETY: ICC_AP0R0_EL1, ICC_AP1R0_EL1: nothing is active; ICC_IGRPEN0_EL1.
    unsafe {
        asm!(
            "msr s3_0_c12_c8_4, xzr",
            "msr s3_0_c12_c9_0, xzr",
            "msr s3_0_c12_c12_6, xzr",
            "isb",
            options(nostack, preserves_flags)
        );
    }
    let _ = gic::enable();
    quiet_timers();
}

fn store(address: u64, value: u64, size: u64) {
    macro_rules! store {
        ($text:literal) => {
            // SAFETY: the address is a device's, unused, or scratch.
            unsafe { guarded_asm!($text; address = in(reg) address, value = in(reg) value,) }
        };
    }
    let _ = match size {
        0 => store!("strb {value:w}, [{address}]"),
        1 => store!("strh {value:w}, [{address}]"),
        2 => store!("str {value:w}, [{address}]"),
        _ => store!("str {value}, [{address}]"),
    };
}

fn load(address: u64, size: u64) {
    macro_rules! load {
        ($text:literal) => {
            // SAFETY: reading has no effect that the program cannot cope with.
            unsafe { guarded_asm!($text; address = in(reg) address, value = out(reg) _,) }
        };
    }
    let _ = match size {
        0 => load!("ldrb {value:w}, [{address}]"),
        1 => load!("ldrh {value:w}, [{address}]"),
        2 => load!("ldr {value:w}, [{address}]"),
        _ => load!("ldr {value}, [{address}]"),
    };
}

/// Disables 32 interrupts, of which none pends or is active then: ICENABLER, ICPENDR, ICACTIVER.
fn clear(frame: u64) {
    [0x180, 0x280, 0x380].into_iter().for_each(|register| store(frame + register, 0xffff_ffff, 2));
}

/// Restores the processor's own state, and on the first one the shared state.
pub(crate) fn put_in_order(number: usize) {
    if number == 0 {
        for word in 1..SHARED_WORDS {
            clear(GICD + 4 * word);
        }
        let _ = gic::enable_distributor();
        CONSOLE.set_up();
        while CONSOLE.receive().is_some() {}
    }
    let own = GICR + number as u64 * GICR_SIZE + 0x1_0000;
    clear(own);
    // SAFETY: MDSCR_EL1: no debug exceptions; ICC_CTLR_EL1 is set with the rest.
    unsafe { asm!("msr mdscr_el1, xzr", "isb", options(nostack, preserves_flags)) };
    open_interface();
    drain();
    clear(own);
    open_interface();
}

/// A register of the table, with this kind of op0, or any register.
fn name(random: &mut Random, is_instruction: bool) -> Name {
    let op0 = if is_instruction { 1 } else { 2 + random.below(2) as u32 };
    if random.one_in(4) {
        return Name::of(op0, random.word() as u32 & 0x3fff);
    }
    loop {
        let row = &ROWS[random.below(ROWS.len() as u64) as usize];
        if (row.kind == Kind::Instruction) == is_instruction {
            let encodings = row.encodings();
            let wanted = random.below(encodings.clone().count() as u64) as usize;
            return Name(encodings.clone().nth(wanted).unwrap_or_default());
        }
    }
}

fn register(random: &mut Random) {
    let name = name(random, false);
    code::put([code::read(name), code::write(name)].into_iter());
    // SAFETY: reading has no effect that the program cannot cope with.
    let old = unsafe { code::execute(0, 0) }.unwrap_or(0);
    let any = value(random);
    let row = sysregs::find(name.0);
    let value = match row.map_or("", |row| row.name) {
        // The table has the bits that may change.
        "SCTLR_EL1" | "MAIR_EL1" | "PAN" | "UAO" | "DIT" | "SSBS" | "TCO" => match row.map(|row| row.kind) {
            Some(Kind::Own(mask)) => old ^ (any & mask),
            _ => old,
        },
        // A bit above the field makes QEMU's binary point 0, and abort (docs/qemu.md).
        "ICC_BPR0_EL1" | "ICC_BPR1_EL1" => any & 7,
        "DAIF" => return,
        _ if row.is_some_and(|row| row.kind == Kind::Kept) => return,
        _ => any,
    };
    // SAFETY: values that the program cannot cope with have been left out.
    let _ = unsafe { code::execute(1, value) };
}

fn instruction(random: &mut Random) {
    let name = name(random, true);
    let [_, _, crn, crm, _] = sysregs::fields(name.0);
    // TLB maintenance and translation use any address; cache maintenance that of scratch.
    let is_of_cache = !(matches!(crn, 8 | 9) || crn == 7 && matches!(crm, 8 | 9));
    let operand = if is_of_cache { SCRATCH.address() } else { value(random) };
    code::put([code::write(name), code::read(name)].into_iter());
    // SAFETY: as above; undefined encodings fault.
    let _ = unsafe { code::execute(random.below(2) as usize, operand) };
}

/// Registers in memory, and unused addresses.
fn device(random: &mut Random) {
    let (count, size) = (machine::count() as u64, random.below(4));
    let (base, length) = match random.below(8) {
        0..=2 => (GICD, 0x1_0000),
        3..=5 => (GICR, count * GICR_SIZE),
        6 => (UART, 0x1000),
        _ => (0, GICD),
    };
    let near = if random.one_in(2) { length.min(0x1000) } else { length };
    let address = base + (random.below(near) & !((1 << size) - 1));
    match random.one_in(2) {
        // The serial port's data register.
        true if address & !7 == UART => {}
        true => store(address, value(random), size),
        false => load(address, size),
    }
}

/// HVC or SMC.
fn call(random: &mut Random, number: usize) {
    let any = value(random);
    let function = match random.below(4) {
        0 => any,
        1 => 0x8000_0000 | any & 0xff,
        _ => 0x8400_0000 | (any & 1) << 30 | random.one_of(FUNCTIONS),
    };
    let is_psci = function as u32 & 0xbf00_0000 == 0x8400_0000;
    if is_psci && (FORBIDDEN.contains(&(function & 0xffff)) || number == 0 && function & 0xffff == 1) {
        return;
    }
    if is_psci && function & 0xffff == 1 {
        // CPU_SUSPEND waits as WFI does.
        open_interface();
        clock::set_timer(500);
    }
    let (first, second, third) = (value(random), value(random), value(random));
    let arguments = [function, first, second, third];
    match random.below(4) {
        0 => call!("smc #0", arguments),
        1 => call!("hvc #1", arguments),
        _ => call!("hvc #0", arguments),
    }
    if is_psci && function & 0xffff == 1 {
        quiet_timers();
        drain();
    }
}
