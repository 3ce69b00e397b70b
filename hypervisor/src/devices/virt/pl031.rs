//! Arm's real-time clock: PrimeCell PL031 (Arm DDI 0224C). It tells the time and can be set. Its
//! interrupt is not connected, and the device tree names none: there is no alarm.

use crate::devices::wall_clock::NS;

const DATA: u32 = 0x00;
const MATCH: u32 = 0x04;
const LOAD: u32 = 0x08;
const CONTROL: u32 = 0x0c;
const MASK: u32 = 0x10;
/// Offset of the identification, with a byte in each word.
const ID: u32 = 0xfe0;
/// Peripheral and cell identification, of revision 0.
const ID_BYTES: [u8; 8] = [0x31, 0x10, 0x04, 0x00, 0x0d, 0xf0, 0x05, 0xb1];

/// The clock's registers.
#[derive(Clone, Debug, Default)]
pub struct Pl031 {
    /// How far its time is ahead of the machine's, in seconds: the guest has set it.
    ahead: u32,
    alarm: u32,
    load: u32,
    mask: u32,
}

impl Pl031 {
    /// Reads a register, when it is `wall_ns` nanoseconds after the beginning of 1970.
    #[must_use]
    pub fn read(&self, offset: u32, wall_ns: u64) -> u32 {
        match offset {
            DATA => seconds(wall_ns).wrapping_add(self.ahead),
            MATCH => self.alarm,
            LOAD => self.load,
            // It always runs.
            CONTROL => 1,
            MASK => self.mask,
            ID.. => {
                let index = ((offset - ID) / 4) as usize;
                ID_BYTES.get(index).copied().filter(|_| offset.is_multiple_of(4)).map_or(0, u32::from)
            }
            _ => 0,
        }
    }

    /// Writes a register.
    pub fn write(&mut self, offset: u32, value: u32, wall_ns: u64) {
        match offset {
            MATCH => self.alarm = value,
            LOAD => {
                self.load = value;
                self.ahead = value.wrapping_sub(seconds(wall_ns));
            }
            MASK => self.mask = value & 1,
            _ => {}
        }
    }

    /// Resets to the state after power-on. The time continues, as on battery.
    pub fn reset(&mut self) {
        *self = Self { ahead: self.ahead, ..Self::default() };
    }
}

/// The counter uses all of its 32 bits: it wraps in 2106.
const fn seconds(wall_ns: u64) -> u32 {
    (wall_ns / NS) as u32
}

#[cfg(test)]
mod tests {
    use super::*;

    const UNIX: u64 = 1_795_383_836;

    #[test]
    fn u25_an_arm_boards_clock_says_what_time_it_is() {
        let clock = Pl031::default();
        assert_eq!(clock.read(DATA, UNIX * NS + NS - 1), UNIX as u32);
        assert_eq!(clock.read(DATA, (UNIX + 1) * NS), UNIX as u32 + 1);
        let id = |offset: u32| clock.read(offset, 0);
        assert_eq!([0xfe0, 0xfe4, 0xfe8, 0xfec].map(id), [0x31, 0x10, 0x04, 0]);
        assert_eq!([0xff0, 0xff4, 0xff8, 0xffc].map(id), [0x0d, 0xf0, 0x05, 0xb1]);
        assert_eq!([0x0c, 0x14, 0x18, 0x1c, 0xfe1, 0x1000, u32::MAX].map(id), [1, 0, 0, 0, 0, 0, 0]);
    }

    #[test]
    fn what_a_guest_sets_goes_on_from_there_and_through_a_reset() {
        let mut clock = Pl031::default();
        for time in [1_000_000_000, u32::MAX, 0] {
            clock.write(LOAD, time, UNIX * NS);
            assert_eq!(clock.read(DATA, (UNIX + 3) * NS), time.wrapping_add(3));
            clock.reset();
            assert_eq!(clock.read(DATA, (UNIX + 4) * NS), time.wrapping_add(4));
        }
        for offset in [DATA, CONTROL, 0x14, 0x1c, ID, 0xffc, u32::MAX] {
            clock.write(offset, u32::MAX, 0);
        }
        clock.write(MATCH, 7, 0);
        clock.write(MASK, u32::MAX, 0);
        assert_eq!((clock.read(MATCH, 0), clock.read(MASK, 0), clock.read(CONTROL, 0)), (7, 1, 1));
    }
}
