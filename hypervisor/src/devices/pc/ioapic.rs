//! The I/O APIC: 24 pins, version 0x20 (Intel 82093AA data sheet, and the EOI register of its
//! successors).

use super::apic_ids::ApicId;
use super::message::{Destination, Message, MessageKind, Trigger};
use arrayvec::ArrayVec;
use bitfield_struct::bitfield;
use migration::described;

/// Number of pins.
pub const PINS: usize = 24;
/// Guest physical address of the registers.
pub const BASE: u64 = 0xfec0_0000;
/// Size of the registers at [`BASE`] in bytes.
pub const LEN: u64 = 0x1000;

/// Version 0x20, highest entry 23.
const VERSION: u32 = 0x20 | (PINS as u32 - 1) << 16;

/// Offsets of the memory-mapped registers.
const IOREGSEL: u64 = 0x00;
const IOWIN: u64 = 0x10;
const EOIR: u64 = 0x40;

/// Values of IOREGSEL. Entry `n` is at `REDIRECTION + 2 * n`, low half first.
const ID: u8 = 0x00;
const VER: u8 = 0x01;
const ARB: u8 = 0x02;
const REDIRECTION: u8 = 0x10;

/// The messages that one access or EOI sends.
pub type Messages = ArrayVec<Message, PINS>;

#[bitfield(u64)]
#[derive(PartialEq, Eq)]
struct Entry {
    vector: u8,
    #[bits(3)]
    mode: u8,
    logical: bool,
    delivery_status: bool,
    active_low: bool,
    /// Level-triggered: sent, and no EOI yet.
    remote_irr: bool,
    level: bool,
    masked: bool,
    #[bits(39)]
    reserved: u64,
    destination: u8,
}

/// The bits that a write can change; the rest is read-only or reserved and keeps its value.
const WRITABLE: u64 = 0xff00_0000_0001_afff;

impl Entry {
    /// Level applies to the two vectored modes, which an EOI acknowledges; the others are always
    /// edge (82093AA data sheet section 3.2.4, bits 10:8).
    fn trigger(self) -> Trigger {
        if self.level() && self.mode() <= 1 { Trigger::Level } else { Trigger::Edge }
    }

    /// The message of this entry. `None` for SMI, ExtINT and the reserved modes, which have no
    /// target here.
    fn message(self) -> Option<Message> {
        let kind = match self.mode() {
            0 => MessageKind::Fixed(self.vector()),
            1 => MessageKind::Lowest(self.vector()),
            4 => MessageKind::Nmi,
            5 => MessageKind::Init,
            _ => return None,
        };
        let destination = match (self.logical(), self.destination()) {
            // Eight bits name the members of cluster 0.
            (true, members) => Destination::Logical(u32::from(members)),
            (false, 0xff) => Destination::Physical(ApicId::BROADCAST),
            (false, id) => Destination::Physical(ApicId(u32::from(id))),
        };
        Some(Message { kind, destination, trigger: self.trigger() })
    }
}

/// The I/O APIC.
#[derive(Clone, Debug)]
pub struct IoApic {
    select: u8,
    id: u8,
    entries: [Entry; PINS],
    /// Pins whose line is asserted, one bit each. Lines are either asserted or not: polarity is a
    /// matter of the wire.
    lines: u32,
}

impl Default for IoApic {
    /// After reset: every pin masked, every line low.
    fn default() -> Self {
        Self { select: 0, id: 0, entries: [Entry::new().with_masked(true); PINS], lines: 0 }
    }
}

described!(Entry: 0 & (WRITABLE | Self::new().with_remote_irr(true).into_bits()));

described!(IoApic: select, id & 0xf, entries, lines & ((1 << PINS) - 1));

impl IoApic {
    /// Reads the register at `offset` from [`BASE`]; all accesses are 32 bits wide.
    pub fn read(&self, offset: u64) -> u32 {
        match offset {
            IOREGSEL => u32::from(self.select),
            IOWIN => self.read_selected(),
            _ => u32::MAX,
        }
    }

    /// Writes the register at `offset` from [`BASE`].
    pub fn write(&mut self, offset: u64, value: u32) -> Messages {
        match offset {
            IOREGSEL => self.select = value as u8,
            IOWIN => return self.write_selected(value).into_iter().collect(),
            EOIR => return self.eoi(value as u8),
            _ => {}
        }
        Messages::new()
    }

    /// Drives a pin's line. A rising edge, or a level that is not yet in service, sends a message.
    pub fn set_line(&mut self, pin: usize, asserted: bool) -> Option<Message> {
        let entry = *self.entries.get(pin)?;
        let rises = asserted && self.lines >> pin & 1 == 0;
        self.lines = self.lines & !(1 << pin) | u32::from(asserted) << pin;
        match entry.trigger() {
            // An edge on a masked pin is lost (82093AA data sheet section 3.2.4, bit 16).
            Trigger::Edge if rises && !entry.masked() => entry.message(),
            Trigger::Edge => None,
            Trigger::Level => self.send_level(pin),
        }
    }

