//! Instructions that may fault, and their outcomes.
//!
//! Each is an entry of the `.fixups` table: the RIP at which a fault is expected, and the RIP at
//! which to continue. A fault at any other RIP is a failure of the hypervisor and ends the run. So
//! RIP is checked on every fault; `tests::faults` checks that it advances right after an emulated
//! instruction.

use baremetal::guarded_asm;

pub(crate) use baremetal::guarded;
pub(crate) use baremetal::x86_64::guarded::{Fault, load, store, wrmsr};

/// Executes an instruction that changes no memory and no stack, with zeros in EAX, ECX and EDX.
macro_rules! attempt {
    ($instruction:expr) => {{
        let (fault, error): (u64, u64);
        // SAFETY: a fault continues after the instruction; the caller of the macro chose one
        // without effects on memory and stack.
        unsafe {
            core::arch::asm!(
                "push rbx",
                $crate::guarded::guarded!($instruction),
                "pop rbx",
                inout("rax") 0u64 => _, inout("rcx") 0u64 => _, inout("rdx") 0u64 => _,
                inout("r11") 0u64 => fault, inout("r10") 0u64 => error,
            );
        }
        $crate::guarded::Fault::check(fault, error)
    }};
}
pub(crate) use attempt;

/// Executes one instruction in ring 3, with an MSR's number in ECX. The instruction after it, UD2,
/// shows that there was no fault.
macro_rules! attempt_in_ring3 {
    ($instruction:expr) => {{
        let (fault, error): (u64, u64);
        let user_stack = $crate::tables::user_stack_top();
        // SAFETY: the instruction faults, or the next one does; either way ring 0 continues here,
        // with the stack pointer kept in R12. Interrupts are off meanwhile.
        unsafe {
            core::arch::asm!(
                "mov r12, rsp",
                "push {ss}", "push {stack}", "push 2", "push {cs}",
                "lea r11, [rip + 2f]", "push r11",
                "xor r11d, r11d",
                "iretq",
                "2:", $instruction,
                "4:", "ud2",
                "5:", "xor r11d, r11d",
                "3:", "mov rsp, r12",
                ".pushsection .fixups,\"a\"", ".quad 2b, 3b", ".quad 4b, 5b", ".popsection",
                ss = const $crate::tables::USER_DATA,
                cs = const $crate::tables::USER_CODE,
                stack = in(reg) user_stack,
                inout("rax") 0u64 => _, inout("rcx") 0xc000_0080u64 => _, inout("rdx") 0u64 => _,
                out("r11") fault, inout("r10") 0u64 => error, out("r12") _,
            );
        }
        $crate::guarded::Fault::check(fault, error)
    }};
}
pub(crate) use attempt_in_ring3;

/// RDMSR. A fault must leave EDX and EAX unchanged; that is checked here, on every fault.
pub(crate) fn rdmsr(number: u32) -> Result<u64, Fault> {
    const BEFORE: (u64, u64) = (0x1111_2222_3333_4444, 0x5555_6666_7777_8888);
    let (low, high): (u64, u64);
    // SAFETY: reading an MSR changes nothing, and a fault is guarded.
    let done = unsafe {
        guarded_asm!("rdmsr";
            in("ecx") number, inout("rax") BEFORE.0 => low, inout("rdx") BEFORE.1 => high,)
    };
    match done {
        Ok(()) => {
            assert!((low | high) >> 32 == 0, "RDMSR of {number:#x} leaves the upper halves");
            Ok(high << 32 | low)
        }
        Err(fault) => {
            assert!((low, high) == BEFORE, "RDMSR of {number:#x} faults and changes RAX or RDX");
            Err(fault)
        }
    }
}

/// MOV to CR4.
///
/// # Safety
///
/// This program can run with that value, if the processor accepts it.
pub(crate) unsafe fn write_cr4(value: u64) -> Result<(), Fault> {
    // SAFETY: the caller vouches for the effect; a fault is guarded.
    unsafe { guarded_asm!("mov cr4, {}"; in(reg) value,) }
}
