//! Instructions that are generated while the program runs, each guarded.

use core::fmt;
use core::sync::atomic::AtomicU32;

use crate::tests::prelude::*;
use baremetal::aarch64::guarded::Fault;
use baremetal::aarch64::interrupts;
use hostile::allowed::sysregs;

/// Number of instructions in a page, each followed by a RET.
pub(super) const SLOTS: usize = 512;
const RET: u32 = 0xd65f_03c0;
const SIZE: usize = 8 * SLOTS;

#[repr(C, align(4096))]
struct Code([AtomicU32; 2 * SLOTS]);

static PAGES: [Code; processors::MAX_PROCESSORS] =
    [const { Code([const { AtomicU32::new(RET) }; 2 * SLOTS]) }; processors::MAX_PROCESSORS];

/// A system register or instruction: op0, op1, CRn, CRm, op2.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::tests) struct Name(pub(in crate::tests) u32);

impl Name {
    /// The register of this number, out of all that are possible with this op0: 16,384.
    pub(in crate::tests) const fn of(op0: u32, number: u32) -> Self {
        Self(op0 << 14 | number)
    }
}

impl fmt::Display for Name {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let [op0, op1, crn, crm, op2] = sysregs::fields(self.0);
        write!(f, "S{op0}_{op1}_C{crn}_C{crm}_{op2}")
    }
}

/// MRS of X0, or with op0 = 1 SYSL.
pub(super) const fn read(name: Name) -> u32 {
    0xd520_0000 | name.0 << 5
}

/// MSR of X0, or with op0 = 1 SYS.
pub(in crate::tests) const fn write(name: Name) -> u32 {
    0xd500_0000 | name.0 << 5
}

/// Writes up to [`SLOTS`] instructions to the calling processor's page.
pub(in crate::tests) fn put(instructions: impl Iterator<Item = u32>) {
    let page = &PAGES[interrupts::number()];
    for (slot, instruction) in instructions.take(SLOTS).enumerate() {
        page.0[2 * slot].store(instruction, Ordering::Relaxed);
    }
    let start = page.0.as_ptr().addr();
    // The minimum line size: 16 bytes. DDI 0487 M.b, B2.7.4.2: clean, then invalidate.
    for line in (start..start + SIZE).step_by(16) {
        // SAFETY: maintenance of our own page.
        unsafe { asm!("dc cvau, {}", in(reg) line, options(nostack, preserves_flags)) };
    }
    // SAFETY: as above.
    unsafe { asm!("dsb ish", options(nostack, preserves_flags)) };
    for line in (start..start + SIZE).step_by(16) {
        // SAFETY: as above.
        unsafe { asm!("ic ivau, {}", in(reg) line, options(nostack, preserves_flags)) };
    }
    // SAFETY: as above.
    unsafe { asm!("dsb ish", "isb", options(nostack, preserves_flags)) };
    interrupts::guard_page(start as u64);
}

/// Executes the instruction in `slot` with this value in X0; returns X0 afterwards.
///
/// # Errors
///
/// Its fault.
///
/// # Safety
///
/// The program can cope with the instruction's effects.
pub(in crate::tests) unsafe fn execute(slot: usize, x0: u64) -> Result<u64, Fault> {
    let code = PAGES[interrupts::number()].0.as_ptr().addr() + 8 * (slot % SLOTS);
    let (value, fault, address): (u64, u64, u64);
    // SAFETY: the caller vouches for the instruction, which is followed by a RET; a fault is
    // guarded. It changes X0 alone, or flags.
    unsafe {
        asm!(
            "blr {code}", "isb",
            code = in(reg) code, inout("x0") x0 => value,
            inout("x16") 0u64 => fault, inout("x17") 0u64 => address, out("x30") _,
        );
    }
    Fault::check(fault, address).map(|()| value)
}
