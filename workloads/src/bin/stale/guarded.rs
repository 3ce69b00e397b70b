//! A load from an address that may not be mapped.
//!
//! Pages are unmapped under readers. The load is one instruction at a known address; the handler of
//! its fault continues where the load reports that nothing is mapped.

use std::arch::global_asm;
use std::mem::MaybeUninit;
use std::{io, ptr};

// System V: the address in RDI; the value in RAX, and in RDX whether it is absent.
#[cfg(target_arch = "x86_64")]
global_asm!(
    ".pushsection .text.stale_load,\"ax\",@progbits",
    ".balign 64",
    "stale_load:",
    "    xor edx, edx",
    "stale_load_access:",
    "    mov rax, [rdi]",
    "    ret",
    "stale_load_absent:",
    "    mov edx, 1",
    "    ret",
    ".popsection",
);

// AAPCS64: the address in X0; the value in X0, and in X1 whether it is absent.
#[cfg(target_arch = "aarch64")]
global_asm!(
    ".pushsection .text.stale_load,\"ax\",%progbits",
    ".balign 64",
    "stale_load:",
    "    mov x1, #0",
    "stale_load_access:",
    "    ldr x0, [x0]",
    "    ret",
    "stale_load_absent:",
    "    mov x1, #1",
    "    ret",
    ".popsection",
);

#[repr(C)]
struct Loaded {
    value: u64,
    absent: u64,
}

unsafe extern "C" {
    fn stale_load(address: *const u64) -> Loaded;
    static stale_load_access: u8;
    static stale_load_absent: u8;
}

/// Installs the handler for faults of [`load`]. For the whole process; other faults remain fatal.
pub(crate) fn install() -> io::Result<()> {
    // SAFETY: all zeroes is a valid `sigaction`: no flags, an empty mask.
    let mut action: libc::sigaction = unsafe { MaybeUninit::zeroed().assume_init() };
    action.sa_flags = libc::SA_SIGINFO;
    action.sa_sigaction = on_fault as *const () as usize;
    // SAFETY: the handler is as SA_SIGINFO requires, and changes only the interrupted registers.
    match unsafe { libc::sigaction(libc::SIGSEGV, &raw const action, ptr::null_mut()) } {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}

extern "C" fn on_fault(signal: libc::c_int, _info: *mut libc::siginfo_t, context: *mut libc::c_void) {
    // SAFETY: the kernel passes the interrupted context, which is ours until the handler returns.
    let machine = unsafe { &mut (*context.cast::<libc::ucontext_t>()).uc_mcontext };
    let at = program_counter(machine);
    if *at == (&raw const stale_load_access).addr() as Register {
        *at = (&raw const stale_load_absent).addr() as Register;
    } else {
        // The instruction is retried, and ends the process.
        // SAFETY: the default action is always valid.
        unsafe { libc::signal(signal, libc::SIG_DFL) };
    }
}

#[cfg(target_arch = "x86_64")]
type Register = i64;
#[cfg(target_arch = "aarch64")]
type Register = u64;

fn program_counter(machine: &mut libc::mcontext_t) -> &mut Register {
    #[cfg(target_arch = "x86_64")]
    return &mut machine.gregs[libc::REG_RIP as usize];
    #[cfg(target_arch = "aarch64")]
    return &mut machine.pc;
}

/// The word at `address`, unless nothing readable is mapped there.
///
/// # Safety
///
/// The address is a multiple of 8, and any mapping there may be read. [`install`] was called.
#[inline]
pub(crate) unsafe fn load(address: *const u64) -> Option<u64> {
    // SAFETY: the caller's guarantee; a fault is handled.
    let Loaded { value, absent } = unsafe { stale_load(address) };
    (absent == 0).then_some(value)
}

#[cfg(test)]
mod tests {
    use super::*;
    use rustix::mm::{MapFlags, MprotectFlags, ProtFlags, mmap_anonymous, mprotect};

    #[test]
    fn a_page_without_rights_holds_nothing() {
        install().expect("installs");
        // SAFETY: a fresh mapping at an address of the kernel's choice.
        let page = unsafe { mmap_anonymous(ptr::null_mut(), 4096, ProtFlags::READ, MapFlags::PRIVATE) };
        let page = page.expect("maps");
        for (rights, expected) in [(MprotectFlags::empty(), None), (MprotectFlags::READ, Some(0))] {
            // SAFETY: only this test uses the page.
            let found = unsafe {
                mprotect(page, 4096, rights).expect("protects");
                load(page.cast())
            };
            assert_eq!(found, expected, "{rights:?}");
        }
    }
}
