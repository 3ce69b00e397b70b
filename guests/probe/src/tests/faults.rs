//! The state at faults that the hypervisor raises and after its instructions; and NMIs in pairs.

use core::arch::asm;

use baremetal::x86_64::interrupts::fault_flags;

use super::prelude::*;
use crate::guarded::{attempt, attempt_in_ring3};
use crate::tables;

const RFLAGS_RF: u64 = 1 << 16;
const VECTOR_DB: u8 = 1;

/// A fault pushes flags with RF, so that its instruction triggers no breakpoint the next time.
pub(super) fn resume_flag() -> Verdict {
    // SAFETY: it is refused.
    let cr4 = unsafe { write_cr4(x86_64::registers::control::Cr4::read_raw() | 1 << 63) };
    raised_with_flag("MOV to CR4", cr4)?;
    raised_with_flag("RDMSR", rdmsr(0xdead).map(drop))?;
    raised_with_flag("INVLPGA", attempt!(".byte 0x0f, 0x01, 0xdf"))?;
    completed()
}

/// Checks that the last instruction has faulted with RF.
fn raised_with_flag(name: &str, result: Result<(), Fault>) -> Verdict {
    ensure!(result.is_err(), "{name} does not fault");
    ensure!(fault_flags() & RFLAGS_RF != 0, "{name}: the fault pushes {:#x}", fault_flags());
    Ok(())
}

/// RF lasts for one instruction: after a CPUID that was begun with RF a breakpoint is hit.
fn completed() -> Verdict {
    let (fault, error): (u64, u64);
    // SAFETY: the instruction with the breakpoint is guarded; CPUID's registers are named.
    unsafe {
        asm!(
            "push rbx",
            "lea rax, [rip + 2f]", "mov dr0, rax", "mov eax, 0x401", "mov dr7, rax",
            "xor eax, eax", "xor ecx, ecx",
            "mov r9, rsp",
            "push {ss}", "push r9", "push 0x10002", "push {cs}", "lea r8, [rip + 6f]", "push r8",
            "iretq",
            "6:", "cpuid",
            guarded!("nop"),
            "mov eax, 0x400", "mov dr7, rax",
            "pop rbx",
            ss = const tables::KERNEL_DATA, cs = const tables::KERNEL_CODE,
            out("rax") _, out("rcx") _, out("rdx") _, out("r8") _, out("r9") _,
            inout("r10") 0u64 => error, inout("r11") 0u64 => fault,
        );
    }
    let hit = Fault::check(fault, error);
    ensure!(hit == Err(Fault { vector: VECTOR_DB, error: 0 }), "a breakpoint behind CPUID leads to {hit:?}");
    Ok(())
}

/// Instructions that only ring 0 may execute, and only where enabled.
pub(super) fn refused() -> Verdict {
    let ring0 = attempt!("xsetbv");
    ensure!(ring0 == Err(Fault::UNDEFINED), "XSETBV without OSXSAVE: {ring0:?}");
    let ring3 = attempt_in_ring3!("xsetbv");
    // Emulators check the privilege first.
    let is_refused = matches!(ring3, Err(Fault::UNDEFINED | Fault::PROTECTION));
    ensure!(is_refused, "XSETBV without OSXSAVE in ring 3: {ring3:?}");
    let results = [
        ("RDMSR", attempt_in_ring3!("rdmsr")),
        ("WRMSR", attempt_in_ring3!("wrmsr")),
        ("RDPMC", attempt_in_ring3!("rdpmc")),
        ("OUT", attempt_in_ring3!("out 0x80, al")),
        ("MOV to CR4", attempt_in_ring3!("mov cr4, rax")),
        ("INVD", attempt_in_ring3!("invd")),
        ("WBINVD", attempt_in_ring3!("wbinvd")),
        ("HLT", attempt_in_ring3!("hlt")),
        ("MOV to CR8", attempt_in_ring3!("mov cr8, rax")),
        ("MOV to DR7", attempt_in_ring3!("mov dr7, rax")),
        ("MOV from DR0", attempt_in_ring3!("mov rax, dr0")),
        ("IN", attempt_in_ring3!("in al, 0x80")),
        ("INSB", attempt_in_ring3!("insb")),
    ];
    for (name, result) in results {
        ensure!(result == Err(Fault::PROTECTION), "{name} in ring 3: {result:?}");
    }
    let cpuid = attempt_in_ring3!("push rbx\ncpuid\npop rbx");
    ensure!(cpuid.is_ok(), "CPUID in ring 3: {cpuid:?}");
    Ok(())
}

/// Two NMIs to a processor that has no CPU at the moment are two. Two processors, one CPU.
///
/// Each pair finds the handler of the previous one finished, otherwise its NMIs would rightly
/// become one: a processor that runs a job has executed the handler's IRET.
pub(super) fn second_nmi() -> Verdict {
    const PAIRS: u32 = 200;
    for pair in 0..PAIRS {
        processors::run(SECOND, |_| ())?;
        let before = nmi_count();
        apic::send_nmi(SECOND);
        apic::send_nmi(SECOND);
        clock::wait_until(PATIENCE_MS, || nmi_count() - before >= 2);
        ensure!(nmi_count() - before == 2, "pair {pair}: {} NMIs", nmi_count() - before);
    }
    Ok(())
}
