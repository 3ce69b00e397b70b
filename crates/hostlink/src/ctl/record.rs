//! Records of an answer: `key=value` words, one row for each kind.

use super::{Access, Log, Word, parse_number};
use crate::guests::GuestState;
use crate::name::Name;
use arrayvec::ArrayVec;
use core::fmt;

/// A kind of record. [`Display`](fmt::Display) writes the fields, in their order.
pub trait Record: fmt::Display + Sized {
    /// Reads the fields, in any order; otherwise returns the first name that is missing or has an
    /// invalid value. Fields with other names are skipped.
    ///
    /// # Errors
    ///
    /// The name of the field.
    fn parse(fields: &str) -> Result<Self, &'static str>;
}

/// The value of a field.
fn field<W: Word>(fields: &str, name: &'static str) -> Result<W, &'static str> {
    let mut pairs = fields.split_ascii_whitespace().filter_map(|pair| pair.split_once('='));
    let value = pairs.find(|(key, _)| *key == name).and_then(|(_, value)| W::read(value));
    value.ok_or(name)
}

/// The records. A row has the name, and for each field its name, its type and its format.
macro_rules! records {
    ($(
        $(#[$about:meta])*
        $Name:ident {
            $(#[$first_about:meta])* $first:ident: $First:ty = $first_format:literal,
            $($(#[$field_about:meta])* $field:ident: $Type:ty = $format:literal,)*
        }
    )+) => {$(
        $(#[$about])*
        #[derive(Clone, Debug, PartialEq, Eq)]
        pub struct $Name {
            $(#[$first_about])*
            pub $first: $First,
            $($(#[$field_about])* pub $field: $Type,)*
        }

        impl fmt::Display for $Name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                write!(f, concat!(stringify!($first), "=", $first_format), self.$first)?;
                $(write!(f, concat!(" ", stringify!($field), "=", $format), self.$field)?;)*
                Ok(())
            }
        }

        impl Record for $Name {
            fn parse(fields: &str) -> Result<Self, &'static str> {
                Ok(Self {
                    $first: field(fields, stringify!($first))?,
                    $($field: field(fields, stringify!($field))?,)*
                })
            }
        }
    )+};
}

records! {
    /// A virtual machine.
    Vm {
        /// Its number.
        vm: u16 = "{}",
        /// Its vCPUs.
        vcpus: u32 = "{}",
        /// Bytes of its memory slots.
        memory: u64 = "{:#x}",
        /// Generation of its slots: it grows with each change.
        generation: u64 = "{}",
    }

    /// A guest.
    Guest {
        /// Its name.
        guest: Name = "{}",
        /// What it does.
        state: GuestState = "{}",
        /// Its vCPUs.
        vcpus: u32 = "{}",
        /// Bytes of its first memory.
        memory: u64 = "{:#x}",
        /// Its weight.
        weight: u32 = "{}",
        /// Ticks of the clock for which its vCPUs have had CPUs.
        used: u64 = "{}",
    }

    /// Memory of the hypervisor.
    Memory {
        /// Bytes of physical memory that belong to nobody.
        free: u64 = "{:#x}",
        /// Bytes that are allocated from the hypervisor's heap.
        heap: u64 = "{:#x}",
        /// The least number of bytes that a CPU's stack has had left so far.
        stack: u64 = "{:#x}",
    }

    /// A memory slot.
    Slot {
        /// Its number.
        slot: u16 = "{}",
        /// First guest physical address.
        gpa: u64 = "{:#x}",
        /// Bytes.
        size: u64 = "{:#x}",
        /// Physical address of the memory behind it.
        host: u64 = "{:#x}",
        /// The guest's access.
        access: Access = "{}",
        /// Whether stores to it are logged.
        log: Log = "{}",
    }

    /// A slot that was added.
    Added {
        /// Its number.
        slot: u16 = "{}",
    }

    /// The cost of deleting a slot.
    Deleted {
        /// Entries of the nested page table that were visited.
        visited: u64 = "{}",
        /// Tables that were freed.
        tables: u64 = "{}",
        /// Flushes that were requested.
        flushes: u64 = "{}",
        /// Steps.
        steps: u32 = "{}",
        /// Ticks of the clock in all steps.
        ticks: u64 = "{}",
        /// Ticks of the longest step.
        longest: u64 = "{}",
    }

    /// The bytes of an input that a console took.
    Taken {
        /// How many, from the first one on.
        taken: u32 = "{}",
    }

    /// Some of the pages that were written.
    Dirty {
        /// Runs of them, from the slot's first page on.
        dirty: Runs = "{}",
    }

    /// Memory through which a guest is sent or received, as `migration::channel` describes. Whoever
    /// has this record ends with a frame `Cut`, and touches the memory no more after that.
    Channel {
        /// Physical address.
        channel: u64 = "{:#x}",
        /// The session: that of an earlier request if the guest was given away in it.
        session: u64 = "{:#x}",
        /// 1 if the guest was given away, and it is not known what came of it.
        given: u8 = "{}",
    }

    /// The end of sending a guest.
    Sent {
        /// 1 if it has gone; 0 if it runs here, or stands still as before.
        away: u8 = "{}",
        /// Rounds.
        rounds: u32 = "{}",
        /// Pages that were sent, without those of zeros.
        pages: u64 = "{}",
        /// Pages of zeros.
        zeros: u64 = "{}",
        /// Ticks of the clock for which it stood still before it was given away, or went on.
        stopped: u64 = "{}",
        /// Ticks of the steps meanwhile.
        worked: u64 = "{}",
        /// Ticks of the longest step.
        longest: u64 = "{}",
        /// Ticks of the clock per second.
        hz: u64 = "{}",
    }

    /// The end of receiving a guest.
    Received {
        /// Pages that were received, without those of zeros.
        pages: u64 = "{}",
        /// Ticks of the clock for which it stood still, by its own clock.
        stopped: u64 = "{}",
        /// 1 if it pauses, as it did there.
        paused: u8 = "{}",
        /// Ticks of the clock per second.
        hz: u64 = "{}",
    }
}

/// Runs of pages in one record.
pub const RUNS_MAX: usize = 8;

/// Runs of pages: the first one and how many, `FIRST+COUNT` with commas between them.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Runs(pub ArrayVec<(u64, u64), RUNS_MAX>);

impl Word for Runs {
    fn read(text: &str) -> Option<Self> {
        let mut runs = ArrayVec::new();
        for run in text.split(',') {
            let (first, count) = run.split_once('+')?;
            runs.try_push((parse_number(first).ok()?, parse_number(count).ok()?)).ok()?;
        }
        Some(Self(runs))
    }
}

impl fmt::Display for Runs {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (index, (first, count)) in self.0.iter().enumerate() {
            write!(f, "{}{first:#x}+{count:#x}", if index == 0 { "" } else { "," })?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ctl::LINE_MAX;
    use std::string::ToString;

    #[test]
    fn what_is_written_is_read_back() {
        let (access, log) = (Access::ReadOnly, Log::On);
        let slot = Slot { slot: 1, gpa: 0, size: 0x1000, host: 0x3000, access, log };
        let text = slot.to_string();
        assert_eq!(text, "slot=1 gpa=0x0 size=0x1000 host=0x3000 access=ro log=on");
        assert_eq!(Slot::parse(&text), Ok(slot));
    }

    #[test]
    fn the_field_that_is_wrong_is_named() {
        assert_eq!(Added::parse("number=3"), Err("slot"));
        assert_eq!(Added::parse("slot=65536"), Err("slot"));
        assert_eq!(Added::parse("more=1 slot=3"), Ok(Added { slot: 3 }));
    }

    #[test]
    fn runs_of_a_slot_of_a_tib_fit_into_a_line_and_are_read_back() {
        let pages = 1u64 << 28;
        let record = Dirty { dirty: Runs([(pages - 1, pages - 1); RUNS_MAX].into()) };
        let text = record.to_string();
        assert!(text.len() + "18446744073709551615 : ".len() <= LINE_MAX, "{text}");
        assert_eq!(Dirty::parse(&text), Ok(record));
        for wrong in ["", "1", "1+", "x+1", "1+1,", &"1+1,".repeat(RUNS_MAX + 1)] {
            assert_eq!(Runs::read(wrong), None, "{wrong}");
        }
    }
}
