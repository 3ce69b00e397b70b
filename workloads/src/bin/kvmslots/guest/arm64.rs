//! The guest on Arm64: at EL1, with a stage 1 that identity-maps the first 4 GiB as normal memory.
//! With its MMU off, its stores would bypass the caches through which its monitor reads.

use super::{LOW_AT, PAGE_BYTES, Pass, Stop, value_of};
use kvm_bindings::{
    KVM_REG_ARM_CORE, KVM_REG_ARM64, KVM_REG_ARM64_SYSREG, KVM_REG_SIZE_U64, kvm_regs, kvm_vcpu_init,
    user_pt_regs,
};
use kvm_ioctls::{VcpuExit, VcpuFd, VmFd};
use std::arch::global_asm;
use std::io;
use std::mem::offset_of;
use workloads::mapping::Mapping;

/// The address that the guest stores to while it waits; no device is there.
const DOORBELL: u64 = 0x0900_0000;

/// The page of low memory that holds the table, and the attributes of its blocks of 1 GiB:
/// accessed, inner shareable, readable and writable at EL1, with attribute index 0 (Arm ARM DDI
/// 0487, D8.3).
const TABLE_PAGE: usize = 1;
const BLOCK: u64 = 0x701;
const BLOCKS: usize = 4;

/// System registers by op0, op1, CRn, CRm, op2, and their values.
const SYSTEM: [([u64; 5], u64); 4] = [
    // MAIR_EL1: attribute 0 is that of write-back memory.
    ([3, 0, 10, 2, 0], 0xff),
    // TCR_EL1: 39-bit addresses by TTBR0_EL1, walks cached and inner shareable; none by TTBR1_EL1.
    ([3, 0, 2, 0, 2], 25 | 1 << 8 | 1 << 10 | 3 << 12 | 1 << 23),
    // TTBR0_EL1.
    ([3, 0, 2, 0, 0], LOW_AT + (TABLE_PAGE * PAGE_BYTES) as u64),
    // SCTLR_EL1: MMU and caches on, and the bits that are always set.
    ([3, 0, 1, 0, 0], 0x30d0_0800 | 1 | 1 << 2 | 1 << 12),
];

// X0: the address; X1: the count; W2: the salt; X4: the doorbell. The guest uses X5 itself.
global_asm!(
    ".pushsection .rodata.kvmslots_guest,\"a\",%progbits",
    ".balign 4",
    ".globl kvmslots_guest, kvmslots_guest_end",
    "kvmslots_guest:",
    "2:  str w5, [x4]",
    "3:  add w5, w0, w2",
    "    str w5, [x0]",
    "    add x0, x0, #4096",
    "    subs x1, x1, #1",
    "    b.ne 3b",
    "    b 2b",
    "kvmslots_guest_end:",
    ".popsection",
);

pub(crate) fn prepare(vm: &VmFd, vcpu: &VcpuFd, low: &mut Mapping) -> io::Result<()> {
    let mut target = kvm_vcpu_init::default();
    vm.get_preferred_target(&mut target)?;
    vcpu.vcpu_init(&target)?;
    for block in 0..BLOCKS {
        low.write(TABLE_PAGE, block, (block as u64) << 30 | BLOCK);
    }
    for (register, value) in SYSTEM {
        set(vcpu, system(register), value)?;
    }
    set(vcpu, core(offset_of!(user_pt_regs, pc)), LOW_AT)?;
    set(vcpu, general(4), DOORBELL)
}

pub(crate) fn tell(vcpu: &VcpuFd, pass: Pass) -> io::Result<()> {
    set(vcpu, general(0), pass.at)?;
    set(vcpu, general(1), pass.count)?;
    set(vcpu, general(2), pass.salt.into())
}

pub(crate) fn stop_of(exit: &VcpuExit<'_>) -> Option<Stop> {
    match exit {
        VcpuExit::MmioWrite(DOORBELL, _) => Some(Stop::Waits),
        VcpuExit::MmioWrite(at, data) => Some(Stop::Device { at: *at, value: value_of(data) }),
        _ => None,
    }
}

fn set(vcpu: &VcpuFd, register: u64, value: u64) -> io::Result<()> {
    vcpu.set_one_reg(register, &value.to_le_bytes())?;
    Ok(())
}

/// KVM's name of general register `number`.
const fn general(number: usize) -> u64 {
    core(offset_of!(user_pt_regs, regs) + number * size_of::<u64>())
}

/// KVM's name of the register at an offset of `user_pt_regs`: counted in words of 32 bits.
const fn core(offset: usize) -> u64 {
    let offset = offset_of!(kvm_regs, regs) + offset;
    KVM_REG_ARM64 | KVM_REG_SIZE_U64 | KVM_REG_ARM_CORE as u64 | (offset / size_of::<u32>()) as u64
}

/// KVM's name of a system register.
const fn system([op0, op1, crn, crm, op2]: [u64; 5]) -> u64 {
    let encoding = op0 << 14 | op1 << 11 | crn << 7 | crm << 3 | op2;
    KVM_REG_ARM64 | KVM_REG_SIZE_U64 | KVM_REG_ARM64_SYSREG as u64 | encoding
}
