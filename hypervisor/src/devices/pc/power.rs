//! Power-off and reset: the ACPI sleep registers of a hardware-reduced platform, and the reset
//! register.

/// Port of the sleep control register (ACPI 6.5 section 4.8.3.7).
pub const SLEEP_CONTROL: u16 = 0x600;
/// Port of the sleep status register.
pub const SLEEP_STATUS: u16 = 0x601;
/// Port of the reset register: the chipset's, which Linux writes even without ACPI.
pub const RESET: u16 = 0xcf9;
/// The value that resets through [`RESET`].
pub const RESET_VALUE: u8 = 0x06;
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

/// The guest's request to the machine.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PowerEvent {
    /// End the VM.
    PowerOff,
    /// Restart it.
    Reset,
}

/// Reads one of the three registers; `None` for another port. The guest never wakes from a sleep,
/// so the status stays 0; sleep control is write-only.
#[must_use]
pub const fn read(port: u16) -> Option<u8> {
    match port {
        SLEEP_CONTROL | SLEEP_STATUS | RESET => Some(0),
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
}
