use super::*;
use proptest::prelude::*;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use vm_superio::serial::NoEvents;
use vm_superio::{Serial, Trigger};

const IIR: u16 = 2;
const LSR: u16 = 5;

fn uart(ier: u8) -> Uart16550 {
    let mut uart = Uart16550::default();
    let _ = uart.write(2, FCR_ENABLE);
    let _ = uart.write(1, ier);
    uart
}

#[test]
fn no_register_beyond_the_eighth() {
    let mut uart = uart(0);
    for offset in [8, 9, 0x100, u16::MAX] {
        assert_eq!(uart.write(offset, 0x55), Effect::None);
        assert_eq!(uart.read(offset), 0xff);
    }
}

#[test]
fn status_registers_are_read_only() {
    let mut uart = uart(0);
    let _ = uart.write(5, 0xff);
    let _ = uart.write(6, 0xff);
    assert_eq!((uart.read(5), uart.read(6)), (0x60, 0xb0));
}

#[test]
fn a_full_fifo_takes_no_more_and_loses_nothing() {
    let mut uart = uart(0);
    let taken: Vec<u8> = (0..40).filter(|&byte| uart.receive(byte)).collect();
    assert_eq!(taken.len(), FIFO_LEN);
    let read: Vec<u8> = taken.iter().map(|_| uart.read(0)).collect();
    assert_eq!((read, uart.read(LSR)), (taken, LSR_IDLE));
    assert_eq!(uart.read(0), 0, "an empty receiver");
    let mut without_fifo = Uart16550::default();
    assert!(without_fifo.receive(1) && !without_fifo.receive(2));
}

#[test]
fn interrupts_by_priority_each_cleared_by_its_register() {
    let mut uart = uart(0x0f);
    let _ = uart.write(4, MCR_LOOP);
    for byte in 0..=FIFO_LEN as u8 {
        let _ = uart.write(0, byte);
    }
    assert_eq!(uart.read(IIR), 0xc6, "overrun, by loopback");
    assert_eq!(uart.read(LSR) & (LSR_OVERRUN | LSR_DATA), LSR_OVERRUN | LSR_DATA);
    assert_eq!(uart.read(LSR) & LSR_OVERRUN, 0);
    for byte in 0..FIFO_LEN as u8 {
        assert_eq!((uart.read(IIR), uart.read(0)), (0xc4, byte));
    }
    assert_eq!(uart.read(IIR), 0xc2, "reading IIR while another cause shows did not clear it");
    assert_eq!(uart.read(IIR), 0xc0, "modem: the inputs fell with loopback");
    assert_eq!(uart.read(IIR), 0xc0, "IIR does not clear it");
    let _ = uart.read(6);
    assert_eq!(uart.read(IIR), 0xc1);
    assert!(!uart.irq_level());
}

#[test]
fn below_the_trigger_level_is_a_timeout() {
    for (code, level) in [(0, 1), (1, 4), (2, 8), (3, 14)] {
        let mut uart = uart(IER_RX);
        let _ = uart.write(2, FCR_ENABLE | code << 6);
        for count in 1..=FIFO_LEN {
            assert!(uart.receive(0));
            assert!(uart.irq_level());
            assert_eq!(uart.read(IIR), if count < level { 0xcc } else { 0xc4 });
        }
    }
}

#[test]
fn transmit_interrupt_when_enabled_while_idle_and_after_each_byte() {
    let mut uart = uart(IER_THRE);
    assert!(uart.irq_level());
    assert_eq!(uart.read(IIR) & 0xf, IIR_THRE);
    assert!(!uart.irq_level(), "reading IIR is the acknowledgement");
    let _ = uart.write(1, IER_THRE);
    assert!(!uart.irq_level(), "enabled already");
    // Linux' test at startup: disabling and enabling must raise it again.
    let _ = uart.write(1, 0);
    let _ = uart.write(1, IER_THRE);
    assert!(uart.irq_level());
    let _ = uart.read(IIR);
    assert_eq!(uart.write(0, b'a'), Effect::Transmit(b'a'));
    assert!(uart.irq_level());
    let _ = uart.write(1, 0);
    assert!(!uart.irq_level());
    assert_eq!(uart.read(LSR), LSR_IDLE, "always ready");
}

#[test]
fn loopback_disconnects_the_outside_and_wires_the_modem_lines() {
    let mut uart = uart(0);
    let _ = uart.write(4, MCR_LOOP);
    assert!(!uart.receive(1));
    assert_eq!(uart.write(0, 0x5a), Effect::None);
    assert_eq!(uart.read(0), 0x5a);
    let _ = uart.read(6);
    for (output, input) in [(MCR_RTS, 0x10), (MCR_DTR, 0x20), (MCR_OUT1, 0x40), (MCR_OUT2, 0x80)] {
        let _ = uart.write(4, MCR_LOOP | output);
        assert_eq!(uart.read(6) & 0xf0, input);
        let _ = uart.write(4, MCR_LOOP);
        assert_ne!(uart.read(6) & MSR_DELTAS, 0);
        assert_eq!(uart.read(6), 0, "reading clears the deltas");
    }
    let _ = uart.write(4, 0);
    assert_eq!(uart.read(6) & 0xf0, MSR_CONNECTED);
    assert_eq!(uart.write(0, 0x5a), Effect::Transmit(0x5a));
}

