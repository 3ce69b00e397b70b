//! The real machine's local APICs and its I/O APIC.
//!
//! Source: AMD64 APM volume 2, chapter 16. Both register interfaces are driven: x2APIC where CPUID
//! has it, memory-mapped otherwise (QEMU's emulation offers no x2APIC before version 9).

use core::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use x86_64::registers::model_specific::Msr;

use super::interrupts::VECTOR_SPURIOUS;

const MSR_APIC_BASE: u32 = 0x1b;
const APIC_BASE_X2APIC: u64 = 1 << 10;
const APIC_BASE_ENABLE: u64 = 1 << 11;
const APIC_BASE_ADDRESS: u64 = 0x000f_ffff_ffff_f000;
const MSR_X2APIC: u32 = 0x800;

const REG_EOI: u32 = 0x0b;
const REG_SPURIOUS: u32 = 0x0f;
const REG_ICR: u32 = 0x30;
const REG_ICR_HIGH: u32 = 0x31;
const REG_LVT_TIMER: u32 = 0x32;
const REG_LVT_LINT0: u32 = 0x35;
const REG_LVT_LINT1: u32 = 0x36;
const REG_LVT_ERROR: u32 = 0x37;
const REG_TIMER_INITIAL: u32 = 0x38;
const REG_TIMER_CURRENT: u32 = 0x39;
const REG_TIMER_DIVIDE: u32 = 0x3e;

const SPURIOUS_ENABLE: u32 = 1 << 8;
const LVT_MASKED: u32 = 1 << 16;
const LVT_TSC_DEADLINE: u32 = 2 << 17;
const ICR_BUSY: u32 = 1 << 12;
const ICR_LEVEL_ASSERT: u32 = 1 << 14;
const DIVIDE_BY_1: u32 = 0b1011;
/// Reads of the busy bit before an IPI is declared stuck.
const ICR_TRIES: u32 = 1 << 24;

static X2APIC: AtomicBool = AtomicBool::new(false);
static BASE: AtomicU64 = AtomicU64::new(0);

/// Finds out which interface there is. Call on the boot CPU before the page tables are built;
/// returns the physical address of the register page if it needs mapping.
pub(crate) fn probe(has_x2apic: bool) -> Option<u64> {
    // SAFETY: every CPU that runs us has this MSR.
    let base = unsafe { Msr::new(MSR_APIC_BASE).read() };
    BASE.store(base & APIC_BASE_ADDRESS, Ordering::Relaxed);
    X2APIC.store(has_x2apic, Ordering::Relaxed);
    (!has_x2apic).then_some(base & APIC_BASE_ADDRESS)
}

fn read(register: u32) -> u32 {
    if X2APIC.load(Ordering::Relaxed) {
        // SAFETY: x2APIC mode is on; only registers that exist are passed in.
        unsafe { Msr::new(MSR_X2APIC + register).read() as u32 }
    } else {
        // SAFETY: the register page is mapped uncached at this address for ever.
        unsafe { register_address(register).read_volatile() }
    }
}

fn write(register: u32, value: u32) {
    if X2APIC.load(Ordering::Relaxed) {
        // SAFETY: as in `read`; writes go to registers that this module owns.
        unsafe { Msr::new(MSR_X2APIC + register).write(value.into()) };
    } else {
        // SAFETY: as in `read`.
        unsafe { register_address(register).write_volatile(value) };
    }
}

fn register_address(register: u32) -> *mut u32 {
    (BASE.load(Ordering::Relaxed) + u64::from(register) * 16) as *mut u32
}

/// Turns the calling CPU's local APIC on.
pub(crate) fn enable() {
    // The enable bit is set already, and once cleared some emulations cannot set it again: never
    // clear it.
    if X2APIC.load(Ordering::Relaxed) {
        let mut msr = Msr::new(MSR_APIC_BASE);
        // SAFETY: CPUID says that x2APIC mode exists; the transition from enabled is legal.
        unsafe { msr.write(msr.read() | APIC_BASE_X2APIC | APIC_BASE_ENABLE) };
    }
    for lvt in [REG_LVT_TIMER, REG_LVT_LINT0, REG_LVT_LINT1, REG_LVT_ERROR] {
        write(lvt, LVT_MASKED | u32::from(VECTOR_SPURIOUS));
    }
    write(REG_TIMER_DIVIDE, DIVIDE_BY_1);
    write(REG_SPURIOUS, SPURIOUS_ENABLE | u32::from(VECTOR_SPURIOUS));
}

