//! Detection of emulators that get CMPXCHG16B wrong.
//!
//! The instruction changes ZF and leaves the other flags. QEMU 7.2 computes them from state that
//! belongs to an earlier instruction, and writes the whole result to RFLAGS: a guest's kernel that
//! uses the instruction may get NT, AC or TF set (`docs/qemu.md`). This machine is tested once, and
//! guests are not shown the instruction if it fails.

use core::arch::asm;

/// CF, AF, SF and OF.
const FLAGS: u64 = 0x891;

#[repr(align(16))]
struct Memory([u64; 2]);

/// Whether CMPXCHG16B, which this machine has, preserves the flags that it should.
pub(super) fn leaves_flags() -> bool {
    let mut memory = Memory([1, 2]);
    let flags: u64;
    // POPFQ makes an emulator take its flags from memory. SUB then clears all those that are in its
    // operand. An emulator that has noted operands and operation for later, and forgets the
    // operation, takes the operand for the flags. SAFETY: the memory is ours, 16 bytes and aligned;
    // RFLAGS are set to their previous value, except for arithmetic flags.
    unsafe {
        asm!(
            "push rbx", "xor ebx, ebx",
            "pushfq", "popfq",
            "sub rsi, r8",
            "cmpxchg16b [rdi]",
            "pushfq", "pop r9",
            "pop rbx",
            inout("rsi") FLAGS => _, in("r8") FLAGS, in("rdi") &raw mut memory,
            out("r9") flags,
            inout("rax") 0u64 => _, inout("rdx") 0u64 => _, in("rcx") 0u64,
        );
    }
    flags & FLAGS == 0 && memory.0 == [1, 2]
}
