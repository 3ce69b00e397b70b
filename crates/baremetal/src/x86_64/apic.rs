//! The local APIC, through the available one of its two interfaces, and a pin of an I/O APIC.
//!
//! Source: AMD64 APM volume 2 (24593, rev. 3.42), chapter 16. x2APIC if it is already on or CPUID
//! reports it, memory-mapped otherwise (QEMU's emulation offers no x2APIC before version 9).

use core::arch::x86_64::__cpuid;
use core::sync::atomic::{AtomicBool, AtomicU64, Ordering, fence};

use x86_64::registers::model_specific::Msr;

use crate::HardwareId;
use crate::encodings::{command, redirection_entry};

/// Spurious interrupts.
pub const VECTOR_SPURIOUS: u8 = 0xff;

const MSR_APIC_BASE: u32 = 0x1b;
const BASE_X2APIC: u64 = 1 << 10;
const BASE_ENABLED: u64 = 1 << 11;
const BASE_ADDRESS: u64 = 0x000f_ffff_ffff_f000;
const MSR_X2APIC: u32 = 0x800;
/// CPUID 1, ECX: the x2APIC interface.
const CPUID_X2APIC: u32 = 1 << 21;

/// Registers by number; the address is 16 times the number, the MSR is [`MSR_X2APIC`] plus the
/// number.
const ID: u32 = 0x02;
/// Interrupts of this priority class and below wait.
const TASK_PRIORITY: u32 = 0x08;
const EOI: u32 = 0x0b;
const SPURIOUS: u32 = 0x0f;
/// The first of eight: a bit for each vector whose handler has not ended yet.
const IN_SERVICE: u32 = 0x10;
const ICR: u32 = 0x30;
const ICR_HIGH: u32 = 0x31;
const LVT_TIMER: u32 = 0x32;
const LVTS: [u32; 4] = [LVT_TIMER, 0x35, 0x36, 0x37];
const TIMER_INITIAL: u32 = 0x38;
const TIMER_CURRENT: u32 = 0x39;
const TIMER_DIVIDE: u32 = 0x3e;

const SPURIOUS_ENABLE: u32 = 1 << 8;
const LVT_MASKED: u32 = 1 << 16;
const LVT_TSC_DEADLINE: u32 = 2 << 17;
const DIVIDE_BY_1: u32 = 0b1011;
const ICR_BUSY: u32 = 1 << 12;
/// Reads of the busy bit before an APIC is declared stuck.
const ICR_TRIES: u32 = 1 << 24;

/// Written by the first processor before any other starts.
static X2APIC: AtomicBool = AtomicBool::new(false);
static BASE: AtomicU64 = AtomicU64::new(0);

/// Whether the x2APIC interface is in use.
pub fn is_x2apic() -> bool {
    X2APIC.load(Ordering::Relaxed)
}

fn address(register: u32) -> *mut u32 {
    (BASE.load(Ordering::Relaxed) + u64::from(register) * 16) as *mut u32
}

fn read(register: u32) -> u32 {
    if is_x2apic() {
        // SAFETY: x2APIC mode is on; only registers that exist are passed in.
        return unsafe { Msr::new(MSR_X2APIC + register).read() as u32 };
    }
    // SAFETY: the register page is mapped one to one; the memory type ranges make it uncached.
    unsafe { address(register).read_volatile() }
}

fn write(register: u32, value: u32) {
    if is_x2apic() {
        // SAFETY: as in `read`; this module owns the registers that it writes.
        return unsafe { Msr::new(MSR_X2APIC + register).write(value.into()) };
    }
    // SAFETY: as in `read`.
    unsafe { address(register).write_volatile(value) };
}

/// Determines the interface. On the first processor, before any APIC is [enabled](enable); returns
/// the physical address of the register page, if it is in use.
pub fn probe() -> Option<u64> {
    // SAFETY: every supported processor has the register.
    let base = unsafe { Msr::new(MSR_APIC_BASE).read() };
    let has_x2apic = __cpuid(1).ecx & CPUID_X2APIC != 0 || base & BASE_X2APIC != 0;
    X2APIC.store(has_x2apic, Ordering::Relaxed);
    BASE.store(base & BASE_ADDRESS, Ordering::Relaxed);
    (!has_x2apic).then_some(base & BASE_ADDRESS)
}