    /// An EOI for `vector` arrived: level-triggered pins with this vector that are still asserted
    /// send again.
    pub fn eoi(&mut self, vector: u8) -> Messages {
        let mut messages = Messages::new();
        for pin in 0..PINS {
            let entry = &mut self.entries[pin];
            if entry.vector() == vector && entry.remote_irr() {
                entry.set_remote_irr(false);
                messages.extend(self.send_level(pin));
            }
        }
        messages
    }

    fn send_level(&mut self, pin: usize) -> Option<Message> {
        let entry = &mut self.entries[pin];
        let asserted = self.lines >> pin & 1 != 0;
        if !asserted || entry.trigger() == Trigger::Edge || entry.masked() || entry.remote_irr() {
            return None;
        }
        entry.set_remote_irr(true);
        entry.message()
    }

    /// Pin and half (0 low, 32 high, as a shift) of the selected redirection register.
    fn selected_entry(&self) -> Option<(usize, u32)> {
        let index = usize::from(self.select.checked_sub(REDIRECTION)?);
        (index < 2 * PINS).then_some((index / 2, index as u32 % 2 * 32))
    }

    fn read_selected(&self) -> u32 {
        match self.select {
            ID | ARB => u32::from(self.id) << 24,
            VER => VERSION,
            _ => match self.selected_entry() {
                Some((pin, shift)) => (self.entries[pin].into_bits() >> shift) as u32,
                None => u32::MAX,
            },
        }
    }

