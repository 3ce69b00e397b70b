use super::*;

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
fn the_divisor_is_behind_its_latch() {
    let mut uart = uart(IER_RX);
    let _ = uart.write(3, LCR_DLAB | 3);
    assert_eq!((uart.read(0), uart.read(1)), (12, 0), "9600 baud");
    assert_eq!((uart.write(0, 1), uart.write(1, 2)), (Effect::None, Effect::None));
    assert_eq!((uart.read(0), uart.read(1), uart.read(3)), (1, 2, LCR_DLAB | 3));
    let _ = uart.write(3, 3);
    assert_eq!((uart.read(0), uart.read(1)), (0, IER_RX));
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
