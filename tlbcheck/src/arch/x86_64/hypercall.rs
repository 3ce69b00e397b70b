//! The guest's end of hypercalls: the hypercall page, whose instruction the hypervisor selects.

use core::arch::asm;

use baremetal::pages::{PAGE, Page};
use baremetal::x86_64::guarded::{FAULTED, Fault, rdmsr, wrmsr};
use baremetal::x86_64::hypercall::{OS_ID, load_xmm};
use baremetal::x86_64::interrupts;
use baremetal::x86_64::processors::MAX_PROCESSORS;
use baremetal::x86_64::tables::{self, USER_CODE, USER_DATA};
use tlbcheck::ensure;
use tlbcheck::form::Flush;
use tlbcheck::report::{Verdict, fail};
use tlfs::msr::{self, HypercallMsr};
use tlfs::{Control, HvResult, PAGE_WORDS, Status};

static CODE: Page = Page::new();

/// Each processor's input, by number; used by that processor's calls only.
static INPUTS: [Page; MAX_PROCESSORS] = [const { Page::new() }; MAX_PROCESSORS];

pub(super) fn input() -> &'static Page {
    &INPUTS[tables::number()]
}

/// Identifies the guest and enables the hypercall page.
pub(super) fn enable() -> Verdict {
    interrupts::guard_page(CODE.address());
    set_identity(OS_ID)?;
    ask_for_page()?;
    let value = rdmsr(msr::HYPERCALL).map(HypercallMsr::from_bits);
    ensure!(value.is_ok_and(|page| page.enable()), "the hypercall page is not there: {value:x?}");
    Ok(())
}

pub(super) fn set_identity(identity: u64) -> Verdict {
    // SAFETY: it names the guest; without a name the former contents are restored, and not called.
    let written = unsafe { wrmsr(msr::GUEST_OS_ID, identity) };
    written.map_err(|fault| fail(format_args!("the guest's identity cannot be written: {fault:?}")))
}

pub(super) fn ask_for_page() -> Verdict {
    let page = HypercallMsr::new().with_enable(true).with_page_number(CODE.address() / PAGE);
    // SAFETY: the page has no other use.
    let written = unsafe { wrmsr(msr::HYPERCALL, page.into_bits()) };
    written.map_err(|fault| fail(format_args!("the hypercall page cannot be asked for: {fault:?}")))
}

pub(super) fn call(control: Control, input: u64, output: u64) -> Result<HvResult, Fault> {
    let (result, fault, error): (u64, u64, u64);
    // SAFETY: the page contains the hypervisor's code, which ends in RET; the calls made here write
    // no memory. A fault in the page continues after the call, with the stack as it is here: see
    // `interrupts::guard_page`.
    unsafe {
        asm!(
            "mov r12, rsp",
            "lea r13, [rip + 3f]",
            "call r9",
            "3:",
            inout("rax") u64::MAX => result,
            inout("rcx") control.into_bits() => _, inout("rdx") input => _, inout("r8") output => _,
            inout("r9") CODE.address() => _,
            inout("r11") 0u64 => fault, inout("r10") 0u64 => error, out("r12") _, out("r13") _,
        );
    }
    // The hypervisor may change R10 and R11, but hardly to a fault's mark with a vector.
    let fault = if fault & !0x1f == FAULTED { fault } else { 0 };
    Fault::check(fault, error).map(|()| HvResult::from_bits(result))
}

/// The same from ring 3, with 1 as input.
pub(super) fn call_in_ring3(control: Control) -> Result<HvResult, Fault> {
    let (result, fault, error): (u64, u64, u64);
    // SAFETY: the call faults, or the UD2 after it does; either way ring 0 continues here, with the
    // stack pointer kept in R12. Interrupts are off meanwhile. All memory is accessible to ring 3
    // as well.
    unsafe {
        asm!(
            "mov r12, rsp",
            "push {ss}", "push {stack}", "push 2", "push {cs}",
            "lea r11, [rip + 2f]", "push r11",
            "lea r13, [rip + 3f]",
            "xor r11d, r11d",
            "iretq",
            "2:", "call r9",
            "4:", "ud2",
            "5:", "xor r11d, r11d",
            "3:", "mov rsp, r12",
            ".pushsection .fixups,\"a\"", ".quad 4b, 5b", ".popsection",
            ss = const USER_DATA,
            cs = const USER_CODE,
            stack = in(reg) tables::user_stack_top(),
            inout("rax") u64::MAX => result,
            inout("rcx") control.into_bits() => _, inout("rdx") 1u64 => _,
            inout("r8") 0u64 => _, inout("r9") CODE.address() => _,
            out("r11") fault, inout("r10") 0u64 => error, out("r12") _, out("r13") _,
        );
    }
    Fault::check(fault, error).map(|()| HvResult::from_bits(result))
}

/// A hypercall whose input is `words`: at the beginning of the input page, or in registers if the
/// control word says that it is fast. Words that do not fit are omitted.
pub(super) fn call_with(control: Control, words: &[u64]) -> Result<HvResult, Fault> {
    if !control.fast() {
        input().write(words);
        return call(control, input().address(), 0);
    }
    let mut rest = words.iter().copied().chain(core::iter::repeat(0));
    let [first, second] = core::array::from_fn(|_| rest.next().unwrap_or(0));
    load_xmm(&core::array::from_fn(|_| rest.next().unwrap_or(0)));
    call(control, first, second)
}

/// Makes the call for `flush`, with its continuations; returns its result.
pub(super) fn result_of(flush: &Flush<'_>) -> Result<HvResult, Fault> {
    let mut words = [0; PAGE_WORDS];
    let Some((mut control, count)) = flush.encode(&mut words) else {
        return Ok(HvResult::of(Status::INVALID_PARAMETER, 0xfff));
    };
    loop {
        let result = call_with(control, &words[..count])?;
        let (done, start) = (result.reps_complete(), control.rep_start());
        if result.status() != Status::SUCCESS || done >= control.rep_count() || done <= start {
            return Ok(result);
        }
        control = control.resumed_at(done);
    }
}

/// Flushes; fails unless the call succeeds.
pub(super) fn flush(flush: &Flush<'_>) -> Verdict {
    let result = result_of(flush);
    if result == Ok(flush.success()) {
        return Ok(());
    }
    let Flush { kind, via, targets, elements, .. } = flush;
    Err(fail(format_args!("{kind:?} by {via:?} of {targets:x?}, {} elements: {result:x?}", elements.len())))
}
