//! Instructions that may fault, and their faults.
//!
//! Each has an entry in the `.fixups` table: the address at which a fault is expected, and the
//! address to continue at. A fault at any other address ends the run. X16 is zero before; it and
//! X17 report a fault. DDI 0487 M.b, D24.2 "ESR_EL1".

pub use crate::fixups::fixup;

/// An exception that a guarded instruction raised, at its own address.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Fault {
    /// ESR_EL1: the reason.
    pub syndrome: u64,
    /// FAR_EL1: the address, if it is an abort.
    pub address: u64,
}

/// The cause of a data abort.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Cause {
    /// Nothing is mapped; at this level.
    Translation(u8),
    /// The access flag is clear, in an entry of this level.
    AccessFlag(u8),
    /// The permissions do not suffice, in an entry of this level.
    Permission(u8),
    /// Anything else, of this fault status code.
    Other(u8),
    /// Not a data abort, but an exception of this class.
    Class(u8),
}

/// Set in X16 above the syndrome if a fault happened.
pub const FAULTED: u64 = 1 << 63;

const CLASS_DATA_ABORT: u8 = 0x25;
/// ISS of a data abort, WnR: it was a store.
const IS_STORE: u64 = 1 << 6;

impl Fault {
    /// Decodes the handler's values of X16 and X17.
    ///
    /// # Errors
    ///
    /// The fault, if there was one.
    pub const fn check(x16: u64, x17: u64) -> Result<(), Self> {
        if x16 & FAULTED == 0 { Ok(()) } else { Err(Self { syndrome: x16 & !FAULTED, address: x17 }) }
    }

    /// The exception class.
    pub const fn class(self) -> u8 {
        (self.syndrome >> 26 & 0x3f) as u8
    }

    /// The cause.
    pub const fn cause(self) -> Cause {
        if self.class() != CLASS_DATA_ABORT {
            return Cause::Class(self.class());
        }
        let (code, level) = ((self.syndrome & 0x3f) as u8, (self.syndrome & 3) as u8);
        match code >> 2 {
            1 => Cause::Translation(level),
            2 => Cause::AccessFlag(level),
            3 => Cause::Permission(level),
            _ => Cause::Other(code),
        }
    }

    /// Whether a store raised it.
    pub const fn is_store(self) -> bool {
        self.syndrome & IS_STORE != 0
    }
}

/// The assembly of one guarded instruction, with its operands, each followed by a comma. The result
/// is the instruction's fault.
#[macro_export]
macro_rules! guarded_asm {
    ($($instruction:expr),+; $($operands:tt)*) => {{
        let (fault, at): (u64, u64);
        core::arch::asm!(
            $crate::guarded!($($instruction),+), $($operands)*
            inout("x16") 0u64 => fault, inout("x17") 0u64 => at, options(nostack),
        );
        $crate::aarch64::guarded::Fault::check(fault, at)
    }};
}

/// Reads the word at `address`.
///
/// # Errors
///
/// The fault, if nothing is there.
#[inline(always)]
pub fn load(address: u64) -> Result<u64, Fault> {
    let value: u64;
    // SAFETY: reading memory changes nothing, and a fault is guarded.
    let done = unsafe { guarded_asm!("ldr {}, [{}]"; out(reg) value, in(reg) address,) };
    done.map(|()| value)
}

/// Writes the word at `address`.
///
/// # Errors
///
/// The fault, if nothing is there or it must not be written to.
///
/// # Safety
///
/// If the address is mapped, it is in a page that may be written to.
#[inline(always)]
pub unsafe fn store(address: u64, value: u64) -> Result<(), Fault> {
    // SAFETY: the caller's promise; a fault is guarded.
    unsafe { guarded_asm!("str {}, [{}]"; in(reg) value, in(reg) address,) }
}
