//! Power management: ACPI's fixed hardware, the reset register, and the keyboard controller's line.
//!
//! The fixed hardware switches the machine off, and wakes a kernel that idles until an event: by
//! the clock's alarm, and by a sleep button, which the operator presses. The button is a
//! general-purpose event that only wakes. A button of the fixed hardware would have a kernel that
//! is awake switch the machine off, or go to sleep. Another such event says that the guest's
//! generation id is a new one. SCI_EN is always set: no firmware handles events. There is no timer.
//!
//! There is no keyboard controller, and the ACPI tables say so. But kernels that do not read them
//! reset by its command, and first wait until it can take one: it can always.

use migration::described;

/// First port of PM1a's events: two bytes of status, two of enables (ACPI 6.5 section 4.8.3.1).
pub const EVENTS: u16 = 0x600;
const EVENTS_HIGH: u16 = EVENTS + 1;
const ENABLES: u16 = EVENTS + 2;
const ENABLES_HIGH: u16 = EVENTS + 3;
/// First of the two ports of PM1a's control register (section 4.8.3.2).
pub const CONTROL: u16 = EVENTS + 4;
/// Its higher byte.
pub const SLEEP: u16 = CONTROL + 1;
/// The ports of general-purpose events: a byte of status, and one of enables (section 4.8.4.1).
pub const GENERAL: u16 = EVENTS + 8;
/// The last of the ports at which words can be accessed, too. At others it is bytes.
pub const GENERAL_ENABLES: u16 = GENERAL + 1;
/// Pin of the system control interrupt on the I/O APIC.
pub const PIN: u8 = 9;
/// Port of the reset register: the chipset's, which Linux writes even without ACPI.
pub const RESET: u16 = 0xcf9;
/// The value that resets through [`RESET`].
pub const RESET_VALUE: u8 = 0x06;
/// Port of the keyboard controller's commands and of its status.
pub const KEYBOARD: u16 = 0x64;
/// SLP_TYP of soft-off, as in the DSDT's `\_S5`.
pub const SLEEP_TYPE_S5: u8 = 5;
/// The sleep button's event, among general-purpose events.
pub const BUTTON: u8 = 0;
/// The event of a new generation id.
pub const GENERATION: u8 = 1;

/// The reset vector of a PC's firmware. Linux jumps there in real mode when it knows no other way
/// to reset.
pub const RESET_VECTOR: u64 = 0xf_fff0;
/// The code there: `mov dx, RESET; mov al, RESET_VALUE; out dx, al; hlt; jmp` back to the `hlt`.
pub const RESET_CODE: [u8; 9] =
    [0xba, RESET.to_le_bytes()[0], RESET.to_le_bytes()[1], 0xb0, RESET_VALUE, 0xee, 0xf4, 0xeb, 0xfd];

/// The clock's event, in the higher bytes.
const RTC: u8 = 1 << 2;
/// Events that can be enabled: those of timer and global lock; in the higher byte of both buttons
/// and of the clock. All but the last never occur.
const CAN_ENABLE: u8 = 1 << 0 | 1 << 5;
const CAN_ENABLE_HIGH: u8 = 1 << 0 | 1 << 1 | RTC;
/// General-purpose events that occur.
const GENERAL_EVENTS: u8 = 1 << BUTTON | 1 << GENERATION;
const SCI_EN: u8 = 1 << 0;
/// In the higher byte of PM1a's control register.
const SLP_EN: u8 = 1 << 5;
const SLP_TYP_SHIFT: u8 = 2;
const RESET_CPU: u8 = 1 << 2;
/// The keyboard controller's commands that pulse output lines: those whose bits are clear (Intel
/// 8042 data sheet, commands F0 to FF). Line 0 resets.
const PULSE: u8 = 0xf0;
const RESET_LINE: u8 = 1 << 0;

/// The guest's request to the machine.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PowerEvent {
    /// End the VM.
    PowerOff,
    /// Restart it.
    Reset,
}

/// The registers.
#[derive(Clone, Debug, Default)]
pub struct Power {
    /// Level of the clock's interrupt.
    clock: bool,
    /// Status of the clock's event, and enables.
    rtc: u8,
    enables: u8,
    enables_high: u8,
    /// Status and enables of general-purpose events.
    general: u8,
    general_enables: u8,
}

described! { Power:
    clock, rtc & RTC, enables & CAN_ENABLE, enables_high & CAN_ENABLE_HIGH, general & GENERAL_EVENTS,
    general_enables & GENERAL_EVENTS
}

impl Power {
    /// Reads a register; `None` for another port. The keyboard controller has nothing to read, and
    /// has taken all commands.
    pub const fn read(&self, port: u16) -> Option<u8> {
        Some(match port {
            EVENTS_HIGH => self.rtc,
            ENABLES => self.enables,
            ENABLES_HIGH => self.enables_high,
            CONTROL => SCI_EN,
            GENERAL => self.general,
            GENERAL_ENABLES => self.general_enables,
            EVENTS..GENERAL | RESET | KEYBOARD => 0,
            _ => return None,
        })
    }

