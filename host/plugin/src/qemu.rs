//! QEMU's side: the entry point that it calls, and the functions of its plugin interface that are
//! used.
//!
//! Source: docs/devel/tcg-plugins.rst of QEMU 7.2 and 10.0, and the interface that they document.
//! The differences between its versions are in [`interface`].

// Selected by the feature: QEMU reads the version before it calls anything.
#[cfg_attr(feature = "interface-3", path = "interface_3.rs")]
#[cfg_attr(not(feature = "interface-3"), path = "interface_1.rs")]
mod interface;

use crate::count::Counts;
use crate::kind::{Kind, phase, phase_of_amd64};
use std::ffi::{CStr, c_char, c_int, c_uint, c_void};
use std::fs;
use std::path::PathBuf;
use std::ptr;
use std::sync::atomic::{AtomicBool, Ordering};
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
    fn qemu_plugin_insn_size(instruction: *const Instruction) -> usize;
    fn qemu_plugin_register_vcpu_insn_exec_cb(
        instruction: *mut Instruction,
        callback: unsafe extern "C" fn(c_uint, *mut c_void),
        flags: c_int,
        data: *mut c_void,
    );
}

/// The supported version of the interface; QEMU reads it.
#[unsafe(no_mangle)]
pub(crate) static qemu_plugin_version: c_int = interface::VERSION;

/// The counters. The raw ones are added to without this lock: by callbacks, or by translated code
/// (see [`interface`]).
static COUNTS: LazyLock<Mutex<Counts>> = LazyLock::new(Mutex::default);
/// Whether the instructions are AMD64's; otherwise they are Arm64's.
static IS_AMD64: AtomicBool = AtomicBool::new(false);
static OUTPUT: OnceLock<PathBuf> = OnceLock::new();

fn with_counts<T>(work: impl FnOnce(&mut Counts) -> T) -> T {
    work(&mut COUNTS.lock().unwrap_or_else(PoisonError::into_inner))
}

/// The fields of QEMU's `qemu_info_t` that are read.
#[repr(C)]
pub(crate) struct Info {
    target_name: *const c_char,
}

/// Called by QEMU once, at its start; a result other than 0 makes it end with an error.
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
    // SAFETY: the caller promises that both are strings.
    let target = unsafe { CStr::from_ptr((*info).target_name) };
    let is_amd64 = target == c"x86_64";
    if !is_amd64 && target != c"aarch64" {
        eprintln!("quell-plugin: this machine is {target:?}, and only aarch64 and x86_64 are known");
        return 1;
    }
    IS_AMD64.store(is_amd64, Ordering::Relaxed);
    for index in 0..usize::try_from(count).unwrap_or(0) {
        // SAFETY: the caller promises that there are that many strings.
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
    LazyLock::force(&COUNTS);
    // SAFETY: as in QEMU's interface; the callbacks live as long as the process.
    unsafe {
        qemu_plugin_register_vcpu_tb_trans_cb(id, on_translation);
        qemu_plugin_register_atexit_cb(id, on_exit, ptr::null_mut());
    }
    0
}

/// A block is translated: makes its instructions counted whenever they are executed.
unsafe extern "C" fn on_translation(_id: Id, block: *mut Block) {
    // SAFETY: the block and its instructions are QEMU's, and valid for the duration of this call.
    let instructions =
        unsafe { (0..qemu_plugin_tb_n_insns(block)).map(|index| qemu_plugin_tb_get_insn(block, index)) };
    with_counts(|counts| {
        for instruction in instructions {
            // SAFETY: as above.
            let size = unsafe { qemu_plugin_insn_size(instruction) };
            let is_amd64 = IS_AMD64.load(Ordering::Relaxed);
            let word = match size {
                // SAFETY: as above; it has that many bytes.
                4 if !is_amd64 => u32::from_le_bytes(unsafe { interface::bytes(instruction) }),
                _ => 0,
            };
            let kind = match size {
                // SAFETY: as above; it has that many bytes.
                3 if is_amd64 => Kind::of_amd64(unsafe { interface::bytes(instruction) }),
                _ => Kind::of(word),
            };
            let phase = match size {
                // SAFETY: as above; it has that many bytes.
                7 if is_amd64 => phase_of_amd64(unsafe { interface::bytes(instruction) }),
                _ => phase(word),
            };
            // First: the hint counts for its phase, and QEMU 10 keeps the order of registration.
            if let Some(phase) = phase {
                let data = ptr::without_provenance_mut(phase);
                // SAFETY: as above; the data is a number, and is never dereferenced.
                unsafe {
                    qemu_plugin_register_vcpu_insn_exec_cb(instruction, on_phase, NO_REGISTERS, data);
                }
            }
            let counter = kind.map(|kind| counts.kind(kind));
            for counter in counter.into_iter().chain([counts.instructions()]) {
                // SAFETY: as above.
                unsafe { interface::count(counts.counter(counter), instruction) };
            }
        }
    });
}

unsafe extern "C" fn on_phase(_cpu: c_uint, phase: *mut c_void) {
    with_counts(|counts| counts.begin(phase.addr()));
}

unsafe extern "C" fn on_exit(_id: Id, _data: *mut c_void) {
    let json = with_counts(Counts::json);
    let Some(path) = OUTPUT.get() else { return };
    if let Err(error) = fs::write(path, format!("{json}\n")) {
        eprintln!("quell-plugin: cannot write {}: {error}", path.display());
    }
}
