//! The log's port, the real console behind the guest's PL011, and the control channel.
//!
//! The console is the machine's PL011. The control channel is the first port of a 16550 on the PCI bus, and the log goes to
//! its second (QEMU: `-device pci-serial-2x`); without one there is no control channel, and the log goes to the console
//! beside the guest's output.
//!
//! Source: Arm DDI 0183, PL011 TRM, section 3.3.

use core::sync::atomic::{AtomicBool, AtomicU64, Ordering};

/// Attempts to find a transmitter ready before a byte is given up.
const TRANSMIT_TRIES: u32 = 1 << 16;

mod pl011 {
    pub(super) const DATA: u64 = 0x00;
    pub(super) const FLAGS: u64 = 0x18;
    pub(super) const LINE_CONTROL: u64 = 0x2c;
    pub(super) const CONTROL: u64 = 0x30;
    pub(super) const MASK: u64 = 0x38;
    pub(super) const CLEAR: u64 = 0x44;
    pub(super) const RECEIVE_EMPTY: u32 = 1 << 4;
    pub(super) const TRANSMIT_FULL: u32 = 1 << 5;
    /// Receive, and receive timeout.
    pub(super) const RECEIVE_INTERRUPTS: u32 = 1 << 4 | 1 << 6;
}

mod uart16550 {
    pub(super) const DATA: u64 = 0;
    pub(super) const INTERRUPT_ENABLE: u64 = 1;
    pub(super) const FIFO_CONTROL: u64 = 2;
    pub(super) const LINE_CONTROL: u64 = 3;
    pub(super) const MODEM_CONTROL: u64 = 4;
    pub(super) const LINE_STATUS: u64 = 5;
    pub(super) const DATA_READY: u8 = 1;
    pub(super) const TRANSMIT_EMPTY: u8 = 1 << 5;
}

/// Register page of the PL011; 0 as long as none is known.
static CONSOLE: AtomicU64 = AtomicU64::new(0);
/// Registers of the 16550s for requests and for the log; 0 if there are none.
static CONTROL: AtomicU64 = AtomicU64::new(0);
static LOG: AtomicU64 = AtomicU64::new(0);
/// See [`pause_control`].
static CONTROL_PAUSED: AtomicBool = AtomicBool::new(false);

fn read32(base: u64, offset: u64) -> u32 {
    // SAFETY: the base is that of a PL011 in the device tree, mapped as device memory.
    unsafe { ((base + offset) as *const u32).read_volatile() }
}

fn write32(base: u64, offset: u64, value: u32) {
    // SAFETY: as above; its registers reach nothing but the serial line.
    unsafe { ((base + offset) as *mut u32).write_volatile(value) };
}

fn read8(base: u64, offset: u64) -> u8 {
    // SAFETY: the base is that of a 16550 which `pci` has found, mapped as device memory.
    unsafe { ((base + offset) as *const u8).read_volatile() }
}

fn write8(base: u64, offset: u64, value: u8) {
    // SAFETY: as above.
    unsafe { ((base + offset) as *mut u8).write_volatile(value) };
}

/// Sets up the PL011 whose registers are at `base`: FIFO, 8n1, no interrupts. The rate is left as it is.
pub(crate) fn init(base: u64) {
    write32(base, pl011::MASK, 0);
    write32(base, pl011::CLEAR, 0x7ff);
    write32(base, pl011::LINE_CONTROL, 3 << 5 | 1 << 4);
    write32(base, pl011::CONTROL, 1 << 9 | 1 << 8 | 1);
    CONSOLE.store(base, Ordering::Relaxed);
}

/// Sets up the two 16550s whose registers begin at `base`: requests, then the log.
pub(crate) fn init_pci_ports(base: u64) {
    for (index, place) in [&CONTROL, &LOG].into_iter().enumerate() {
        let port = base + 8 * index as u64;
        write8(port, uart16550::INTERRUPT_ENABLE, 0);
        write8(port, uart16550::LINE_CONTROL, 0x80);
        write8(port, uart16550::DATA, 1);
        write8(port, uart16550::INTERRUPT_ENABLE, 0);
        write8(port, uart16550::LINE_CONTROL, 0x03);
        write8(port, uart16550::FIFO_CONTROL, 0x07);
        write8(port, uart16550::MODEM_CONTROL, 0x0b);
        place.store(port, Ordering::Relaxed);
    }
}

/// Lets console and control channel interrupt when they have received something.
pub(crate) fn enable_receive_interrupts() {
    let console = CONSOLE.load(Ordering::Relaxed);
    if console != 0 {
        write32(console, pl011::MASK, pl011::RECEIVE_INTERRUPTS);
    }
    let control = CONTROL.load(Ordering::Relaxed);
    if control != 0 {
        write8(control, uart16550::INTERRUPT_ENABLE, 1);
    }
}

/// Sends a byte of the guest's console.
pub(crate) fn guest_transmit(byte: u8) {
    let base = CONSOLE.load(Ordering::Relaxed);
    if base == 0 {
        return;
    }
    // A port that is stuck must not hold up the guest: the wait has an end.
    let ready = (0..TRANSMIT_TRIES).any(|_| read32(base, pl011::FLAGS) & pl011::TRANSMIT_FULL == 0);
    if ready {
        write32(base, pl011::DATA, byte.into());
    }
}

/// Next byte that the console received.
pub(crate) fn receive() -> Option<u8> {
    let base = CONSOLE.load(Ordering::Relaxed);
    let is_ready = base != 0 && read32(base, pl011::FLAGS) & pl011::RECEIVE_EMPTY == 0;
    is_ready.then(|| read32(base, pl011::DATA) as u8)
}

fn transmit_16550(base: u64, byte: u8) {
    let is_ready = |_| read8(base, uart16550::LINE_STATUS) & uart16550::TRANSMIT_EMPTY != 0;
    if (0..TRANSMIT_TRIES).any(is_ready) {
        write8(base, uart16550::DATA, byte);
    }
}

/// Sends one byte over the control channel.
pub(crate) fn send_control(byte: u8) {
    let base = CONTROL.load(Ordering::Relaxed);
    if base != 0 {
        transmit_16550(base, byte);
    }
}

/// Keeps the control channel from interrupting until it has been read empty.
pub(crate) fn pause_control() {
    CONTROL_PAUSED.store(true, Ordering::Relaxed);
    write8(CONTROL.load(Ordering::Relaxed), uart16550::INTERRUPT_ENABLE, 0);
}

/// Next byte that came over the control channel.
pub(crate) fn receive_control() -> Option<u8> {
    let base = CONTROL.load(Ordering::Relaxed);
    if base == 0 {
        return None;
    }
    if read8(base, uart16550::LINE_STATUS) & uart16550::DATA_READY != 0 {
        return Some(read8(base, uart16550::DATA));
    }
    // What comes in from here on interrupts, and so does what has come in just now: the interrupt is a level.
    if CONTROL_PAUSED.swap(false, Ordering::Relaxed) {
        write8(base, uart16550::INTERRUPT_ENABLE, 1);
    }
    None
}

/// Writes a byte to the log.
pub(crate) fn log_byte(byte: u8) {
    match LOG.load(Ordering::Relaxed) {
        0 => guest_transmit(byte),
        base => transmit_16550(base, byte),
    }
}