/// Enables the calling processor's APIC, with all of its own interrupts off.
pub fn enable() {
    let mut msr = Msr::new(MSR_APIC_BASE);
    // SAFETY: every supported processor has the register.
    let base = unsafe { msr.read() };
    // The enable bit is never cleared: some emulations cannot set it again.
    let wanted = base | BASE_ENABLED | if is_x2apic() { BASE_X2APIC } else { 0 };
    if wanted != base {
        // SAFETY: from enabled to x2APIC mode is a legal step, and `probe` has found that the mode
        // exists.
        unsafe { msr.write(wanted) };
    }
    // Firmware may have left it.
    write(TASK_PRIORITY, 0);
    LVTS.iter().for_each(|lvt| write(*lvt, LVT_MASKED | u32::from(VECTOR_SPURIOUS)));
    write(SPURIOUS, SPURIOUS_ENABLE | u32::from(VECTOR_SPURIOUS));
}

/// The calling processor's id.
pub fn id() -> HardwareId {
    HardwareId::from(if is_x2apic() { read(ID) } else { read(ID) >> 24 })
}

/// Whether the calling processor's APIC has delivered an interrupt with this vector that has not
/// been ended.
pub fn is_in_service(vector: u8) -> bool {
    read(IN_SERVICE + u32::from(vector / 32)) >> (vector % 32) & 1 != 0
}

/// Makes the calling processor's timer interrupt with `vector`, once for each deadline of the TSC
/// or each time that [ticks of the bus clock](set_timer_ticks) have passed.
pub fn unmask_timer(vector: u8, tsc_deadline: bool) {
    let mode = if tsc_deadline { LVT_TSC_DEADLINE } else { 0 };
    write(LVT_TIMER, mode | u32::from(vector));
}

/// Makes the calling processor's timer count every tick of the bus clock.
pub fn set_timer_divider() {
    write(TIMER_DIVIDE, DIVIDE_BY_1);
}

/// Sets the timer to this many ticks of the bus clock; 0 stops it.
pub fn set_timer_ticks(ticks: u32) {
    write(TIMER_INITIAL, ticks);
}

/// The rest of the timer's count.
pub fn timer_ticks() -> u32 {
    read(TIMER_CURRENT)
}

/// Ends the interrupt in service.
pub fn end_of_interrupt() {
    write(EOI, 0);
}

/// Whether interrupts reach the processor with this APIC id: memory-mapped registers have eight
/// bits for it, and all ones mean all processors.
pub fn reaches(id: HardwareId) -> bool {
    is_x2apic() || id.0 < 0xff
}

fn send(destination: HardwareId, command: u32) {
    if is_x2apic() {
        // WRMSR to the x2APIC is not serialising: stores meant for the target are made visible
        // first (APM volume 2, section 16.11.2). The fence pairs with the interrupt, whose handler
        // runs after it.
        fence(Ordering::SeqCst);
        let value = command::wide(destination, command);
        // SAFETY: x2APIC mode is on; the ICR is one register of 64 bits there.
        return unsafe { Msr::new(MSR_X2APIC + ICR).write(value) };
    }
    assert!(reaches(destination), "APIC id {destination} needs x2APIC mode");
    assert!((0..ICR_TRIES).any(|_| read(ICR) & ICR_BUSY == 0), "the local APIC does not send");
    write(ICR_HIGH, destination.apic() << 24);
    write(ICR, command::ASSERT | command);
}

/// Sends an interrupt. An interrupt handler that sends must not interrupt this: the memory-mapped
/// interface needs two writes.
pub fn send_fixed(destination: HardwareId, vector: u8) {
    send(destination, u32::from(vector));
}

/// Sends an NMI.
pub fn send_nmi(destination: HardwareId) {
    send(destination, command::NMI);
}

/// Resets a processor, which then waits for a start-up IPI.
pub fn send_init(destination: HardwareId) {
    send(destination, command::INIT);
}

/// Starts a processor that waits for a start-up IPI, on the page at `page`.
pub fn send_startup(destination: HardwareId, page: u64) {
    send(destination, command::startup(page));
}

/// Routes an interrupt of the I/O APIC at `base` by this entry of its redirection table.
///
/// # Safety
///
/// The I/O APIC's registers are mapped uncached at `base`, and nothing else drives it.
pub unsafe fn route_pin(base: u64, pin: u32, entry: u64) {
    let (select, window) = (base as *mut u32, (base + 0x10) as *mut u32);
    for (register, value) in redirection_entry(pin, entry) {
        // SAFETY: the caller vouches for the registers.
        unsafe {
            select.write_volatile(register);
            window.write_volatile(value);
        }
    }
}
