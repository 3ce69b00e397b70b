//! The guest's end of hypercalls.

use core::arch::asm;
use core::arch::x86_64::__cpuid;

use baremetal::x86_64::hypercall::{self, OS_ID};
pub(crate) use baremetal::x86_64::hypercall::{is_intels, load_xmm, prepare};
use tlfs::msr::{self, HypercallMsr};
use tlfs::{CallCode, Control, HvResult, Profile, Status, cpuid};

use crate::guarded::{self, Fault, guarded};
use crate::paging::{PAGE, Page};
use crate::report::{Failure, Verdict, ensure, failure};

static CODE: Page = Page::new();

/// Identifies the guest and enables the hypercall page.
pub(crate) fn enable() -> Verdict {
    // SAFETY: it names the guest and changes nothing else.
    let named = unsafe { guarded::wrmsr(msr::GUEST_OS_ID, OS_ID) };
    ensure!(named.is_ok(), "no Hyper-V interface: {named:?}");
    move_page(&CODE)
}

/// Moves the hypercall page to `place`, whose contents are hidden while it is there.
pub(crate) fn move_page(place: &'static Page) -> Verdict {
    let page = HypercallMsr::new().with_enable(true).with_page_number(place.address() / PAGE);
    // SAFETY: every content of a page may change at any time.
    let moved = unsafe { guarded::wrmsr(msr::HYPERCALL, page.into_bits()) };
    ensure!(moved.is_ok(), "the hypercall page cannot be put in place: {moved:?}");
    ensure!(guarded::rdmsr(msr::HYPERCALL) == Ok(page.into_bits()), "hypercalls cannot be enabled");
    Ok(())
}

/// Gives the calling processor this assist page.
pub(crate) fn set_assist_page(page: &'static Page) -> Verdict {
    // SAFETY: every content of a page may change at any time.
    let is_set = unsafe { guarded::wrmsr(msr::VP_ASSIST_PAGE, page.address() | 1) };
    ensure!(is_set.is_ok(), "there is no assist page: {is_set:?}");
    Ok(())
}

pub(crate) fn announced() -> Profile {
    let (features, hints) = (__cpuid(cpuid::LEAF_FEATURES).edx, __cpuid(cpuid::LEAF_HINTS).eax);
    Profile::announced(features, hints)
}

pub(crate) fn call(control: Control, input: u64, output: u64) -> Result<HvResult, Fault> {
    // SAFETY: the calls that the probe makes write no memory.
    unsafe { hypercall::call(control.into_bits(), input, output) }.map(HvResult::from_bits)
}

/// The general registers except RSP: RAX, RBX, RCX, RDX, RSI, RDI, RBP, R8 to R15.
pub(crate) type Registers = [u64; 15];
/// Indices of some of them.
pub(crate) const RAX: usize = 0;
pub(crate) const RCX: usize = 2;
pub(crate) const RDX: usize = 3;
pub(crate) const R8: usize = 7;
pub(crate) const R10: usize = 9;
pub(crate) const R11: usize = 10;

/// A hypercall with these registers, R11 = 0; returns their new values. A fault changes R10 and
/// R11.
pub(crate) fn call_with_registers(registers: &mut Registers) -> Result<(), Fault> {
    registers[R11] = 0;
    // SAFETY: the probe's calls write no memory; a fault is guarded, and does not change the stack.
    unsafe {
        asm!(
            "push rbx", "push rbp", "push rdi",
            "mov rax, [rdi]", "mov rbx, [rdi + 8]", "mov rcx, [rdi + 16]", "mov rdx, [rdi + 24]",
            "mov rsi, [rdi + 32]", "mov rbp, [rdi + 48]", "mov r8, [rdi + 56]", "mov r9, [rdi + 64]",
            "mov r10, [rdi + 72]", "mov r11, [rdi + 80]", "mov r12, [rdi + 88]", "mov r13, [rdi + 96]",
            "mov r14, [rdi + 104]", "mov r15, [rdi + 112]", "mov rdi, [rdi + 40]",
            guarded!("vmmcall"),
            "push rax", "mov rax, [rsp + 8]",
            "mov [rax + 8], rbx", "mov [rax + 16], rcx", "mov [rax + 24], rdx", "mov [rax + 32], rsi",
            "mov [rax + 40], rdi", "mov [rax + 48], rbp", "mov [rax + 56], r8", "mov [rax + 64], r9",
            "mov [rax + 72], r10", "mov [rax + 80], r11", "mov [rax + 88], r12", "mov [rax + 96], r13",
            "mov [rax + 104], r14", "mov [rax + 112], r15",
            "pop qword ptr [rax]", "pop rdi", "pop rbp", "pop rbx",
            in("rdi") registers,
            out("rax") _, out("rcx") _, out("rdx") _, out("rsi") _, out("r8") _, out("r9") _, out("r10") _,
            out("r11") _, out("r12") _, out("r13") _, out("r14") _, out("r15") _,
        );
    }
    Fault::check(registers[R11], registers[R10])
}

/// HvCallNotifyLongSpinWait in its fast form: with no other vCPU to run, a call that only returns.
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

/// The same call through the code at `place`; returns RAX.
///
/// # Safety
///
/// The code at `place` changes only RAX and the registers that hypercalls change.
pub(crate) unsafe fn call_place(place: &Page) -> u64 {
    let control = Control::new().with_call_code(CallCode::NOTIFY_LONG_SPIN_WAIT.0).with_fast(true);
    let result: u64;
    // SAFETY: the caller's guarantee.
    unsafe {
        asm!(
            "call {place}",
            place = in(reg) place.address(),
            inout("rax") u64::MAX => result,
            inout("rcx") control.into_bits() => _, inout("rdx") 1u64 => _, inout("r8") 0u64 => _,
            out("r9") _, out("r10") _, out("r11") _,
        );
    }
    result
}

/// The input of a call: a page that only the first processor's calls use.
static INPUT: Page = Page::new();

pub(crate) fn input_page() -> &'static Page {
    &INPUT
}

/// A hypercall whose input is `words`: at the beginning of the input page, or if it is a fast one
/// in two general registers, then XMM0 to XMM5.
pub(crate) fn call_with(control: Control, words: &[u64]) -> Result<HvResult, Fault> {
    if !control.fast() {
        INPUT.write(words);
        return call(control, INPUT.address(), 0);
    }
    let mut input = words.iter().copied().chain(core::iter::repeat(0));
    let [first, second] = core::array::from_fn(|_| input.next().unwrap_or(0));
    load_xmm(&core::array::from_fn(|_| input.next().unwrap_or(0)));
    call(control, first, second)
}

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
