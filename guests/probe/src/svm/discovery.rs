//! What says that there is SVM, and what switches it on: APM volume 2, sections 15.4 and 15.30.

use core::arch::x86_64::__cpuid;

use baremetal::guarded_asm;

use super::clauses::{breaks, clause, skip};
use super::l2::{self, MSR_EFER, MSR_HSAVE, MSR_VM_CR, SVME, clgi, features, memory_end, stgi};
use crate::guarded::{Fault, attempt, attempt_in_ring3, rdmsr, wrmsr};
use crate::paging::Page;
use crate::report::Verdict;

const SVM_DISABLE: u64 = 1 << 4;

/// Zeroes: as a control block they are refused.
static ZEROES: [Page; 2] = [const { Page::new() }; 2];

/// WRMSR of a register that only switches SVM, or is refused.
fn write(number: u32, value: u64) -> Result<(), Fault> {
    // SAFETY: the tests end with SVM on and a page to save to.
    unsafe { wrmsr(number, value) }
}

pub(super) fn discovery() -> Verdict {
    let ecx = __cpuid(0x8000_0001).ecx;
    clause!("cpuid-svm", ecx & 4 != 0, "CPUID 8000_0001 has ECX {ecx:#x}");
    let features = features();
    let leaf = __cpuid(0x8000_000a);
    clause!("cpuid-revision", leaf.eax & 0xff == 1, "SVM has revision {:#x}", leaf.eax);
    clause!("cpuid-asids", features.asids >= 2, "{} ASIDs", features.asids);
    crate::report::say(format_args!("  {} ASIDs, features {:#x}", features.asids, features.bits));
    let vm_cr = rdmsr(MSR_VM_CR);
    clause!("vm-cr-enabled", vm_cr.is_ok_and(|value| value & SVM_DISABLE == 0), "VM_CR is {vm_cr:x?}");
    let efer = rdmsr(MSR_EFER).unwrap_or(0);
    for _ in 0..2 {
        let (off, read_off) = (write(MSR_EFER, efer & !SVME), rdmsr(MSR_EFER));
        clause!("svme-off", off.is_ok() && read_off == Ok(efer & !SVME), "{off:x?}, EFER {read_off:x?}");
        let (on, read_on) = (write(MSR_EFER, efer | SVME), rdmsr(MSR_EFER));
        clause!("svme-on", on.is_ok() && read_on == Ok(efer | SVME), "{on:x?}, EFER {read_on:x?}");
    }
    l2::enable()?;
    let disabled = write(MSR_VM_CR, vm_cr.unwrap_or(0) | SVM_DISABLE);
    clause!("svm-disable-refused", disabled == Err(Fault::PROTECTION), "SVMDIS with SVME: {disabled:x?}");
    // Without SVME it may be cleared.
    let off = write(MSR_EFER, efer & !SVME);
    let kept = write(MSR_VM_CR, vm_cr.unwrap_or(0));
    let is_kept = off.is_ok() && kept.is_ok() && rdmsr(MSR_VM_CR) == vm_cr;
    clause!("vm-cr-written", is_kept, "VM_CR as it was: {kept:x?}");
    l2::enable()?;
    hsave();
    Ok(())
}

fn hsave() {
    let page = ZEROES[0].address();
    let before = rdmsr(MSR_HSAVE).unwrap_or(0);
    for value in [page | 1, page | 8, page | 0x800] {
        let result = write(MSR_HSAVE, value);
        clause!("hsave-misaligned", result == Err(Fault::PROTECTION), "VM_HSAVE_PA {value:#x}: {result:x?}");
    }
    for value in [memory_end(), 1 << 63 | page] {
        let result = write(MSR_HSAVE, value);
        clause!("hsave-beyond", result == Err(Fault::PROTECTION), "VM_HSAVE_PA {value:#x}: {result:x?}");
    }
    let (written, read) = (write(MSR_HSAVE, page), rdmsr(MSR_HSAVE));
    clause!("hsave-written", written.is_ok() && read == Ok(page), "{written:x?}, read as {read:x?}");
    let back = write(MSR_HSAVE, before);
    clause!("hsave-written", back.is_ok(), "as before: {back:x?}");
}

