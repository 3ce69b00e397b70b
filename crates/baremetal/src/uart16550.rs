//! 16550s that are polled, wherever their registers are.
//!
//! Source: PC16550D data sheet (National Semiconductor, 1995), section 8.

use core::fmt::{self, Write};
use core::sync::atomic::{AtomicBool, Ordering};

const DATA: u16 = 0;
const INTERRUPTS: u16 = 1;
const FIFO: u16 = 2;
const LINE_CONTROL: u16 = 3;
const MODEM_CONTROL: u16 = 4;
const LINE_STATUS: u16 = 5;
const MODEM_STATUS: u16 = 6;
const DATA_READY: u8 = 1 << 0;
const TRANSMITTER_EMPTY: u8 = 1 << 5;
/// And so is the shift register: nothing is left to be sent.
const ALL_SENT: u8 = 1 << 6;
/// Clear to send, data set ready, or carrier: something is at the other end.
const PARTNER: u8 = 1 << 4 | 1 << 5 | 1 << 7;
/// The line status of a port that is not there.
const ABSENT: u8 = 0xff;
/// Reads of the line status before a byte is dropped: a stuck port blocks no caller forever. They
/// take 6 ms or more, and a full FIFO of 16 bytes is empty after 1.4 ms at 115,200 baud.
const TRIES: u32 = 1 << 16;
/// The same for text: a program has nothing else to do, and the reader may be slow.
const TRIES_FOR_TEXT: u32 = 1 << 22;

/// How registers are accessed.
pub trait Registers: Copy {
    /// Reads a register.
    fn read(self, register: u16) -> u8;
    /// Writes a register.
    fn write(self, register: u16, value: u8);
}

/// A 16550 with these registers.
#[derive(Clone, Copy, Debug)]
pub struct Uart<R>(pub R);

impl<R: Registers> Uart<R> {
    /// Sets the port to 115,200 baud, 8 bits, no parity, FIFOs, without interrupts.
    pub fn set_up(self) {
        // Divisor 1 while the divisor's latch is open. OUT2 lets interrupts through, once they are
        // enabled.
        let writes = [
            (INTERRUPTS, 0),
            (LINE_CONTROL, 0x80),
            (DATA, 1),
            (INTERRUPTS, 0),
            (LINE_CONTROL, 3),
            (FIFO, 7),
            (MODEM_CONTROL, 0xb),
        ];
        writes.into_iter().for_each(|(register, value)| self.0.write(register, value));
    }

    /// Enables or disables the port's receive interrupt.
    pub fn interrupt_on_receive(self, on: bool) {
        self.0.write(INTERRUPTS, u8::from(on));
    }

    /// Whether there is such a port. Where there is none, all ones are read.
    pub fn is_there(self) -> bool {
        self.0.read(LINE_STATUS) != ABSENT
    }

    /// Whether something is at the other end, by any of the signals that say so. A cable of three
    /// wires has none of them.
    pub fn has_partner(self) -> bool {
        self.is_there() && self.0.read(MODEM_STATUS) & PARTNER != 0
    }

    /// A received byte, if there is one.
    pub fn receive(self) -> Option<u8> {
        let status = self.0.read(LINE_STATUS);
        (status != ABSENT && status & DATA_READY != 0).then(|| self.0.read(DATA))
    }

    /// Sends a byte, unless the port is stuck.
    pub fn send(self, byte: u8) {
        self.send_within(TRIES, byte);
    }

    /// Waits until all is sent, unless the port is stuck. A port that is not there has sent all.
    pub fn drain(self) {
        self.await_status(TRIES, ALL_SENT);
    }

    fn send_within(self, tries: u32, byte: u8) {
        if self.await_status(tries, TRANSMITTER_EMPTY) {
            self.0.write(DATA, byte);
        }
    }

    /// Whether the line status has this bit within so many reads.
    fn await_status(self, tries: u32, bit: u8) -> bool {
        (0..tries).any(|_| self.0.read(LINE_STATUS) & bit != 0)
    }
}

/// A port whose receive interrupt, which is level-triggered, is off from an interrupt until all was
/// received. Of the CPU that takes the interrupt alone.
#[derive(Debug, Default)]
pub struct Pause(AtomicBool);

impl Pause {
    /// The port may interrupt.
    pub const fn new() -> Self {
        Self(AtomicBool::new(false))
    }

    /// The port has interrupted.
    pub fn begin(&self, port: Uart<impl Registers>) {
        self.0.store(true, Ordering::Relaxed);
        port.interrupt_on_receive(false);
    }

    /// A received byte. If there is none, the port may interrupt again: it does for bytes from here
    /// on, and for those that have come just now.
    pub fn receive(&self, port: Uart<impl Registers>) -> Option<u8> {
        let byte = port.receive();
        if byte.is_none() && self.0.swap(false, Ordering::Relaxed) {
            port.interrupt_on_receive(true);
        }
        byte
    }
}