    /// Writes one. Sleep states other than soft-off do not exist and are ignored.
    pub const fn write(&mut self, port: u16, value: u8) -> Option<PowerEvent> {
        match port {
            EVENTS_HIGH => self.rtc &= !value,
            ENABLES => self.enables = value & CAN_ENABLE,
            ENABLES_HIGH => self.enables_high = value & CAN_ENABLE_HIGH,
            GENERAL => self.general &= !value,
            GENERAL_ENABLES => self.general_enables = value & GENERAL_EVENTS,
            SLEEP if value & SLP_EN != 0 && value >> SLP_TYP_SHIFT & 7 == SLEEP_TYPE_S5 => {
                return Some(PowerEvent::PowerOff);
            }
            RESET if value & RESET_CPU != 0 => return Some(PowerEvent::Reset),
            KEYBOARD if value & (PULSE | RESET_LINE) == PULSE => return Some(PowerEvent::Reset),
            _ => {}
        }
        None
    }

    /// The level of the clock's interrupt, whose rise is an event (ACPI 6.5 section 4.8.2.4).
    pub const fn set_clock(&mut self, level: bool) {
        if level && !self.clock {
            self.rtc = RTC;
        }
        self.clock = level;
    }

    /// A general-purpose event occurs: [`BUTTON`] or [`GENERATION`].
    pub const fn happens(&mut self, event: u8) {
        self.general |= 1 << event & GENERAL_EVENTS;
    }

    /// The level of the system control interrupt.
    pub const fn irq_level(&self) -> bool {
        self.rtc & self.enables_high != 0 || self.general & self.general_enables != 0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_soft_off_with_enable_powers_off() {
        for value in 0..=u8::MAX {
            let off = value & 0b11_1100 == 0b11_0100;
            let mut power = Power::default();
            assert_eq!(power.write(SLEEP, value) == Some(PowerEvent::PowerOff), off, "{value:#x}");
            assert_eq!(power.write(CONTROL, value), None);
            assert_eq!((power.read(CONTROL), power.read(SLEEP)), (Some(SCI_EN), Some(0)));
        }
    }

    #[test]
    fn reset_needs_the_cpu_bit() {
        let mut power = Power::default();
        assert_eq!(power.write(RESET, 0x02), None, "what precedes the reset proper");
        assert_eq!(power.write(RESET, RESET_VALUE), Some(PowerEvent::Reset));
        assert_eq!(power.write(RESET, 0x0e), Some(PowerEvent::Reset));
        assert_eq!(power.write(0xcf8, RESET_VALUE), None);
        assert_eq!(power.read(0xcf8), None);
    }

    /// As Linux does with `reboot=k`: it waits until the input buffer is empty, bit 1 of the
    /// status.
    #[test]
    fn u57_the_keyboard_controller_takes_its_reset_at_once() {
        let mut power = Power::default();
        assert_eq!(power.read(KEYBOARD), Some(0), "neither is anything to be read, bit 0");
        for value in 0..=u8::MAX {
            let resets = matches!(value, 0xf0 | 0xf2 | 0xf4 | 0xf6 | 0xf8 | 0xfa | 0xfc | 0xfe);
            assert_eq!(power.write(KEYBOARD, value) == Some(PowerEvent::Reset), resets, "{value:#x}");
        }
    }

    #[test]
    fn u67_an_event_interrupts_while_it_is_enabled_until_its_status_is_cleared() {
        for (happen, status, enables, bit) in [
            ((|power| power.set_clock(true)) as fn(&mut Power), EVENTS_HIGH, ENABLES_HIGH, RTC),
            (|power| power.happens(BUTTON), GENERAL, GENERAL_ENABLES, 1),
            (|power| power.happens(GENERATION), GENERAL, GENERAL_ENABLES, 2),
        ] {
            let mut power = Power::default();
            happen(&mut power);
            assert_eq!((power.read(status), power.irq_level()), (Some(bit), false), "not enabled");
            let _ = power.write(enables, 0xff);
            assert!(power.irq_level());
            for other in (EVENTS..=GENERAL_ENABLES).filter(|&port| port != status && port != enables) {
                let _ = power.write(other, 0xff);
            }
            let _ = power.write(status, !bit);
            assert!(power.irq_level(), "another bit is written");
            let _ = power.write(status, bit);
            assert_eq!((power.read(status), power.irq_level()), (Some(0), false));
            if status == EVENTS_HIGH {
                power.set_clock(true);
                assert!(!power.irq_level(), "it was high");
            }
            power.set_clock(false);
            happen(&mut power);
            let _ = power.write(enables, !bit);
            assert_eq!((power.read(status), power.irq_level()), (Some(bit), false), "disabled again");
        }
        let mut power = Power::default();
        for port in EVENTS..=GENERAL_ENABLES {
            let _ = power.write(port, 0xff);
        }
        let shown: [_; 10] = core::array::from_fn(|at| power.read(EVENTS + at as u16).unwrap_or(0xff));
        assert_eq!(shown, [0, 0, 0x21, 7, 1, 0, 0, 0, 0, 3]);
    }
}
