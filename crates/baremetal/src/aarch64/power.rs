//! PSCI, and ways to end the machine: SYSTEM_OFF, and semihosting's exit.
//!
//! DEN 0022F, section 5; Semihosting for AArch32 and AArch64, SYS_EXIT.

use core::arch::asm;

use smccc::psci::error::Error;
use smccc::{Call, Hvc, Smc, psci};
use spin::Once;

use crate::HardwareId;
use crate::devicetree::Conduit;
use crate::guarded_asm;

/// How PSCI is called.
static CONDUIT: Once<Conduit> = Once::new();

/// Sets how PSCI is called, before other processors run.
pub fn set_conduit(conduit: Option<Conduit>) {
    if let Some(conduit) = conduit {
        CONDUIT.call_once(|| conduit);
    }
}

/// Starts the processor with this affinity at `entry` with `context` in X0.
///
/// # Errors
///
/// PSCI's error, or that there is no PSCI.
pub fn cpu_on(HardwareId(affinity): HardwareId, entry: u64, context: u64) -> Result<(), Error> {
    match CONDUIT.get() {
        Some(Conduit::Hvc) => psci::cpu_on::<Hvc>(affinity, entry, context),
        Some(Conduit::Smc) => psci::cpu_on::<Smc>(affinity, entry, context),
        None => Err(Error::NotSupported),
    }
}

/// Calls firmware or hypervisor by the SMC calling convention in 32 bits, through PSCI's conduit;
/// returns X0 to X3. The first is all ones, `NOT_SUPPORTED`, if there is no conduit.
pub fn call(function: u32, arguments: [u32; 3]) -> [u32; 4] {
    let [a, b, c] = arguments;
    let arguments = [a, b, c, 0, 0, 0, 0];
    let results = match CONDUIT.get() {
        Some(Conduit::Hvc) => Hvc::call32(function, arguments),
        Some(Conduit::Smc) => Smc::call32(function, arguments),
        None => [u32::MAX; 8],
    };
    [results[0], results[1], results[2], results[3]]
}

/// Switches the machine off, if there is PSCI; otherwise returns.
pub fn system_off() {
    let _ = match CONDUIT.get() {
        Some(Conduit::Hvc) => psci::system_off::<Hvc>(),
        Some(Conduit::Smc) => psci::system_off::<Smc>(),
        None => Err(Error::NotSupported),
    };
}

/// Switches the machine off, if there is PSCI; otherwise halts.
pub fn off() -> ! {
    system_off();
    halt()
}

/// Halts.
pub fn halt() -> ! {
    loop {
        // SAFETY: it waits for an interrupt, which is masked, so it has no effect.
        unsafe { asm!("msr daifset, #0xf", "wfi", options(nomem, nostack)) };
    }
}

/// Ends the emulator or debugger that serves semihosting calls, with exit status `2 * code + 1`.
/// Where nobody serves the call it has no effect.
pub fn end_emulator(code: u8) {
    /// SYS_EXIT, and ADP_Stopped_ApplicationExit.
    const EXIT: u64 = 0x18;
    const APPLICATION_EXIT: u64 = 0x20026;
    let block = [APPLICATION_EXIT, u64::from(2 * code + 1)];
    // SAFETY: either the call ends the program, or it is not served and is an undefined
    // instruction, which is guarded.
    let _ = unsafe { guarded_asm!("hlt #0xf000"; inout("x0") EXIT => _, in("x1") block.as_ptr(),) };
}