/// The steps by which Linux' 8250 driver distinguishes a 16550A from its relatives (autoconfig).
#[test]
fn linux_finds_a_16550a() {
    let mut uart = Uart16550::default();
    let _ = uart.write(1, 0);
    assert_eq!(uart.read(1) & 0xf, 0);
    let _ = uart.write(1, 0x0f);
    assert_eq!(uart.read(1) & 0xf, 0xf, "an UART is there");
    let _ = uart.write(1, 0);
    let _ = uart.write(4, MCR_LOOP | 0x0a);
    assert_eq!(uart.read(6) & 0xf0, 0x90, "loopback");
    let _ = uart.write(4, 0);
    let _ = uart.write(3, 0xbf);
    let _ = uart.write(2, 0);
    let _ = uart.write(3, 0);
    let _ = uart.write(2, FCR_ENABLE);
    assert_eq!(uart.read(2) >> 6, 3, "working FIFOs");
    let _ = uart.write(3, LCR_DLAB);
    assert_ne!(uart.read(2), 0, "no EFR where a 16650 has it");
    let _ = uart.write(3, 0xbf);
    assert_ne!(uart.read(2), 0);
    let _ = uart.write(3, 0);
    let _ = uart.write(2, FCR_ENABLE | 0x20);
    assert_eq!(uart.read(2) >> 5, 6, "no 64-byte FIFO");
    let _ = uart.write(1, 0x40);
    assert_eq!(uart.read(1), 0, "no XScale");
    let _ = uart.write(7, 0xa5);
    assert_eq!(uart.read(7), 0xa5, "scratch register");
}

/// The callback of another implementation for its interrupt.
#[derive(Clone, Default)]
struct Counter(Arc<AtomicUsize>);

impl Trigger for Counter {
    type E = std::io::Error;

    fn trigger(&self) -> Result<(), Self::E> {
        self.0.fetch_add(1, Ordering::Relaxed);
        Ok(())
    }
}

#[derive(Clone, Default)]
struct Wire(Arc<Mutex<Vec<u8>>>);

impl std::io::Write for Wire {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        self.0.lock().unwrap().extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}

#[derive(Clone, Copy, Debug)]
enum Step {
    Write(u8, u8),
    Read(u8),
    Receive(u8),
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let step = prop_oneof![
        (0..8_u8, any::<u8>()).prop_map(|(offset, value)| Step::Write(offset, value)),
        (0..8_u8).prop_map(Step::Read),
        any::<u8>().prop_map(Step::Receive),
    ];
    prop::collection::vec(step, 0..200)
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

    /// Compares with vm-superio's port, in the features that both model: its FIFO is always on and
    /// 64 bytes deep, it has no FCR, and its IIR and MSR have fewer causes, so those are not
    /// compared.
    #[test]
    fn behaves_like_another_implementation(steps in steps()) {
        let wire = Wire::default();
        let interrupts = Counter::default();
        let mut theirs: Serial<_, NoEvents, _> = Serial::new(interrupts.clone(), wire.clone());
        let mut ours = uart(0);
        // Its initial state: 8 bits, OUT2.
        let _ = ours.write(3, 0x03);
        let _ = ours.write(4, MCR_OUT2);
        let mut sent = Vec::new();
        for step in steps {
            match step {
                Step::Write(2, _) => {}
                // More bytes would overrun our FIFO where the other has room.
                Step::Write(0, _) if !ours.can_receive() && ours.rx.len() == FIFO_LEN => {}
                Step::Write(offset, value) => {
                    let value = if offset == 4 { value & 0x1f } else { value };
                    if let Effect::Transmit(byte) = ours.write(offset.into(), value) {
                        sent.push(byte);
                    }
                    theirs.write(offset, value).unwrap();
                }
                Step::Read(offset) => {
                    let high = ours.irq_level();
                    let (our, their) = (ours.read(offset.into()), theirs.read(offset));
                    prop_assert!(high || !ours.irq_level(), "reading raised the line");
                    match offset {
                        2 => {}
                        6 => prop_assert_eq!(our & 0xf0, their & 0xf0, "modem inputs"),
                        _ => prop_assert_eq!(our, their, "register {}", offset),
                    }
                }
                Step::Receive(byte) => {
                    if ours.receive(byte) {
                        let before = interrupts.0.load(Ordering::Relaxed);
                        prop_assert_eq!(theirs.enqueue_raw_bytes(&[byte]).unwrap(), 1);
                        let interrupted = interrupts.0.load(Ordering::Relaxed) != before;
                        prop_assert!(ours.irq_level() || !interrupted, "no interrupt for input");
                    }
                }
            }
        }
        prop_assert_eq!(&sent, &*wire.0.lock().unwrap());
    }
}