    fn write_selected(&mut self, value: u32) -> Option<Message> {
        if self.select == ID {
            self.id = (value >> 24) as u8 & 0xf;
            return None;
        }
        let (pin, shift) = self.selected_entry()?;
        let mask = WRITABLE & 0xffff_ffff << shift;
        let bits = self.entries[pin].into_bits();
        let mut entry = Entry::from_bits(bits & !mask | u64::from(value) << shift & mask);
        if entry.trigger() == Trigger::Edge {
            // Software with no EOI register clears stuck remote IRRs by switching to edge and back.
            entry.set_remote_irr(false);
        }
        self.entries[pin] = entry;
        self.send_level(pin)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn program(ioapic: &mut IoApic, pin: u8, entry: u64) -> Messages {
        ioapic.write(IOREGSEL, u32::from(REDIRECTION + 2 * pin + 1));
        let _ = ioapic.write(IOWIN, (entry >> 32) as u32);
        ioapic.write(IOREGSEL, u32::from(REDIRECTION + 2 * pin));
        ioapic.write(IOWIN, entry as u32)
    }

    fn read_low(ioapic: &mut IoApic, pin: u8) -> u32 {
        let _ = ioapic.write(IOREGSEL, u32::from(REDIRECTION + 2 * pin));
        ioapic.read(IOWIN)
    }

    const LEVEL: u64 = 1 << 15;
    const MASKED: u64 = 1 << 16;
    const REMOTE_IRR: u32 = 1 << 14;

    #[test]
    fn nothing_beyond_the_last_pin_or_register() {
        let mut ioapic = IoApic::default();
        for pin in [PINS, 31, 32, usize::MAX] {
            assert_eq!(ioapic.set_line(pin, true), None);
        }
        for select in [3, 0x0f, 0x10 + 2 * PINS as u32, 0xff] {
            let _ = ioapic.write(IOREGSEL, select);
            assert!(ioapic.write(IOWIN, 0x31).is_empty());
            assert_eq!(ioapic.read(IOWIN), u32::MAX, "register {select:#x}");
        }
        for offset in [1, 4, 0x14, 0x20, 0x40, 0xfff, u64::MAX] {
            assert_eq!(ioapic.read(offset), u32::MAX);
            assert!(ioapic.write(offset, u32::MAX).is_empty());
        }
    }

    #[test]
    fn identification() {
        let mut ioapic = IoApic::default();
        let _ = ioapic.write(IOREGSEL, 1);
        assert_eq!(ioapic.read(IOWIN), 0x0017_0020);
        let _ = ioapic.write(IOWIN, 0);
        assert_eq!(ioapic.read(IOWIN), 0x0017_0020);
        let _ = ioapic.write(IOREGSEL, 0);
        let _ = ioapic.write(IOWIN, 0xffff_ffff);
        assert_eq!(ioapic.read(IOWIN), 0x0f00_0000);
        let _ = ioapic.write(IOREGSEL, 2);
        assert_eq!(ioapic.read(IOWIN), 0x0f00_0000);
    }

    #[test]
    fn reset_masks_every_pin() {
        let mut ioapic = IoApic::default();
        for pin in 0..PINS {
            assert_eq!(read_low(&mut ioapic, pin as u8), MASKED as u32);
            assert_eq!(ioapic.set_line(pin, true), None);
        }
    }

    #[test]
    fn edge_sends_once_per_rise_and_a_masked_edge_is_lost() {
        let mut ioapic = IoApic::default();
        let _ = program(&mut ioapic, 4, MASKED | 0x31);
        assert_eq!(ioapic.set_line(4, true), None);
        assert!(program(&mut ioapic, 4, 0x31 | 2 << 56).is_empty(), "unmasking does not send an old edge");
        assert_eq!(ioapic.set_line(4, true), None, "still high");
        assert_eq!(ioapic.set_line(4, false), None);
        let expected = Message {
            kind: MessageKind::Fixed(0x31),
            destination: Destination::Physical(ApicId(2)),
            trigger: Trigger::Edge,
        };
        assert_eq!((ioapic.set_line(4, true), ioapic.set_line(4, true)), (Some(expected), None));
        assert!(ioapic.eoi(0x31).is_empty(), "an edge is not sent again at EOI");
    }

    #[test]
    fn level_waits_for_its_eoi_and_is_sent_again_while_asserted() {
        let mut ioapic = IoApic::default();
        let _ = program(&mut ioapic, 9, LEVEL | 0x41);
        assert!(ioapic.set_line(9, true).is_some());
        assert_ne!(read_low(&mut ioapic, 9) & REMOTE_IRR, 0);
        assert_eq!(ioapic.set_line(9, false), None);
        assert_eq!(ioapic.set_line(9, true), None, "remote IRR holds it back");
        assert!(ioapic.eoi(0x42).is_empty(), "another vector's EOI");
        assert_eq!(ioapic.eoi(0x41).len(), 1);
        assert_eq!(ioapic.set_line(9, false), None);
        assert!(ioapic.eoi(0x41).is_empty());
        assert_eq!(read_low(&mut ioapic, 9) & REMOTE_IRR, 0);
    }

    #[test]
    fn level_that_was_masked_is_sent_when_unmasked() {
        let mut ioapic = IoApic::default();
        let _ = program(&mut ioapic, 9, MASKED | LEVEL | 0x41);
        assert_eq!(ioapic.set_line(9, true), None);
        assert_eq!(program(&mut ioapic, 9, LEVEL | 0x41).len(), 1);
        assert!(program(&mut ioapic, 9, LEVEL | 0x41).is_empty(), "in service");
        let _ = program(&mut ioapic, 9, MASKED | LEVEL | 0x41);
        assert!(ioapic.eoi(0x41).is_empty(), "masked at the EOI");
        assert_eq!(program(&mut ioapic, 9, LEVEL | 0x41).len(), 1);
    }

    #[test]
    fn two_pins_with_one_vector_are_both_released() {
        let mut ioapic = IoApic::default();
        for pin in [9, 10] {
            let _ = program(&mut ioapic, pin, LEVEL | 0x41);
            assert!(ioapic.set_line(usize::from(pin), true).is_some());
        }
        assert_eq!(ioapic.write(EOIR, 0x41).len(), 2);
    }

    #[test]
    fn remote_irr_is_read_only_and_cleared_by_a_turn_to_edge() {
        let mut ioapic = IoApic::default();
        let _ = program(&mut ioapic, 9, LEVEL | 0x41 | u64::from(REMOTE_IRR) | 1 << 12);
        assert_eq!(read_low(&mut ioapic, 9), (LEVEL | 0x41) as u32);
        assert!(ioapic.set_line(9, true).is_some());
        let _ = program(&mut ioapic, 9, LEVEL | 0x41);
        assert_ne!(read_low(&mut ioapic, 9) & REMOTE_IRR, 0);
        let _ = program(&mut ioapic, 9, MASKED | 0x41);
        assert_eq!(read_low(&mut ioapic, 9) & REMOTE_IRR, 0);
    }

    #[test]
    fn destinations_and_modes() {
        let cases = [
            (0x31 | 0xff << 56, Some((MessageKind::Fixed(0x31), Destination::Physical(ApicId::BROADCAST)))),
            (0x31 | 1 << 11 | 0x81 << 56, Some((MessageKind::Fixed(0x31), Destination::Logical(0x81)))),
            (0x31 | 1 << 8 | 1 << 11 | 3 << 56, Some((MessageKind::Lowest(0x31), Destination::Logical(3)))),
            (4 << 8, Some((MessageKind::Nmi, Destination::Physical(ApicId(0))))),
            (5 << 8, Some((MessageKind::Init, Destination::Physical(ApicId(0))))),
            (2 << 8, None),
            (3 << 8 | 0x31, None),
            (7 << 8 | 0x31, None),
        ];
        for (entry, expected) in cases {
            let mut ioapic = IoApic::default();
            let _ = program(&mut ioapic, 1, entry);
            assert_eq!(ioapic.set_line(1, true).map(|m| (m.kind, m.destination)), expected, "{entry:#x}");
        }
    }

    #[test]
    fn an_nmi_is_edge_triggered_whatever_the_entry_says() {
        let mut ioapic = IoApic::default();
        let _ = program(&mut ioapic, 1, LEVEL | 4 << 8);
        let message = ioapic.set_line(1, true).unwrap();
        assert_eq!((message.kind, message.trigger), (MessageKind::Nmi, Trigger::Edge));
        assert_eq!(read_low(&mut ioapic, 1) & REMOTE_IRR, 0, "no EOI will come");
        assert_eq!(ioapic.set_line(1, true), None, "not again while the line stays high");
    }
}
