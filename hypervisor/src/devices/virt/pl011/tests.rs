use super::*;

fn enabled() -> Pl011 {
    let mut uart = Pl011::default();
    let _ = uart.write(CR, CR_ENABLE | CR_TX | CR_RX);
    let _ = uart.write(LCR_H, 0x70);
    uart
}

#[test]
fn what_does_not_exist_reads_as_zero_and_ignores_writes() {
    let mut uart = Pl011::default();
    let before = format!("{uart:?}");
    for offset in (0x04c..ID).step_by(4).chain([0x008, 0x01c, 0x1000, 0xfe1, 0x019, u32::MAX]) {
        assert_eq!(uart.write(offset, u32::MAX), Effect::None);
        assert_eq!(uart.read(offset), 0, "{offset:#x}");
    }
    for offset in [FR, RIS, MIS, ID, ID + 28] {
        assert_eq!(uart.write(offset, u32::MAX), Effect::None);
    }
    assert_eq!(format!("{uart:?}"), before);
}

#[test]
fn identification_and_reset_values() {
    let mut uart = Pl011::default();
    let id: Vec<u32> = (0..8).map(|index| uart.read(ID + 4 * index)).collect();
    assert_eq!(id, [0x11, 0x10, 0x14, 0x00, 0x0d, 0xf0, 0x05, 0xb1]);
    assert_eq!((uart.read(CR), uart.read(IFLS)), (0x300, 0x12));
    assert_eq!(uart.read(FR) & 0xf8, 0x90, "both FIFOs empty, not busy");
    assert_eq!(uart.read(RIS), 0);
    assert!(!uart.irq_level());
}

#[test]
fn registers_keep_the_bits_that_they_have() {
    let mut uart = Pl011::default();
    for (offset, mask) in
        [(IBRD, 0xffff), (FBRD, 0x3f), (LCR_H, 0xff), (CR, 0xff87), (IFLS, 0x3f), (IMSC, 0x7ff), (DMACR, 7)]
    {
        let _ = uart.write(offset, u32::MAX);
        assert_eq!(uart.read(offset), mask, "{offset:#x}");
        let _ = uart.write(offset, 0);
        assert_eq!(uart.read(offset), 0);
    }
}

#[test]
fn the_transmit_interrupt_follows_a_byte_until_it_is_cleared() {
    let mut uart = enabled();
    let _ = uart.write(IMSC, INT_TX);
    assert!(!uart.irq_level(), "not before the first byte");
    assert_eq!(uart.write(DR, 0x141), Effect::Transmit(0x41));
    assert!(uart.irq_level());
    assert_eq!(uart.read(MIS), INT_TX);
    let _ = uart.write(ICR, INT_RX);
    assert!(uart.irq_level());
    let _ = uart.write(ICR, INT_TX);
    assert!(!uart.irq_level());
    let _ = uart.write(IMSC, 0);
    let _ = uart.write(DR, 0x42);
    assert!(!uart.irq_level());
    assert_eq!(uart.read(RIS), INT_TX);
}

#[test]
fn bytes_come_out_in_order_and_a_full_fifo_refuses() {
    let mut uart = enabled();
    let _ = uart.write(IMSC, INT_RX | INT_TIMEOUT);
    for byte in 0..FIFO_LEN as u8 {
        assert!(uart.receive(byte));
        assert!(uart.irq_level());
        let expected = if usize::from(byte) + 1 >= FIFO_LEN / 2 { INT_RX } else { 0 };
        assert_eq!(uart.read(MIS), INT_TIMEOUT | expected);
    }
    assert!(!uart.can_receive() && !uart.receive(99));
    assert_eq!(uart.read(FR) & (FR_RXFF | FR_RXFE), FR_RXFF);
    for byte in 0..FIFO_LEN as u32 {
        assert_eq!(uart.read(DR), byte);
    }
    assert!(!uart.irq_level());
    assert_eq!((uart.read(FR) & (FR_RXFF | FR_RXFE), uart.read(DR)), (FR_RXFE, 0));
}

#[test]
fn a_cleared_receive_interrupt_comes_again_with_the_next_byte() {
    let mut uart = enabled();
    let _ = uart.write(IMSC, INT_RX | INT_TIMEOUT);
    assert!(uart.receive(1) && uart.receive(2));
    let _ = uart.write(ICR, INT_RX | INT_TIMEOUT);
    assert!(!uart.irq_level());
    assert_eq!(uart.read(DR), 1);
    assert!(uart.irq_level(), "one is left, and times out");
    let _ = uart.write(ICR, INT_TIMEOUT);
    assert!(!uart.irq_level());
    assert!(uart.receive(3));
    assert!(uart.irq_level());
}

#[test]
fn without_fifos_there_is_room_for_one() {
    let mut uart = enabled();
    assert!(uart.receive(1) && uart.receive(2));
    let _ = uart.write(LCR_H, 0x60);
    assert_ne!(uart.read(FR) & FR_RXFE, 0, "emptied");
    assert!(uart.receive(3));
    assert_eq!(uart.read(RIS) & INT_RX, INT_RX);
    assert!(!uart.receive(4));
    assert_eq!(uart.read(DR), 3);
}

#[test]
fn a_receiver_that_is_off_takes_nothing() {
    for cr in [0, CR_ENABLE, CR_RX, CR_ENABLE | CR_TX, CR_ENABLE | CR_RX | CR_LOOP] {
        let mut uart = Pl011::default();
        let _ = uart.write(CR, cr);
        assert!(!uart.receive(1), "{cr:#x}");
    }
}

#[test]
fn loopback_brings_bytes_and_modem_lines_back() {
    let mut uart = enabled();
    let _ = uart.write(CR, CR_ENABLE | CR_TX | CR_RX | CR_LOOP | CR_RTS | CR_OUT2);
    assert_eq!(uart.read(FR) & 0x107, FR_CTS | FR_RI);
    assert_eq!(uart.read(RIS), 0b1101, "RI came, DCD and DSR went, CTS stayed");
    for byte in 0..=FIFO_LEN as u32 {
        assert_eq!(uart.write(DR, byte), Effect::None);
    }
    assert_ne!(uart.read(RIS) & INT_OVERRUN, 0);
    assert_eq!((uart.read(DR), uart.read(RSR)), (DR_OVERRUN, RSR_OVERRUN));
    let _ = uart.write(RSR, 0);
    assert_eq!((uart.read(RSR), uart.read(DR)), (0, 1));
}

#[test]
fn a_uart_that_nobody_enabled_sends_all_the_same() {
    let mut uart = Pl011::default();
    assert_eq!(uart.write(DR, 0x21), Effect::Transmit(0x21));
}
