//! The guest's end of hypercalls.

use core::arch::asm;

use tlfs::msr::{self, HypercallMsr};
use tlfs::{CallCode, Control, HvResult, Status};

use crate::guarded::{self, Fault, guarded};
use crate::paging::{PAGE, Page};
use crate::report::{Failure, Verdict, ensure, failure};

/// An open-source operating system of no vendor (TLFS, "Reporting the Guest OS Identity").
const OS_ID: u64 = 1 << 63 | 0x7f << 56;

static CODE: Page = Page::new();

/// Identifies the guest and has the hypercall page put in place.
pub(crate) fn enable() -> Verdict {
    let page = HypercallMsr::new().with_enable(true).with_page_number(CODE.address() / PAGE);
    // SAFETY: the page is there for this, and nothing else is in it.
    let enabled = unsafe {
        guarded::wrmsr(msr::GUEST_OS_ID, OS_ID)
            .and_then(|()| guarded::wrmsr(msr::HYPERCALL, page.into_bits()))
    };
    ensure!(enabled.is_ok(), "no Hyper-V interface: {enabled:?}");
    ensure!(guarded::rdmsr(msr::HYPERCALL) == Ok(page.into_bits()), "hypercalls cannot be enabled");
    Ok(())
}

/// Takes the guest's identity back, and with it the right to call.
pub(crate) fn disable() -> Verdict {
    // SAFETY: the page's former contents come back, and nobody calls it.
    let written = unsafe { guarded::wrmsr(msr::GUEST_OS_ID, 0) };
    ensure!(written.is_ok(), "GUEST_OS_ID cannot be cleared: {written:?}");
    Ok(())
}

/// A hypercall by its three registers.
pub(crate) fn call(control: Control, input: u64, output: u64) -> Result<HvResult, Fault> {
    let (result, fault, error): (u64, u64, u64);
    // SAFETY: the calls that the probe makes write no memory; a fault is guarded.
    unsafe {
        asm!(
            guarded!("vmmcall"),
            inout("rax") u64::MAX => result,
            inout("rcx") control.into_bits() => _, inout("rdx") input => _, inout("r8") output => _,
            inout("r11") 0u64 => fault, inout("r10") 0u64 => error, out("r9") _,
        );
    }
    Fault::check(fault, error).map(|()| HvResult::from_bits(result))
}

/// HvCallNotifyLongSpinWait in its fast form, through the hypercall page: with nobody else to run, a call that
/// only returns.
#[inline(always)]
pub(crate) fn call_that_only_returns() -> u64 {
    let control = Control::new().with_call_code(CallCode::NOTIFY_LONG_SPIN_WAIT.0).with_fast(true);
    let result: u64;
    // SAFETY: the page holds the hypervisor's code, which ends in RET.
    unsafe {
        asm!(
            "call {code}",
            code = sym CODE,
            out("rax") result,
            inout("rcx") control.into_bits() => _, inout("rdx") 1u64 => _, inout("r8") 0u64 => _,
            out("r9") _, out("r10") _, out("r11") _,
        );
    }
    result
}

/// The input of a call: a page that only the first processor's calls use.
static INPUT: Page = Page::new();

/// Writes `words` to the beginning of the input page.
pub(crate) fn write_input(words: &[u64]) {
    INPUT.write(words);
}

/// A hypercall whose input is `words`, at the beginning of the input page.
pub(crate) fn call_with(control: Control, words: &[u64]) -> Result<HvResult, Fault> {
    write_input(words);
    call(control, INPUT.address(), 0)
}

/// The input page's address.
pub(crate) fn input_address() -> u64 {
    INPUT.address()
}

/// Succeeds if the call did, with this count of elements.
pub(crate) fn expect_success(what: &str, result: Result<HvResult, Fault>, reps: u16) -> Result<(), Failure> {
    match result {
        Ok(result) if result == HvResult::of(Status::SUCCESS, reps) => Ok(()),
        other => Err(failure(format_args!("{what}: {other:?}, wanted {reps} reps"))),
    }
}