/// The instructions' results, with zeroes in the registers.
macro_rules! all_by {
    ($attempt:ident) => {
        [
            ("VMRUN", $attempt!("vmrun rax")),
            ("VMLOAD", $attempt!("vmload rax")),
            ("VMSAVE", $attempt!("vmsave rax")),
            ("STGI", $attempt!("stgi")),
            ("CLGI", $attempt!("clgi")),
            ("INVLPGA", $attempt!("invlpga rax, ecx")),
        ]
    };
}

/// The three that take an address, with this one.
fn with_address(address: u64) -> [(&'static str, Result<(), Fault>); 3] {
    // SAFETY: the address is refused, or is that of zeroes, which VMRUN refuses; what VMSAVE saves
    // is loaded again.
    unsafe {
        let run = guarded_asm!("vmrun rax"; inout("rax") address => _,);
        stgi();
        let save = guarded_asm!("vmsave rax"; in("rax") address,);
        let load = guarded_asm!("vmload rax"; in("rax") address,);
        [("VMRUN", run), ("VMSAVE", save), ("VMLOAD", load)]
    }
}

pub(super) fn instructions() -> Verdict {
    let efer = rdmsr(MSR_EFER).unwrap_or(0);
    let _ = write(MSR_EFER, efer & !SVME);
    let off = all_by!(attempt);
    let skinit = attempt!("skinit eax");
    let on = write(MSR_EFER, efer | SVME);
    clause!("svme-on", on.is_ok(), "EFER.SVME: {on:x?}");
    for (name, result) in off {
        clause!(
            "undefined-without-svme",
            result == Err(Fault::UNDEFINED),
            "{name} with SVME = 0: {result:x?}"
        );
    }
    clause!("skinit-undefined", skinit == Err(Fault::UNDEFINED), "SKINIT with SVME = 0: {skinit:x?}");
    l2::enable()?;
    if breaks("skinit-not-offered") {
        skip("skinit-not-offered", "with SVME = 1 it ends the emulator, or does nothing");
    } else {
        let skinit = attempt!("skinit eax");
        clause!("skinit-not-offered", skinit == Err(Fault::UNDEFINED), "SKINIT with SVME = 1: {skinit:x?}");
    }
    for (name, result) in all_by!(attempt_in_ring3) {
        clause!("privileged", result == Err(Fault::PROTECTION), "{name} in ring 3: {result:x?}");
    }
    let (held, aligned) = (stgi_and_clgi(), with_address(ZEROES[0].address()));
    clause!("gif-instructions", held.is_ok(), "STGI and CLGI: {held:x?}");
    for (name, result) in aligned {
        clause!("address-taken", result.is_ok(), "{name} of an aligned page: {result:x?}");
    }
    for offset in [1, 16, 0x800] {
        for (name, result) in with_address(ZEROES[0].address() + offset) {
            let is_refused = result == Err(Fault::PROTECTION);
            clause!("address-misaligned", is_refused, "{name} of a page + {offset:#x}: {result:x?}");
        }
    }
    if breaks("address-beyond") {
        skip("address-beyond", "what is read there is not defined");
        return Ok(());
    }
    for address in [memory_end(), 1 << 63] {
        for (name, result) in with_address(address) {
            clause!(
                "address-beyond",
                result == Err(Fault::PROTECTION),
                "{name} of {address:#x}: {result:x?}"
            );
        }
    }
    Ok(())
}

fn stgi_and_clgi() -> Result<(), Fault> {
    let result = attempt!("clgi");
    clgi();
    stgi();
    result.and(attempt!("stgi"))
}
