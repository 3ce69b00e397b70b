//! Version 3 of the interface, for QEMU 9.1 and later: the code of an instruction is copied, and a
//! callback adds to a counter. It has inline operations, too; those damage the guest's code where
//! one thread has several CPUs (`docs/qemu.md`).

use super::{Instruction, NO_REGISTERS, qemu_plugin_register_vcpu_insn_exec_cb};
use std::ffi::{c_int, c_uint, c_void};
use std::ptr;
use std::sync::atomic::{AtomicU64, Ordering};

/// The version.
pub(super) const VERSION: c_int = 3;

unsafe extern "C" {
    fn qemu_plugin_insn_data(instruction: *const Instruction, to: *mut c_void, size: usize) -> usize;
}

/// The bytes of an instruction; zeroes if QEMU cannot provide them.
///
/// # Safety
///
/// The instruction is QEMU's, valid for the duration of this call, and has that many bytes.
pub(super) unsafe fn bytes<const N: usize>(instruction: *const Instruction) -> [u8; N] {
    let mut bytes = [0; N];
    // SAFETY: the caller's promise; there is room for that many bytes.
    let copied = unsafe { qemu_plugin_insn_data(instruction, bytes.as_mut_ptr().cast(), bytes.len()) };
    if copied == bytes.len() { bytes } else { [0; N] }
}

/// Makes a counter count an instruction whenever it is executed.
///
/// # Safety
///
/// The instruction is QEMU's, and valid for the duration of this call.
pub(super) unsafe fn count(counter: &'static AtomicU64, instruction: *mut Instruction) {
    let data = ptr::from_ref(counter).cast_mut().cast();
    // SAFETY: the caller's promise; the counter stays in place until the process ends.
    unsafe { qemu_plugin_register_vcpu_insn_exec_cb(instruction, on_instruction, NO_REGISTERS, data) };
}

unsafe extern "C" fn on_instruction(_cpu: c_uint, counter: *mut c_void) {
    // SAFETY: `count` has registered it with a counter, which lives as long as the process.
    unsafe { &*counter.cast::<AtomicU64>() }.fetch_add(1, Ordering::Relaxed);
}
