//! Exits, entries and what comes from outside, on a [processor] that is made up.
//!
//! | module | what it holds |
//! |---|---|
//! | `entry` | the way in, what is put in order behind it, what comes from outside |
//! | `instructions`, `memory`, `ports`, `registers` | guests that do everything wrong |
//! | `random` | exits with anything in them |
//! | `rows` | each row of the table |

mod entry;
mod instructions;
mod memory;
mod ports;
mod processor;
mod random;
mod registers;
mod rows;

use super::exits::Exit;
use super::registers::{RAX, RCX, RDX};
use processor::Guest;

/// An exit.
fn exit(code: u64, info_1: u64, info_2: u64) -> Exit {
    Exit { code, info_1, info_2, event: 0, next_rip: 0 }
}

impl Guest<'_, '_> {
    /// WRMSR as the guest does it, whose code it leaves at RIP.
    fn write_msr(&mut self, number: u32, value: u64) -> crate::vm::Next {
        self.begin(&[0x0f, 0x30]);
        self.set(RCX, number.into());
        self.set(RAX, value & 0xffff_ffff);
        self.set(RDX, value >> 32);
        self.exit(rows::MSR, 1, 0)
    }

    /// Says which system it is, and puts the hypercall page somewhere. What was at RIP is there
    /// again.
    fn enable_hypercalls(&mut self) {
        let code = self.read(processor::CODE);
        self.write_msr(tlfs::msr::GUEST_OS_ID, 1);
        self.write_msr(tlfs::msr::HYPERCALL, processor::DATA + 0x5001);
        self.begin(&code.to_le_bytes());
    }
}
