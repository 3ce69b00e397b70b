//! Instructions that fault, and instructions with unusual encodings.

use core::arch::asm;

use super::prelude::*;
use crate::guarded::attempt;
use crate::hypercall::is_intels;

/// CR0.NW without CD: a processor refuses it with #GP; with QEMU, VMRUN refuses the state.
pub(super) fn no_write_through() {
    const NW: u64 = 1 << 29;
    const CD: u64 = 1 << 30;
    // SAFETY: the bits do not affect this program.
    unsafe {
        core::arch::asm!(
            "mov {cr0}, cr0", "and {cr0}, {keep}", "or {cr0}, {nw}", "mov cr0, {cr0}",
            cr0 = out(reg) _, keep = in(reg) !CD, nw = in(reg) NW,
        );
    }
    // An exit, and with it a VMRUN.
    let _ = core::arch::x86_64::__cpuid(0);
}

/// VMMCALL has a prefix, or it would have been replaced.
fn foreign_call() -> Result<(), Fault> {
    if is_intels() { attempt!(".byte 0x66, 0x0f, 0x01, 0xd9") } else { attempt!(".byte 0x0f, 0x01, 0xc1") }
}

/// Instructions that CPUID does not show are #UD.
pub(super) fn not_shown() -> Verdict {
    let results = [
        ("INVLPGA", attempt!(".byte 0x0f, 0x01, 0xdf")),
        ("VMRUN", attempt!(".byte 0x0f, 0x01, 0xd8")),
        ("VMLOAD", attempt!(".byte 0x0f, 0x01, 0xda")),
        ("VMSAVE", attempt!(".byte 0x0f, 0x01, 0xdb")),
        ("STGI", attempt!(".byte 0x0f, 0x01, 0xdc")),
        ("CLGI", attempt!(".byte 0x0f, 0x01, 0xdd")),
        ("SKINIT", attempt!(".byte 0x0f, 0x01, 0xde")),
        ("MONITOR", attempt!(".byte 0x0f, 0x01, 0xc8")),
        ("MWAIT", attempt!(".byte 0x0f, 0x01, 0xc9")),
        ("the other vendor's hypercall", foreign_call()),
        ("RSM", attempt!(".byte 0x0f, 0xaa")),
    ];
    are_undefined(&results)?;
    // Elsewhere the processor alone decides, and on QEMU 10 one of them ends the probe.
    if is_intels() {
        vmx_not_shown()?;
    }
    let rdpmc = attempt!("rdpmc");
    ensure!(rdpmc == Err(Fault::PROTECTION), "RDPMC: {rdpmc:?}");
    Ok(())
}

fn vmx_not_shown() -> Verdict {
    let results = [
        ("GETSEC", attempt!(".byte 0x0f, 0x37")),
        ("VMLAUNCH", attempt!(".byte 0x0f, 0x01, 0xc2")),
        ("VMRESUME", attempt!(".byte 0x0f, 0x01, 0xc3")),
        ("VMXOFF", attempt!(".byte 0x0f, 0x01, 0xc4")),
        ("VMFUNC", attempt!(".byte 0x0f, 0x01, 0xd4")),
        ("VMREAD", attempt!(".byte 0x0f, 0x78, 0xc0")),
        ("VMWRITE", attempt!(".byte 0x0f, 0x79, 0xc0")),
        ("VMPTRLD", attempt!(".byte 0x0f, 0xc7, 0x34, 0x24")),
        ("VMPTRST", attempt!(".byte 0x0f, 0xc7, 0x3c, 0x24")),
        ("VMCLEAR", attempt!(".byte 0x66, 0x0f, 0xc7, 0x34, 0x24")),
        ("VMXON", attempt!(".byte 0xf3, 0x0f, 0xc7, 0x34, 0x24")),
        ("INVEPT", attempt!(".byte 0x66, 0x0f, 0x38, 0x80, 0x04, 0x24")),
        ("INVVPID", attempt!(".byte 0x66, 0x0f, 0x38, 0x81, 0x04, 0x24")),
    ];
    are_undefined(&results)
}

fn are_undefined(results: &[(&str, Result<(), Fault>)]) -> Verdict {
    for (name, result) in results {
        ensure!(*result == Err(Fault::UNDEFINED), "{name}: {result:?}");
    }
    Ok(())
}