/// Ends the interrupt that is in service.
pub(crate) fn end_of_interrupt() {
    write(REG_EOI, 0);
}

/// Whether IPIs reach the CPU with this APIC id: memory-mapped registers have eight bits for it, of
/// which all ones name everybody.
pub(crate) fn reaches(apic_id: u32) -> bool {
    X2APIC.load(Ordering::Relaxed) || apic_id < 0xff
}

fn send(apic_id: u32, low: u32) {
    if X2APIC.load(Ordering::Relaxed) {
        // WRMSR to the x2APIC is not serialising: what was stored for the target to see is made
        // visible first (APM volume 2, section 16.11.2).
        // It pairs with the interrupt: the target's handler finds it.
        core::sync::atomic::fence(Ordering::SeqCst);
        let value = u64::from(apic_id) << 32 | u64::from(low);
        // SAFETY: x2APIC mode is on; the ICR is one 64-bit register there.
        unsafe { Msr::new(MSR_X2APIC + REG_ICR).write(value) };
        return;
    }
    assert!(apic_id < 0xff, "APIC id {apic_id} needs x2APIC mode");
    assert!((0..ICR_TRIES).any(|_| read(REG_ICR) & ICR_BUSY == 0), "the local APIC does not send");
    write(REG_ICR_HIGH, apic_id << 24);
    write(REG_ICR, low);
}

/// Sends a fixed interrupt to one CPU.
pub(crate) fn send_fixed(apic_id: u32, vector: u8) {
    send(apic_id, ICR_LEVEL_ASSERT | u32::from(vector));
}

/// Sends an NMI to one CPU.
pub(crate) fn send_nmi(apic_id: u32) {
    send(apic_id, ICR_LEVEL_ASSERT | 4 << 8);
}

/// Sends INIT to one CPU.
pub(crate) fn send_init(apic_id: u32) {
    send(apic_id, ICR_LEVEL_ASSERT | 5 << 8);
}

/// Sends a start-up IPI for the page at `page` to one CPU.
pub(crate) fn send_startup(apic_id: u32, page: u64) {
    send(apic_id, ICR_LEVEL_ASSERT | 6 << 8 | (page >> 12) as u32);
}

/// Sets the timer to interrupt once after `ticks` of the bus clock; 0 stops it.
pub(crate) fn set_timer_ticks(ticks: u32) {
    write(REG_TIMER_INITIAL, ticks);
}

/// What is left of the timer's count.
pub(crate) fn timer_ticks() -> u32 {
    read(REG_TIMER_CURRENT)
}

/// Lets the timer interrupt with `vector`, by count or by TSC deadline.
pub(crate) fn unmask_timer(vector: u8, tsc_deadline: bool) {
    let mode = if tsc_deadline { LVT_TSC_DEADLINE } else { 0 };
    write(REG_LVT_TIMER, mode | u32::from(vector));
}

/// Routes an ISA interrupt (edge, active high) of the I/O APIC at `base` to one CPU.
///
/// # Safety
///
/// The I/O APIC's registers are mapped uncached at `base`, and nobody else drives it.
pub(crate) unsafe fn route_isa(base: u64, pin: u32, apic_id: u32, vector: u8) {
    let select = base as *mut u32;
    let window = (base + 0x10) as *mut u32;
    let entry = 0x10 + 2 * pin;
    // SAFETY: the caller vouches for the registers.
    unsafe {
        select.write_volatile(entry + 1);
        window.write_volatile(apic_id << 24);
        select.write_volatile(entry);
        window.write_volatile(u32::from(vector));
    }
}
