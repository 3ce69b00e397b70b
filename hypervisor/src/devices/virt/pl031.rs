//! Arm's real-time clock: PrimeCell PL031 (Arm DDI 0224C). It tells the time, can be set, and has
//! an alarm: it interrupts when the time is that of its match register (section 3.3.2).

use migration::described;

use crate::devices::wall_clock::NS;

const DATA: u32 = 0x00;
const MATCH: u32 = 0x04;
const LOAD: u32 = 0x08;
const CONTROL: u32 = 0x0c;
const MASK: u32 = 0x10;
const RAW: u32 = 0x14;
const MASKED: u32 = 0x18;
const CLEAR: u32 = 0x1c;
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
    /// The time was that of the match register, and the guest has not cleared it.
    is_raised: bool,
    /// When it will be, in nanoseconds after the beginning of 1970. None before the guest has
    /// written the match register.
    due_ns: Option<u64>,
}

// Its times are the guest's, which go on where they were.
described!(Pl031: ahead, alarm, load, mask & 1, is_raised, due_ns);

impl Pl031 {
    /// Reads a register, when it is `wall_ns` nanoseconds after the beginning of 1970.
    pub fn read(&self, offset: u32, wall_ns: u64) -> u32 {
        match offset {
            DATA => seconds(wall_ns).wrapping_add(self.ahead),
            MATCH => self.alarm,
            LOAD => self.load,
            // It always runs.
            CONTROL => 1,
            MASK => self.mask,
            RAW => self.is_raised.into(),
            MASKED => self.irq_level().into(),
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
            MATCH => {
                self.alarm = value;
                self.arm(wall_ns);
            }
            LOAD => {
                self.load = value;
                self.ahead = value.wrapping_sub(seconds(wall_ns));
                if self.due_ns.is_some() {
                    self.arm(wall_ns);
                }
            }
            MASK => self.mask = value & 1,
            CLEAR if value & 1 != 0 => self.is_raised = false,
            _ => {}
        }
    }

    /// The next time at which all 32 bits match; at once if they do.
    fn arm(&mut self, wall_ns: u64) {
        let left = self.alarm.wrapping_sub(self.read(DATA, wall_ns));
        self.due_ns = Some((wall_ns / NS).saturating_add(left.into()).saturating_mul(NS));
        self.update(wall_ns);
    }

    /// Raises the alarm if it is time.
    pub fn update(&mut self, wall_ns: u64) {
        if let Some(due) = self.due_ns.filter(|&due| due <= wall_ns) {
            self.is_raised = true;
            self.due_ns = Some(due.saturating_add(WRAP_NS));
        }
    }

    /// When to call [`update`](Self::update).
    pub const fn due_ns(&self) -> Option<u64> {
        self.due_ns
    }

    /// The level of its interrupt.
    pub const fn irq_level(&self) -> bool {
        self.is_raised && self.mask != 0
    }

    /// Resets to the state after power-on. The time continues, as on battery.
    pub fn reset(&mut self) {
        *self = Self { ahead: self.ahead, ..Self::default() };
    }
}

/// How long the counter takes to come around.
const WRAP_NS: u64 = NS << 32;

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
        for offset in [DATA, CONTROL, RAW, MASKED, ID, 0xffc, u32::MAX] {
            clock.write(offset, u32::MAX, 0);
        }
        clock.write(MATCH, 7, 0);
        clock.write(MASK, u32::MAX, 0);
        assert_eq!((clock.read(MATCH, 0), clock.read(MASK, 0), clock.read(CONTROL, 0)), (7, 1, 1));
    }

    #[test]
    fn u25_the_alarm_rings_when_the_time_matches_until_it_is_cleared() {
        let mut clock = Pl031::default();
        let at = |second: u64| (UNIX + second) * NS;
        clock.update(at(0));
        assert_eq!((clock.due_ns(), clock.irq_level()), (None, false), "nobody has set it");
        clock.write(MATCH, UNIX as u32 + 3, at(0) + 7);
        assert_eq!(clock.due_ns(), Some(at(3)), "as the second begins");
        clock.update(at(3) - 1);
        assert_eq!(clock.read(RAW, at(3) - 1), 0);
        clock.update(at(3));
        let shown = |clock: &Pl031| (clock.read(RAW, 0), clock.read(MASKED, 0), clock.irq_level());
        assert_eq!(shown(&clock), (1, 0, false), "masked");
        clock.write(MASK, 1, at(4));
        assert_eq!(shown(&clock), (1, 1, true));
        clock.write(CLEAR, 0, at(4));
        assert!(clock.irq_level());
        clock.write(CLEAR, 1, at(4));
        assert_eq!(shown(&clock), (0, 0, false));
        assert_eq!(clock.due_ns(), Some(at(3 + (1 << 32))), "when the counter has come around");
        // The present second matches; a past one does when the counter has come around.
        clock.write(MATCH, UNIX as u32 + 9, at(9) + 5);
        assert!(clock.irq_level());
        clock.write(CLEAR, 1, at(9));
        clock.write(MATCH, UNIX as u32 + 8, at(9));
        assert_eq!((clock.due_ns(), clock.irq_level()), (Some(at(8 + (1 << 32))), false));
        // Whoever sets the clock moves the alarm.
        clock.write(LOAD, UNIX as u32 + 6, at(9));
        assert_eq!(clock.due_ns(), Some(at(11)));
        clock.update(at(11));
        assert!(clock.irq_level());
        clock.reset();
        assert_eq!((clock.due_ns(), shown(&clock)), (None, (0, 0, false)));
        assert_eq!(clock.read(DATA, at(12)), UNIX as u32 + 9);
    }
}