/// Reserved bits of CR4 and those fixed in long mode are #GP(0); an existing bit can be set.
pub(super) fn cr4_reserved() -> Verdict {
    const PAE: u64 = 1 << 5;
    const PGE: u64 = 1 << 7;
    let before = Cr4::read_raw();
    // VMXE, SMXE, 15, 19, CET, PKS, and bits that do not exist.
    for bit in [13, 14, 15, 19, 23, 24, 25, 31, 32, 63] {
        // SAFETY: it is refused, as the test checks.
        let result = unsafe { write_cr4(before | 1 << bit) };
        ensure!(result == Err(Fault::PROTECTION), "bit {bit}: {result:?}");
        ensure!(Cr4::read_raw() == before, "a refused write changed CR4 to {:#x}", Cr4::read_raw());
    }
    // SAFETY: as above.
    let result = unsafe { write_cr4(before & !PAE) };
    ensure!(result == Err(Fault::PROTECTION), "PAE off in long mode: {result:?}");
    for value in [before | PGE, before & !PGE, before] {
        // SAFETY: there are no global pages.
        let result = unsafe { write_cr4(value) };
        ensure!(result.is_ok() && Cr4::read_raw() == value, "{value:#x}: {result:?}, {:#x}", Cr4::read_raw());
    }
    Ok(())
}

/// How many of four one-byte instructions after these bytes are executed: 4 if RIP is right.
macro_rules! advance {
    ($first:literal $(, $byte:literal)*) => {{
        const BYTES: &str = concat!(stringify!($first) $(, ", ", stringify!($byte))*);
        let target = 0u64;
        let (behind, fault, error): (u64, u64, u64);
        // SAFETY: the instruction reads an identification; SCASB reads our own memory, by RDI.
        unsafe {
            asm!(
                "push rbx",
                guarded!(concat!(".byte ", stringify!($first) $(, ", ", stringify!($byte))*)),
                "scasb", "scasb", "scasb", "scasb",
                "pop rbx",
                inout("rdi") &raw const target => behind,
                inout("rax") 0u64 => _, inout("rcx") 0xc000_0080u64 => _, inout("rdx") 0u64 => _,
                inout("r11") 0u64 => fault, inout("r10") 0u64 => error,
            );
        }
        (BYTES, behind.wrapping_sub((&raw const target).addr() as u64), Fault::check(fault, error))
    }};
}

/// RIP advances by the instruction's length, prefixes included.
pub(super) fn prefixes() -> Verdict {
    let results = [
        advance!(0x0f, 0xa2),
        advance!(0x66, 0x0f, 0xa2),
        advance!(0x48, 0x0f, 0xa2),
        advance!(0x4f, 0x0f, 0xa2),
        advance!(0xf2, 0x0f, 0xa2),
        advance!(0xf3, 0x0f, 0xa2),
        advance!(0x2e, 0x66, 0x48, 0x0f, 0xa2),
        advance!(0x66, 0x66, 0x66, 0x66, 0x66, 0x66, 0x66, 0x66, 0x66, 0x66, 0x66, 0x66, 0x66, 0x0f, 0xa2),
        // RDMSR of EFER, IN, OUT.
        advance!(0x66, 0x0f, 0x32),
        advance!(0x48, 0x0f, 0x32),
        advance!(0x48, 0xe4, 0x80),
        advance!(0x66, 0x48, 0xe5, 0x80),
        advance!(0x67, 0xe6, 0x80),
        // MOV to CR8.
        advance!(0x44, 0x0f, 0x22, 0xc2),
    ];
    for (bytes, executed, fault) in results {
        ensure!(fault.is_ok(), "{bytes}: {fault:?}");
        ensure!(executed == 4, "{executed} of 4 instructions behind {bytes} were executed");
    }
    Ok(())
}

/// CMPXCHG16B, if CPUID shows it, preserves all flags except ZF.
pub(super) fn cmpxchg16b() -> Verdict {
    const ECX_CX16: u32 = 1 << 13;
    const FLAGS: u64 = 0x891;
    #[repr(align(16))]
    struct Memory([u64; 2]);
    if core::arch::x86_64::__cpuid(1).ecx & ECX_CX16 == 0 {
        return Ok(());
    }
    let mut memory = Memory([1, 2]);
    let flags: u64;
    // SAFETY: the memory is ours, 16 bytes and aligned.
    unsafe {
        asm!(
            "push rbx", "xor ebx, ebx", "pushfq", "popfq", "sub rsi, r8",
            "cmpxchg16b [rdi]",
            "pushfq", "pop r9", "pop rbx",
            inout("rsi") FLAGS => _, in("r8") FLAGS, in("rdi") &raw mut memory,
            out("r9") flags,
            inout("rax") 0u64 => _, inout("rdx") 0u64 => _, in("rcx") 0u64,
        );
    }
    ensure!(memory.0 == [1, 2], "it stored although what it compared was unequal");
    ensure!(flags & FLAGS == 0, "the flags behind CMPXCHG16B are {flags:#x}");
    Ok(())
}
