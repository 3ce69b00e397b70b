//! Instructions that may fault, and their faults.
//!
//! Each has an entry in the `.fixups` table: the RIP at which a fault is expected, and where to
//! continue. A fault at any other RIP ends the run. R11 is zero before; it and R10 report a fault.

pub use crate::fixups::fixup;

/// An exception that a guarded instruction raised, at its own address.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Fault {
    /// Its vector.
    pub vector: u8,
    /// Its error code; 0 if it has none.
    pub error: u64,
}

/// Set in R11 above the vector if a fault happened.
pub const FAULTED: u64 = 1 << 8;

impl Fault {
    /// #UD, undefined opcode.
    pub const UNDEFINED: Self = Self { vector: 6, error: 0 };
    /// #GP(0).
    pub const PROTECTION: Self = Self { vector: 13, error: 0 };

    /// #PF with this error code.
    pub const fn page(error: u64) -> Self {
        Self { vector: 14, error }
    }

    /// Decodes the handler's values of R11 and R10.
    ///
    /// # Errors
    ///
    /// The fault, if there was one.
    pub const fn check(r11: u64, r10: u64) -> Result<(), Self> {
        if r11 & FAULTED == 0 { Ok(()) } else { Err(Self { vector: r11 as u8, error: r10 }) }
    }
}

/// The assembly of one guarded instruction, with its operands, each followed by a comma. The result
/// is the instruction's fault.
#[macro_export]
macro_rules! guarded_asm {
    ($($instruction:expr),+; $($operands:tt)*) => {{
        let (fault, error): (u64, u64);
        core::arch::asm!(
            $crate::guarded!($($instruction),+), $($operands)*
            inout("r11") 0u64 => fault, inout("r10") 0u64 => error,
        );
        $crate::x86_64::guarded::Fault::check(fault, error)
    }};
}

/// RDMSR.
///
/// # Errors
///
/// Its fault.
pub fn rdmsr(number: u32) -> Result<u64, Fault> {
    let (low, high): (u64, u64);
    // SAFETY: reading an MSR changes nothing, and a fault is guarded.
    let done = unsafe { guarded_asm!("rdmsr"; in("ecx") number, out("rax") low, out("rdx") high,) };
    done.map(|()| low & 0xffff_ffff | high << 32)
}

/// WRMSR.
///
/// # Errors
///
/// Its fault.
///
/// # Safety
///
/// The program can cope with the effect of the register.
pub unsafe fn wrmsr(number: u32, value: u64) -> Result<(), Fault> {
    let [low, high] = [value, value >> 32].map(|half| half as u32);
    // SAFETY: the caller vouches for the effect; a fault is guarded.
    unsafe { guarded_asm!("wrmsr"; in("ecx") number, in("eax") low, in("edx") high,) }
}

/// Reads the word at `address`.
///
/// # Errors
///
/// The fault, if nothing is there.
pub fn load(address: u64) -> Result<u64, Fault> {
    let value: u64;
    // SAFETY: reading memory changes nothing, and a fault is guarded.
    let done = unsafe { guarded_asm!("mov {}, [{}]"; out(reg) value, in(reg) address,) };
    done.map(|()| value)
}

/// Writes the word at `address`.
///
/// # Errors
///
/// The fault, if nothing is there.
///
/// # Safety
///
/// If the address is mapped, it is in a page that may be written to.
pub unsafe fn store(address: u64, value: u64) -> Result<(), Fault> {
    // SAFETY: the caller's promise; a fault is guarded.
    unsafe { guarded_asm!("mov [{}], {}"; in(reg) address, in(reg) value,) }
}
