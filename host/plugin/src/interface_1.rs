//! Version 1 of the interface, for QEMU 6.0 to 8.2: the code of an instruction is borrowed, and
//! counters are wherever the plugin keeps them.

use super::{ADD_U64, Instruction};
use crate::count::Words;
use std::ffi::{c_int, c_void};

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

/// The bytes of an instruction.
///
/// # Safety
///
/// The instruction is QEMU's, valid for the duration of this call, and has that many bytes.
pub(super) unsafe fn bytes<const N: usize>(instruction: *const Instruction) -> [u8; N] {
    // SAFETY: the caller promises that the bytes are there.
    unsafe { *qemu_plugin_insn_data(instruction).cast() }
}

/// The raw counters.
pub(super) type Counters = Words;

/// Makes a counter count an instruction whenever it is executed.
///
/// # Safety
///
/// The instruction is QEMU's, and valid for the duration of this call.
pub(super) unsafe fn count(counters: &Counters, instruction: *mut Instruction, counter: usize) {
    let counter = counters.counter(counter).as_ptr().cast();
    // SAFETY: the counter stays in place until the process ends, and any code may change it.
    unsafe { qemu_plugin_register_vcpu_insn_exec_inline(instruction, ADD_U64, counter, 1) };
}
