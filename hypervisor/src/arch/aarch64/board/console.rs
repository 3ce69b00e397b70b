//! The log's port, the real console behind the guest's PL011, and the control channel.
//!
//! The console is the machine's PL011. The control channel is the first port of a 16550 on the PCI
//! bus, and the log goes to its second (QEMU: `-device pci-serial-2x`). Without that device there
//! is no control channel, and the log goes to the console, mixed with the guest's output.

use core::sync::atomic::{AtomicU64, Ordering};

use baremetal::aarch64::serial::{Mapped, Pl011};
use baremetal::uart16550::{Pause, Uart};

/// Register page of the PL011; 0 while unknown.
static CONSOLE: AtomicU64 = AtomicU64::new(0);
/// Registers of the 16550s for requests and for the log; 0 if there are none.
static CONTROL: AtomicU64 = AtomicU64::new(0);
static LOG: AtomicU64 = AtomicU64::new(0);
/// See [`pause_control`].
static CONTROL_PAUSE: Pause = Pause::new();

fn console() -> Option<Pl011> {
    let base = CONSOLE.load(Ordering::Relaxed);
    // SAFETY: the base is that of a PL011 in the device tree, mapped as device memory.
    (base != 0).then(|| unsafe { Pl011::at(base) })
}

fn port(place: &AtomicU64) -> Option<Uart<Mapped>> {
    let base = place.load(Ordering::Relaxed);
    // SAFETY: the base is that of a 16550 which `pci` has found, mapped as device memory.
    (base != 0).then(|| Uart(unsafe { Mapped::at(base) }))
}

/// Sets up the PL011 whose registers are at `base`: FIFO, 8n1, no interrupts. The baud rate is
/// unchanged.
pub(crate) fn init(base: u64) {
    CONSOLE.store(base, Ordering::Relaxed);
    console().into_iter().for_each(Pl011::set_up);
}

/// Sets up the two 16550s whose registers begin at `base`: requests, then the log.
pub(crate) fn init_pci_ports(base: u64) {
    for (place, base) in [(&CONTROL, base), (&LOG, base + 8)] {
        place.store(base, Ordering::Relaxed);
        port(place).into_iter().for_each(Uart::set_up);
    }
}

/// Lets the control channel interrupt when it has received something, and the console if it is a
/// guest's.
pub(crate) fn enable_receive_interrupts(console_is_a_guests: bool) {
    console().filter(|_| console_is_a_guests).into_iter().for_each(Pl011::interrupt_on_receive);
    port(&CONTROL).into_iter().for_each(|port| port.interrupt_on_receive(true));
}

pub(crate) fn guest_transmit(byte: u8) {
    if let Some(console) = console() {
        console.send(byte);
    }
}

pub(crate) fn receive() -> Option<u8> {
    console()?.receive()
}

pub(crate) fn send_control(byte: u8) {
    if let Some(port) = port(&CONTROL) {
        port.send(byte);
    }
}

/// Disables the control channel's interrupt until it has been read empty.
pub(crate) fn pause_control() {
    port(&CONTROL).into_iter().for_each(|port| CONTROL_PAUSE.begin(port));
}

pub(crate) fn receive_control() -> Option<u8> {
    CONTROL_PAUSE.receive(port(&CONTROL)?)
}

pub(crate) fn log_byte(byte: u8) {
    match port(&LOG) {
        Some(log) => log.send(byte),
        None => guest_transmit(byte),
    }
}