impl<R: Registers> Write for Uart<R> {
    fn write_str(&mut self, text: &str) -> fmt::Result {
        text.bytes().for_each(|byte| self.send_within(TRIES_FOR_TEXT, byte));
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::moment::{Moment, each_moment};
    use std::boxed::Box;
    use std::cell::{Cell, RefCell};
    use std::collections::VecDeque;
    use std::sync::Mutex;
    use std::vec::Vec;

    /// The written values, the line status, and the number of reads for which it is 0 before.
    struct Port(RefCell<Vec<(u16, u8)>>, u8, Cell<u32>);

    impl Registers for &Port {
        fn read(self, register: u16) -> u8 {
            if register != LINE_STATUS {
                return b'x';
            }
            let left = self.2.get();
            self.2.set(left.saturating_sub(1));
            if left == 0 { self.1 } else { 0 }
        }

        fn write(self, register: u16, value: u8) {
            self.0.borrow_mut().push((register, value));
        }
    }

    fn port(status: u8) -> Port {
        Port(RefCell::default(), status, Cell::new(0))
    }

    #[test]
    fn a_port_that_is_not_there_has_received_nothing() {
        assert_eq!(Uart(&port(0xff)).receive(), None);
        assert_eq!([0xff, 0, TRANSMITTER_EMPTY].map(|it| Uart(&port(it)).is_there()), [false, true, true]);
        assert_eq!(Uart(&port(TRANSMITTER_EMPTY)).receive(), None);
        assert_eq!(Uart(&port(DATA_READY)).receive(), Some(b'x'));
    }

    #[test]
    fn a_byte_waits_for_the_transmitter_but_not_for_ever() {
        let (ready, stuck) = (port(TRANSMITTER_EMPTY), port(0));
        Uart(&ready).write_str("ab").expect("it never fails");
        Uart(&stuck).write_str("ab").expect("it never fails");
        assert_eq!(*ready.0.borrow(), [(DATA, b'a'), (DATA, b'b')]);
        assert!(stuck.0.borrow().is_empty());
    }

    #[test]
    fn what_is_being_sent_is_waited_for_but_not_for_ever() {
        let (sent, stuck) = (port(TRANSMITTER_EMPTY | ALL_SENT), port(TRANSMITTER_EMPTY));
        sent.2.set(3);
        Uart(&sent).drain();
        assert_eq!(sent.2.get(), 0, "it has been asked until it was so");
        Uart(&stuck).drain();
    }

    #[test]
    fn text_waits_longer_than_a_byte() {
        let port = port(TRANSMITTER_EMPTY);
        port.2.set(TRIES);
        Uart(&port).send(b'a');
        port.2.set(TRIES);
        Uart(&port).write_str("b").expect("it never fails");
        assert_eq!(*port.0.borrow(), [(DATA, b'b')]);
    }

    /// A port by the data sheet: what it has received, and whether that interrupts.
    #[derive(Default)]
    struct Receiver(Moment, Mutex<(VecDeque<u8>, bool)>);

    impl Registers for &Receiver {
        fn read(self, register: u16) -> u8 {
            self.0.pass();
            let received = &mut self.1.lock().unwrap().0;
            match register {
                DATA => received.pop_front().expect("it has said so"),
                _ => u8::from(!received.is_empty()) * DATA_READY,
            }
        }

        fn write(self, register: u16, value: u8) {
            self.0.pass();
            assert_eq!(register, INTERRUPTS);
            self.1.lock().unwrap().1 = value & 1 != 0;
        }
    }

    #[test]
    fn a_byte_that_comes_at_any_moment_is_received_once_and_is_told_of() {
        each_moment(|at| {
            let made: &'static Receiver = Box::leak(Box::default());
            let (port, pause) = (Uart(made), Pause::new());
            port.interrupt_on_receive(true);
            made.1.lock().unwrap().0.push_back(1);
            made.0.set(at, || made.1.lock().unwrap().0.extend([2, 3]));
            let mut received = Vec::new();
            // Its line is high.
            while matches!(&*made.1.lock().unwrap(), (bytes, true) if !bytes.is_empty()) {
                pause.begin(port);
                received.extend(core::iter::from_fn(|| pause.receive(port)));
            }
            let has_come = made.0.has_come();
            assert_eq!(received.len(), if has_come { 3 } else { 1 }, "before access {at}");
            assert!(made.1.lock().unwrap().1 && received.is_sorted(), "before access {at}: {received:?}");
            has_come
        });
    }

    #[test]
    fn the_latch_is_closed_and_nothing_interrupts_when_it_is_set_up() {
        let port = port(0);
        Uart(&port).set_up();
        let last =
            |register| port.0.borrow().iter().rev().find(|(of, _)| *of == register).map(|(_, value)| *value);
        assert_eq!((last(LINE_CONTROL), last(INTERRUPTS)), (Some(3), Some(0)));
    }
}
