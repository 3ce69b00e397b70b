//! Output of the hypervisor's own log, and the real serial ports that stand behind the guest's.
//!
//! The log goes to the debug console (port 0xe9) where there is one, else to COM1 beside the guest's
//! output. The guest's COM1 and COM2 are emulated; what it sends goes to the real port of the same
//! number, what the real COM1 receives goes to the guest. The real COM4 is the control channel.

use core::sync::atomic::{AtomicBool, Ordering};

use x86_64::instructions::port::Port;

/// Debug console of QEMU and Bochs: reading it gives its own number.
const DEBUG_CONSOLE: u16 = 0xe9;
/// I/O base of the real COM1 and COM2.
const SERIAL_BASE: [u16; 2] = [0x3f8, 0x2f8];
/// I/O base of the real COM4. It shares its interrupt with COM2, which has none enabled.
const CONTROL_BASE: u16 = 0x2e8;
/// Attempts to find the transmitter empty before a byte is given up.
const TRANSMIT_TRIES: u32 = 1 << 16;

const REG_DATA: u16 = 0;
const REG_INTERRUPT_ENABLE: u16 = 1;
const REG_FIFO_CONTROL: u16 = 2;
const REG_LINE_CONTROL: u16 = 3;
const REG_MODEM_CONTROL: u16 = 4;
const REG_LINE_STATUS: u16 = 5;
const LINE_DATA_READY: u8 = 1;
const LINE_TRANSMIT_EMPTY: u8 = 1 << 5;

static HAS_DEBUG_CONSOLE: AtomicBool = AtomicBool::new(false);

fn out(port: u16, value: u8) {
    // SAFETY: only the ports of the debug console and the serial devices are passed in here.
    unsafe { Port::new(port).write(value) };
}

fn inp(port: u16) -> u8 {
    // SAFETY: as in `out`; reading them changes nothing that others rely on.
    unsafe { Port::new(port).read() }
}

/// Finds the debug console, sets up the serial ports (115,200 baud, 8n1, FIFO).
pub(crate) fn init() {
    HAS_DEBUG_CONSOLE.store(inp(DEBUG_CONSOLE) == DEBUG_CONSOLE as u8, Ordering::Relaxed);
    for base in SERIAL_BASE.into_iter().chain([CONTROL_BASE]) {
        out(base + REG_INTERRUPT_ENABLE, 0);
        out(base + REG_LINE_CONTROL, 0x80);
        out(base + REG_DATA, 1);
        out(base + REG_INTERRUPT_ENABLE, 0);
        out(base + REG_LINE_CONTROL, 0x03);
        out(base + REG_FIFO_CONTROL, 0x07);
        out(base + REG_MODEM_CONTROL, 0x0b);
    }
}

/// Lets the real COM1 and COM4 interrupt when they have received something.
pub(crate) fn enable_receive_interrupts() {
    out(SERIAL_BASE[0] + REG_INTERRUPT_ENABLE, 1);
    out(CONTROL_BASE + REG_INTERRUPT_ENABLE, 1);
}

/// Sends one byte of the guest's COM1 (0) or COM2 (1).
pub(crate) fn guest_transmit(port: usize, byte: u8) {
    if let Some(&base) = SERIAL_BASE.get(port) {
        transmit(base, byte);
    }
}

/// Sends one byte over the control channel.
pub(crate) fn send_control(byte: u8) {
    transmit(CONTROL_BASE, byte);
}

fn transmit(base: u16, byte: u8) {
    // A port that is not there or stuck must not hold up the guest: the wait has an end.
    let ready = (0..TRANSMIT_TRIES).any(|_| inp(base + REG_LINE_STATUS) & LINE_TRANSMIT_EMPTY != 0);
    if ready {
        out(base + REG_DATA, byte);
    }
}

/// Next byte that the real COM1 received.
pub(crate) fn receive() -> Option<u8> {
    receive_from(SERIAL_BASE[0])
}

/// Next byte that came over the control channel.
pub(crate) fn receive_control() -> Option<u8> {
    receive_from(CONTROL_BASE)
}

fn receive_from(base: u16) -> Option<u8> {
    let status = inp(base + REG_LINE_STATUS);
    // All ones: there is no such port.
    (status != 0xff && status & LINE_DATA_READY != 0).then(|| inp(base + REG_DATA))
}

/// Writes a byte to the log.
pub(crate) fn log_byte(byte: u8) {
    if HAS_DEBUG_CONSOLE.load(Ordering::Relaxed) {
        out(DEBUG_CONSOLE, byte);
    } else {
        guest_transmit(0, byte);
    }
}
