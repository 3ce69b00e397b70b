//! Trace rings: what each CPU does, as fixed-size records that the host tool reads out of shared
//! memory while the hypervisor runs.
//!
//! An image with tracing has a ring for each CPU, at most [`RING_BYTES_MAX`] in total; the
//! [`Beacon`](crate::counters::Beacon) says where they are. The rings are adjacent, each laid out
//! as [`ring`](crate::ring) describes. Times are ticks of the clock whose rate the beacon names.
//!
//! | event | vCPU | `detail` | `a` | `b` |
//! |---|---|---|---|---|
//! | `Enter` | on this CPU | | | |
//! | `EntryCancelled` | on this CPU | | | |
//! | `Exit` | on this CPU | index of its [`Counter`](crate::counters::Counter) | | |
//! | `TurnBegins` | on this CPU | 1 if the vCPU migrated from another CPU | | |
//! | `TurnEnds` | on this CPU until now | | | |
//! | `IdleBegins`, `IdleEnds` | [`NO_VCPU`] | | | |
//! | `FlushAsked` | initiator | row of a bank's first vCPU | vCPUs of this bank that are named | elements of the list, 0 for everything |
//! | `Kick` | on this CPU, or `NO_VCPU` | CPU that is kicked | | |
//! | `FlushDone` | initiator | 1 if it waited | targets, and in the upper half those deferred | kicks, and in the upper half those merged |
//! | `FlushTaken` | target | 1 for everything, 0 for pages | pages | |
//! | `SpaceFlushBegins`, `SpaceFlushEnds` | `NO_VCPU` | | | |
//! | `Posted` | target | vector, or INTID on Arm64 | | |
//!
//! A vCPU is its row: its number among all vCPUs of all guests. A flush that names vCPUs of several
//! banks has a `FlushAsked` for each of these banks.

use crate::ring::HEADER_BYTES;

/// The vCPU of events that belong to no vCPU.
pub const NO_VCPU: u16 = u16::MAX;

/// Maximum size of all rings together, in bytes.
pub const RING_BYTES_MAX: u64 = 16 << 20;

/// Maximum number of records in a ring.
pub const RECORDS_MAX: u64 = 1 << 15;

/// Words of a record.
pub const WORDS: usize = 4;

/// Bytes of a record.
const RECORD_BYTES: u64 = 8 * WORDS as u64;

/// Bytes of a ring with this many records.
pub const fn ring_bytes(records: u64) -> u64 {
    HEADER_BYTES + records * RECORD_BYTES
}

/// The number of records in each of `rings` rings: a power of two.
pub const fn records_in_each(rings: u64) -> u64 {
    let rings = if rings == 0 { 1 } else { rings };
    let fit = RING_BYTES_MAX / (rings * RECORD_BYTES);
    let fit = if fit < 3 { 2 } else { fit - 1 }; // Less one, for the header.
    let power = 1 << (u64::BITS - 1 - fit.leading_zeros());
    if power < RECORDS_MAX { power } else { RECORDS_MAX }
}

macro_rules! events {
    ($($(#[doc = $doc:literal])+ $variant:ident = $code:literal,)+) => {
        /// The kind of a record.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
        #[repr(u8)]
        pub enum Event {
            $($(#[doc = $doc])+ $variant = $code,)+
        }

        impl Event {
            /// All of them.
            pub const ALL: [Self; [$($code),+].len()] = [$(Self::$variant),+];

            /// The one with this code.
            pub const fn from_code(code: u8) -> Option<Self> {
                match code {
                    $($code => Some(Self::$variant),)+
                    _ => None,
                }
            }
        }
    };
}

events! {
    /// A vCPU is about to enter the guest.
    Enter = 1,
    /// It did not enter: an event or a flush request is pending.
    EntryCancelled = 2,
    /// It has left the guest.
    Exit = 3,
    /// A CPU has taken a vCPU.
    TurnBegins = 4,
    /// A CPU has nothing to do and waits for an interrupt.
    IdleBegins = 5,
    /// It continues.
    IdleEnds = 6,
    /// A vCPU requests a flush of others.
    FlushAsked = 7,
    /// A CPU interrupts another one.
    Kick = 8,
    /// The flush is complete for its initiator.
    FlushDone = 9,
    /// A vCPU carries out its pending flush requests.
    FlushTaken = 10,
    /// All translations of a machine's memory are about to be flushed.
    SpaceFlushBegins = 11,
    /// They have been flushed.
    SpaceFlushEnds = 12,
    /// A CPU gives its vCPU up; any CPU may take it from now on.
    TurnEnds = 13,
    /// An interrupt for a vCPU is posted to its inbox, by another vCPU, a device or itself.
    Posted = 14,
}

/// One record.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Record {
    /// The time, in ticks of the clock.
    pub time: u64,
    /// The kind of event.
    pub event: Event,
    /// The vCPU that it belongs to, by its row.
    pub vcpu: u16,
    /// See the table above.
    pub detail: u32,
    /// See the table above.
    pub a: u64,
    /// See the table above.
    pub b: u64,
}

impl Record {
    /// Its words in a ring.
    #[inline(always)]
    pub const fn words(&self) -> [u64; WORDS] {
        let what = self.event as u64 | (self.vcpu as u64) << 16 | (self.detail as u64) << 32;
        [self.time, what, self.a, self.b]
    }

    /// The record with these words; `None` if the event is unknown.
    pub const fn from_words([time, what, a, b]: [u64; WORDS]) -> Option<Self> {
        let Some(event) = Event::from_code(what as u8) else { return None };
        Some(Self { time, event, vcpu: (what >> 16) as u16, detail: (what >> 32) as u32, a, b })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn records_are_read_as_they_were_written() {
        for event in Event::ALL {
            let record = Record { time: u64::MAX, event, vcpu: 254, detail: u32::MAX, a: 1, b: u64::MAX - 1 };
            assert_eq!(Record::from_words(record.words()), Some(record));
        }
        assert_eq!(Record::from_words([1, 0, 0, 0]), None);
        assert_eq!(Record::from_words([1, 0xff, 0, 0]), None);
    }

    #[test]
    fn rings_fit_into_their_memory() {
        for rings in [0, 1, 2, 3, 16, 17, 255, 256, 1 << 18] {
            let records = records_in_each(rings);
            assert!(records.is_power_of_two() && (2..=RECORDS_MAX).contains(&records), "{rings}: {records}");
            assert!(rings > 256 || rings * ring_bytes(records) <= RING_BYTES_MAX, "{rings}: {records}");
        }
        assert_eq!((records_in_each(3), ring_bytes(4)), (RECORDS_MAX, 64 + 4 * 32));
    }
}
