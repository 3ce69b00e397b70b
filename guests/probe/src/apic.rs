//! The local APIC, in x2APIC mode (APM volume 2, section 16.9 and following).

use x86_64::registers::model_specific::Msr;

pub(crate) const APIC_BASE: u32 = 0x1b;
pub(crate) const TSC_DEADLINE: u32 = 0x6e0;
pub(crate) const ID: u32 = 0x802;
pub(crate) const EOI: u32 = 0x80b;
pub(crate) const ICR: u32 = 0x830;
pub(crate) const LVT_TIMER: u32 = 0x832;
pub(crate) const INITIAL_COUNT: u32 = 0x838;
pub(crate) const DIVIDE: u32 = 0x83e;
pub(crate) const SELF_IPI: u32 = 0x83f;

/// LVT of the timer: masked, and the modes.
pub(crate) const LVT_MASKED: u64 = 1 << 16;
pub(crate) const LVT_PERIODIC: u64 = 1 << 17;
pub(crate) const LVT_TSC_DEADLINE: u64 = 2 << 17;

/// Level assert: set in every command but the INIT de-assert.
const ASSERT: u64 = 1 << 14;
const MODE_NMI: u64 = 4 << 8;

pub(crate) fn write(register: u32, value: u64) {
    // SAFETY: these registers send and time interrupts, all of whose vectors have handlers.
    unsafe { Msr::new(register).write(value) };
}

pub(crate) fn read(register: u32) -> u64 {
    // SAFETY: reading changes nothing.
    unsafe { Msr::new(register).read() }
}

pub(crate) fn id() -> usize {
    read(ID) as usize
}

fn send(destination: usize, command: u64) {
    write(ICR, (destination as u64) << 32 | ASSERT | command);
}

pub(crate) fn send_fixed(destination: usize, vector: u8) {
    send(destination, u64::from(vector));
}

pub(crate) fn send_nmi(destination: usize) {
    send(destination, MODE_NMI);
}
