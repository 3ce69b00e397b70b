//! Power-off and reset: the ACPI sleep registers of a hardware-reduced platform, the reset
//! register, and the keyboard controller's line.
//!
//! There is no keyboard controller, and the ACPI tables say so. But kernels that do not read them
//! reset by its command, and first wait until it can take one: it can always.

/// Port of the sleep control register (ACPI 6.5 section 4.8.3.7).
pub const SLEEP_CONTROL: u16 = 0x600;
/// Port of the sleep status register.
pub const SLEEP_STATUS: u16 = 0x601;
/// Port of the reset register: the chipset's, which Linux writes even without ACPI.
pub const RESET: u16 = 0xcf9;
/// The value that resets through [`RESET`].
pub const RESET_VALUE: u8 = 0x06;
/// Port of the keyboard controller's commands and of its status.
pub const KEYBOARD: u16 = 0x64;
/// SLP_TYP of soft-off, as in the DSDT's `\_S5`.
pub const SLEEP_TYPE_S5: u8 = 5;

/// The reset vector of a PC's firmware. Linux jumps there in real mode when it knows no other way
/// to reset; on a hardware-reduced platform without EFI it tries nothing else.
pub const RESET_VECTOR: u64 = 0xf_fff0;
/// The code there: `mov dx, RESET; mov al, RESET_VALUE; out dx, al; hlt; jmp` back to the `hlt`.
pub const RESET_CODE: [u8; 9] =
    [0xba, RESET.to_le_bytes()[0], RESET.to_le_bytes()[1], 0xb0, RESET_VALUE, 0xee, 0xf4, 0xeb, 0xfd];

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

/// Reads one of the four registers; `None` for another port. The guest never wakes from a sleep, so
/// the status stays 0; sleep control is write-only. The keyboard controller has nothing to read,
/// and has taken all commands.
#[must_use]
pub const fn read(port: u16) -> Option<u8> {
    match port {
        SLEEP_CONTROL | SLEEP_STATUS | RESET | KEYBOARD => Some(0),
        _ => None,
    }
}

/// Writes one of them. Sleep states other than soft-off do not exist and are ignored.
#[must_use]
pub const fn write(port: u16, value: u8) -> Option<PowerEvent> {
    match port {
        SLEEP_CONTROL if value & SLP_EN != 0 && value >> SLP_TYP_SHIFT & 7 == SLEEP_TYPE_S5 => {
            Some(PowerEvent::PowerOff)
        }
        RESET if value & RESET_CPU != 0 => Some(PowerEvent::Reset),
        KEYBOARD if value & (PULSE | RESET_LINE) == PULSE => Some(PowerEvent::Reset),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_soft_off_with_enable_powers_off() {
        for value in 0..=u8::MAX {
            let off = value & 0b11_1100 == 0b11_0100;
            assert_eq!(write(SLEEP_CONTROL, value) == Some(PowerEvent::PowerOff), off, "{value:#x}");
            assert_eq!(write(SLEEP_STATUS, value), None);
        }
    }

    #[test]
    fn reset_needs_the_cpu_bit() {
        assert_eq!(write(RESET, 0x02), None, "what precedes the reset proper");
        assert_eq!(write(RESET, RESET_VALUE), Some(PowerEvent::Reset));
        assert_eq!(write(RESET, 0x0e), Some(PowerEvent::Reset));
        assert_eq!(write(0xcf8, RESET_VALUE), None);
        assert_eq!(read(0xcf8), None);
    }

    /// As Linux does with `reboot=k`: it waits until the input buffer is empty, bit 1 of the
    /// status.
    #[test]
    fn u57_the_keyboard_controller_takes_its_reset_at_once() {
        assert_eq!(read(KEYBOARD), Some(0), "neither is anything to be read, bit 0");
        for value in 0..=u8::MAX {
            let resets = matches!(value, 0xf0 | 0xf2 | 0xf4 | 0xf6 | 0xf8 | 0xfa | 0xfc | 0xfe);
            assert_eq!(write(KEYBOARD, value) == Some(PowerEvent::Reset), resets, "{value:#x}");
        }
    }
}
