//! Version 3 of the interface, for QEMU 9.1 and later: the code of an instruction is copied, and
//! counters are in QEMU's scoreboards, which have a row for each CPU.

use super::{ADD_U64, Instruction};
use crate::count::{RAW_BYTES, Raw};
use std::ffi::{c_int, c_void};

/// The version.
pub(super) const VERSION: c_int = 3;

/// QEMU's `struct qemu_plugin_scoreboard`.
#[repr(C)]
struct Scoreboard {
    _opaque: [u8; 0],
}

/// QEMU's `qemu_plugin_u64`: a word of each row.
#[repr(C)]
#[derive(Clone, Copy)]
struct Word {
    scoreboard: *mut Scoreboard,
    offset: usize,
}

unsafe extern "C" {
    fn qemu_plugin_insn_data(instruction: *const Instruction, to: *mut c_void, size: usize) -> usize;
    fn qemu_plugin_scoreboard_new(row_size: usize) -> *mut Scoreboard;
    fn qemu_plugin_u64_sum(word: Word) -> u64;
    fn qemu_plugin_register_vcpu_insn_exec_inline_per_vcpu(
        instruction: *mut Instruction,
        operation: c_int,
        word: Word,
        value: u64,
    );
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

/// The raw counters.
pub(super) struct Counters(*mut Scoreboard);

// SAFETY: the scoreboard is QEMU's, stays until the process ends, and may be used by any thread.
unsafe impl Send for Counters {}

impl Default for Counters {
    fn default() -> Self {
        // SAFETY: QEMU's function; any size will do.
        Self(unsafe { qemu_plugin_scoreboard_new(RAW_BYTES) })
    }
}

impl Counters {
    const fn word(&self, counter: usize) -> Word {
        Word { scoreboard: self.0, offset: counter * size_of::<u64>() }
    }
}

/// Makes a counter count an instruction whenever it is executed.
///
/// # Safety
///
/// The instruction is QEMU's, and valid for the duration of this call.
pub(super) unsafe fn count(counters: &Counters, instruction: *mut Instruction, counter: usize) {
    let word = counters.word(counter);
    // SAFETY: the caller's promise; the word is one of the scoreboard's rows.
    unsafe { qemu_plugin_register_vcpu_insn_exec_inline_per_vcpu(instruction, ADD_U64, word, 1) };
}

impl Raw for Counters {
    fn load(&self, counter: usize) -> u64 {
        // SAFETY: the word is one of the scoreboard's rows.
        unsafe { qemu_plugin_u64_sum(self.word(counter)) }
    }
}
