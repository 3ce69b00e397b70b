//! QEMU's side: the entry point that it calls, and the functions of its plugin interface that are used.
//!
//! Source: QEMU 7.2, docs/devel/tcg-plugins.rst and the interface that it documents, version 1.

use crate::count::Counts;
use crate::kind::{Kind, phase};
use std::ffi::{CStr, c_char, c_int, c_uint, c_void};
use std::fs;
use std::path::PathBuf;
use std::ptr;
use std::sync::{LazyLock, Mutex, OnceLock, PoisonError};

/// QEMU's `struct qemu_plugin_tb`: a translated block.
#[repr(C)]
struct Block {
    _opaque: [u8; 0],
}

/// QEMU's `struct qemu_plugin_insn`: an instruction of a block.
#[repr(C)]
struct Instruction {
    _opaque: [u8; 0],
}

/// The callback does not look at registers.
const NO_REGISTERS: c_int = 0;
/// The operation of inline code: add to a 64-bit word.
const ADD_U64: c_int = 0;

type Id = u64;

unsafe extern "C" {
    fn qemu_plugin_register_vcpu_tb_trans_cb(id: Id, callback: unsafe extern "C" fn(Id, *mut Block));
    fn qemu_plugin_register_atexit_cb(
        id: Id,
        callback: unsafe extern "C" fn(Id, *mut c_void),
        data: *mut c_void,
    );
    fn qemu_plugin_tb_n_insns(block: *const Block) -> usize;
    fn qemu_plugin_tb_get_insn(block: *const Block, index: usize) -> *mut Instruction;
    fn qemu_plugin_insn_data(instruction: *const Instruction) -> *const c_void;
    fn qemu_plugin_insn_size(instruction: *const Instruction) -> usize;
    fn qemu_plugin_register_vcpu_insn_exec_cb(
        instruction: *mut Instruction,
        callback: unsafe extern "C" fn(c_uint, *mut c_void),
        flags: c_int,
        data: *mut c_void,
    );
    fn qemu_plugin_register_vcpu_insn_exec_inline(
        instruction: *mut Instruction,
        operation: c_int,
        counter: *mut c_void,
        value: u64,
    );
}

/// The version of the interface that this is written for; QEMU reads it.
#[unsafe(no_mangle)]
pub(crate) static qemu_plugin_version: c_int = 1;

/// The counters. Translated code adds to the raw ones without this lock, by a plain load and store of a word: callbacks run in the
/// same thread as it does, so with one thread for all CPUs they never meet.
static COUNTS: LazyLock<Mutex<Counts>> = LazyLock::new(Mutex::default);
static OUTPUT: OnceLock<PathBuf> = OnceLock::new();

/// Has `work` done on the counters.
fn with_counts<T>(work: impl FnOnce(&mut Counts) -> T) -> T {
    work(&mut COUNTS.lock().unwrap_or_else(PoisonError::into_inner))
}

/// QEMU's `qemu_info_t` as far as it is read.
#[repr(C)]
pub(crate) struct Info {
    target_name: *const c_char,
}

/// Called by QEMU once, at its start; anything but 0 makes it end with an error.
///
/// # Safety
///
/// As QEMU calls it: `info` is valid, and `arguments` has `count` strings.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn qemu_plugin_install(
    id: Id,
    info: *const Info,
    count: c_int,
    arguments: *const *const c_char,
) -> c_int {
    // SAFETY: by the caller, both are strings.
    let target = unsafe { CStr::from_ptr((*info).target_name) };
    if target != c"aarch64" {
        eprintln!("quell-plugin: this machine is {target:?}, and only aarch64 is known");
        return 1;
    }
    for index in 0..usize::try_from(count).unwrap_or(0) {
        // SAFETY: by the caller, there are so many strings.
        let argument = unsafe { CStr::from_ptr(*arguments.add(index)) }.to_string_lossy();
        match argument.split_once('=') {
            Some(("out", path)) => drop(OUTPUT.set(path.into())),
            _ => {
                eprintln!("quell-plugin: unknown argument {argument}; there is out=FILE");
                return 1;
            }
        }
    }
    if OUTPUT.get().is_none() {
        eprintln!("quell-plugin: it takes out=FILE");
        return 1;
    }
    // SAFETY: QEMU's functions, called as its interface says; the callbacks live as long as the process.
    unsafe {
        qemu_plugin_register_vcpu_tb_trans_cb(id, on_translation);
        qemu_plugin_register_atexit_cb(id, on_exit, ptr::null_mut());
    }
    0
}

/// A block is translated: has its instructions counted whenever they are executed.
unsafe extern "C" fn on_translation(_id: Id, block: *mut Block) {
    // SAFETY: the block is QEMU's, and valid for the time of this call; so are its instructions.
    let instructions =
        unsafe { (0..qemu_plugin_tb_n_insns(block)).map(|index| qemu_plugin_tb_get_insn(block, index)) };
    with_counts(|counts| {
        for instruction in instructions {
            // SAFETY: as above; the word's bytes are there if the size says so.
            let word = unsafe {
                let data = qemu_plugin_insn_data(instruction).cast::<[u8; 4]>();
                let is_whole = qemu_plugin_insn_size(instruction) == size_of::<u32>();
                if is_whole { u32::from_le_bytes(*data) } else { 0 }
            };
            let counters = Kind::of(word).map(|kind| counts.kind(kind));
            for counter in counters.into_iter().chain([counts.instructions()]) {
                let counter = counter.as_ptr().cast();
                // SAFETY: as above; the counter is where it is until the process ends, and may be changed by anybody.
                unsafe { qemu_plugin_register_vcpu_insn_exec_inline(instruction, ADD_U64, counter, 1) };
            }
            if let Some(phase) = phase(word) {
                let data = ptr::without_provenance_mut(phase);
                // SAFETY: as above; the data is a number, and nobody dereferences it.
                unsafe {
                    qemu_plugin_register_vcpu_insn_exec_cb(instruction, on_phase, NO_REGISTERS, data);
                }
            }
        }
    });
}

/// A hint that begins a phase is about to be executed.
unsafe extern "C" fn on_phase(_cpu: c_uint, phase: *mut c_void) {
    with_counts(|counts| counts.begin(phase.addr()));
}

/// QEMU ends.
unsafe extern "C" fn on_exit(_id: Id, _data: *mut c_void) {
    let json = with_counts(Counts::json);
    let Some(path) = OUTPUT.get() else { return };
    if let Err(error) = fs::write(path, format!("{json}\n")) {
        eprintln!("quell-plugin: cannot write {}: {error}", path.display());
    }
}
