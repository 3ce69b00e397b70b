//! Version 1 of the interface, for QEMU 6.0 to 8.2: the code of an instruction is borrowed, and
//! translated code adds to a counter itself, by a plain load and store. So counts are exact where
//! one thread has all CPUs.

use super::Instruction;
use std::ffi::{c_int, c_void};
use std::sync::atomic::AtomicU64;

/// The version.
pub(super) const VERSION: c_int = 1;

unsafe extern "C" {
    fn qemu_plugin_insn_data(instruction: *const Instruction) -> *const c_void;
    fn qemu_plugin_register_vcpu_insn_exec_inline(
        instruction: *mut Instruction,
        operation: c_int,
        counter: *mut c_void,
        value: u64,
    );
}

/// The operation of inline code: add to a 64-bit word.
const ADD_U64: c_int = 0;

/// The bytes of an instruction.
///
/// # Safety
///
/// The instruction is QEMU's, valid for the duration of this call, and has that many bytes.
pub(super) unsafe fn bytes<const N: usize>(instruction: *const Instruction) -> [u8; N] {
    // SAFETY: the caller promises that the bytes are there.
    unsafe { *qemu_plugin_insn_data(instruction).cast() }
}

/// Makes a counter count an instruction whenever it is executed.
///
/// # Safety
///
/// The instruction is QEMU's, and valid for the duration of this call.
pub(super) unsafe fn count(counter: &'static AtomicU64, instruction: *mut Instruction) {
    // SAFETY: the counter stays in place until the process ends, and any code may change it.
    unsafe { qemu_plugin_register_vcpu_insn_exec_inline(instruction, ADD_U64, counter.as_ptr().cast(), 1) };
}
