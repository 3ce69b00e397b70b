//! The guest on AMD64: in protected mode without paging, so all its addresses are physical.

use super::{LOW_AT, Pass, Stop, value_of};
use kvm_bindings::kvm_segment;
use kvm_ioctls::{VcpuExit, VcpuFd, VmFd};
use std::arch::global_asm;
use std::io;
use workloads::mapping::Mapping;

/// The port that the guest writes to while it waits; no device is there.
const PORT: u16 = 0xf4;
/// Three pages that KVM needs on Intel's processors, away from everything else.
const TSS_AT: usize = 0xfffb_d000;

/// Segments (APM vol. 2, 4.8): readable code, writable data, both accessed.
const CODE: u8 = 11;
const DATA: u8 = 3;
/// CR0.PE: protected mode.
const CR0_PE: u64 = 1;
/// RFLAGS: only the bit that is always set, so interrupts are disabled.
const RFLAGS: u64 = 2;

// EDI: the address; ECX: the count; EDX: the salt. The guest uses EAX itself.
global_asm!(
    ".pushsection .rodata.kvmslots_guest,\"a\",@progbits",
    ".code32",
    ".globl kvmslots_guest, kvmslots_guest_end",
    "kvmslots_guest:",
    "2:  out {port}, al",
    "3:  lea eax, [edi + edx]",
    "    mov [edi], eax",
    "    add edi, 4096",
    "    dec ecx",
    "    jnz 3b",
    "    jmp 2b",
    "kvmslots_guest_end:",
    ".code64",
    ".popsection",
    port = const PORT,
);

/// Sets up the vCPU to begin with the code.
pub(crate) fn prepare(vm: &VmFd, vcpu: &VcpuFd, _low: &mut Mapping) -> io::Result<()> {
    vm.set_tss_address(TSS_AT)?;
    let mut special = vcpu.get_sregs()?;
    let flat = |type_| kvm_segment {
        base: 0,
        limit: u32::MAX,
        selector: 8,
        type_,
        present: 1,
        dpl: 0,
        db: 1,
        s: 1,
        l: 0,
        g: 1,
        ..kvm_segment::default()
    };
    special.cs = flat(CODE);
    for segment in [&mut special.ds, &mut special.es, &mut special.ss] {
        *segment = flat(DATA);
    }
    special.cr0 |= CR0_PE;
    vcpu.set_sregs(&special)?;
    let mut registers = vcpu.get_regs()?;
    (registers.rip, registers.rflags) = (LOW_AT, RFLAGS);
    Ok(vcpu.set_regs(&registers)?)
}

/// Tells a waiting guest what to do.
pub(crate) fn tell(vcpu: &VcpuFd, pass: Pass) -> io::Result<()> {
    let mut registers = vcpu.get_regs()?;
    (registers.rdi, registers.rcx, registers.rdx) = (pass.at, pass.count, pass.salt.into());
    Ok(vcpu.set_regs(&registers)?)
}

/// The meaning of an exit, if it is one that the guest causes.
pub(crate) fn stop_of(exit: &VcpuExit<'_>) -> Option<Stop> {
    match exit {
        VcpuExit::IoOut(PORT, _) => Some(Stop::Waits),
        VcpuExit::MmioWrite(at, data) => Some(Stop::Device { at: *at, value: value_of(data) }),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::super::code;
    use super::*;

    #[test]
    fn the_code_is_what_a_processor_in_protected_mode_takes() {
        let expected: &[&[u8]] = &[
            &[0xe6, 0xf4],                         // out 0xf4, al
            &[0x8d, 0x04, 0x17],                   // lea eax, [edi + edx]
            &[0x89, 0x07],                         // mov [edi], eax
            &[0x81, 0xc7, 0x00, 0x10, 0x00, 0x00], // add edi, 4096
            &[0x49],                               // dec ecx
            &[0x75, 0xf2],                         // jnz, to lea
            &[0xeb, 0xee],                         // jmp, to out
        ];
        assert_eq!(code(), expected.concat());
    }

    #[test]
    fn exits_are_told_apart() {
        assert_eq!(stop_of(&VcpuExit::IoOut(PORT, &[0])), Some(Stop::Waits));
        assert_eq!(stop_of(&VcpuExit::IoOut(PORT + 1, &[0])), None);
        let store = VcpuExit::MmioWrite(0x4000_0000, &[1, 2, 0, 0]);
        assert_eq!(stop_of(&store), Some(Stop::Device { at: 0x4000_0000, value: 0x201 }));
        assert_eq!(stop_of(&VcpuExit::Shutdown), None);
    }
}
