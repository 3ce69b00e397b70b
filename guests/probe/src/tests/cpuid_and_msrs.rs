//! Registers that do not exist, are not writable, or do not accept a value.

use super::prelude::*;
use crate::hypercall::is_intels;
use core::arch::x86_64::__cpuid_count;

/// MSRs that do not exist, or that this platform does not show: from the gaps and edges of all
/// ranges, of SVM, VMX, machine checks, memory types, the synthetic interrupt controller, and the
/// registers of the xAPIC.
const UNKNOWN: [u32; 32] = [
    0x0000_0017, 0x0000_001f, 0x0000_00fe, 0x0000_01a0, 0x0000_0250, 0x0000_02ff, 0x0000_0179, 0x0000_0400,
    0x0000_0480, 0x0000_0800, 0x0000_0801, 0x0000_0804, 0x0000_080c, 0x0000_080e, 0x0000_0831, 0x0000_083d,
    0x0000_0840, 0x0000_08ff, 0x0000_1fff, 0x0000_2000, 0x0000_dead, 0x3fff_ffff, 0x4000_0004, 0x4000_0080,
    0x4000_00c0, 0x4000_0200, 0xc000_0104, 0xc000_2000, 0xc001_0114, 0xc001_0117, 0xc001_2000, 0xffff_ffff,
];

/// MSRs that say what VMX can do, which no guest has.
const VMX_CAPABILITIES: core::ops::RangeInclusive<u32> = 0x480..=0x493;

/// Reading and writing an unknown MSR is #GP(0); nor does CPUID show VMX, or the MSR that would
/// enable it say so.
pub(super) fn unknown_msr() -> Verdict {
    // Which enables features of Intel's alone.
    const MISC_ENABLE: u32 = 0x1a0;
    let capabilities = VMX_CAPABILITIES.filter(|number| !UNKNOWN.contains(number));
    let numbers = UNKNOWN.into_iter().filter(|&number| number != MISC_ENABLE || !is_intels());
    for number in numbers.chain(capabilities) {
        let read = rdmsr(number);
        ensure!(read == Err(Fault::PROTECTION), "RDMSR of {number:#x}: {read:x?}");
        for value in [0, u64::MAX] {
            // SAFETY: no register in use is on the list.
            let written = unsafe { wrmsr(number, value) };
            ensure!(written == Err(Fault::PROTECTION), "WRMSR of {value:#x} to {number:#x}: {written:x?}");
        }
    }
    let (shown, enabled) = (__cpuid_count(1, 0).ecx >> 5 & 1, rdmsr(0x3a));
    ensure!(shown == 0 && matches!(enabled, Err(_) | Ok(1)), "VMX is shown: {shown}, {enabled:x?}");
    Ok(())
}

/// Read-only registers of an x2APIC: id, version, PPR, LDR, ISR, TMR, IRR, current count.
const READ_ONLY: [u32; 10] = [0x802, 0x803, 0x80a, 0x80d, 0x810, 0x817, 0x818, 0x820, 0x827, 0x839];

/// Values that it refuses.
const REFUSED: [(u32, &[u64]); 12] = [
    // Reserved bits of TPR, EOI, SVR, ESR.
    (0x808, &[1 << 8, 1 << 32]),
    (0x80b, &[1]),
    (0x80f, &[1 << 10, 1 << 16, 1 << 32]),
    (0x828, &[1]),
    // Of the ICR: 13, 16, 20, 31.
    (0x830, &[1 << 13 | 0x40, 1 << 16 | 0x40, 1 << 20 | 0x40, 1 << 31 | 0x40]),
    // Of the timer: reserved mode, bit 8, bit 20, high half; of LINT0 and the error entry.
    (0x832, &[3 << 17, 1 << 8, 1 << 20, 1 << 32]),
    (0x835, &[1 << 11, 1 << 17]),
    (0x837, &[1 << 8]),
    // Initial count, divide configuration, self-IPI.
    (0x838, &[1 << 32]),
    (0x83e, &[1 << 2, 1 << 4]),
    (0x83f, &[1 << 8, 1 << 32]),
    // The base: leaving x2APIC mode.
    (apic::APIC_BASE, &[0xfee0_0800]),
];

/// A refused write is #GP(0) and changes nothing; write-only registers cannot be read.
pub(super) fn x2apic_reserved() -> Verdict {
    let read_only = READ_ONLY.into_iter().flat_map(|number| [(number, 0), (number, 1)]);
    let refused = REFUSED.iter().flat_map(|(number, values)| values.iter().map(|value| (*number, *value)));
    for (number, value) in read_only.chain(refused) {
        let before = rdmsr(number);
        // SAFETY: it is refused, as the test checks.
        let written = unsafe { wrmsr(number, value) };
        ensure!(written == Err(Fault::PROTECTION), "WRMSR of {value:#x} to {number:#x}: {written:x?}");
        let after = rdmsr(number);
        ensure!(before == after, "{number:#x} was {before:x?}, is {after:x?} after a refused write");
    }
    for number in [apic::EOI, apic::SELF_IPI] {
        let read = rdmsr(number);
        ensure!(read == Err(Fault::PROTECTION), "RDMSR of {number:#x}: {read:x?}");
    }
    Ok(())
}

/// The performance counters that every processor of AMD has had: they accept any event, and count
/// nothing.
pub(super) fn performance_counters() -> Verdict {
    if is_intels() {
        return Ok(());
    }
    for number in 0xc001_0000..=0xc001_0007 {
        for value in [0x53_0076, u64::MAX, 0] {
            // SAFETY: nothing is counted.
            let written = unsafe { wrmsr(number, value) };
            ensure!(written.is_ok(), "{number:#x} = {value:#x}: {written:?}");
            let read = rdmsr(number);
            ensure!(read == Ok(0), "{number:#x} is {read:x?}");
        }
    }
    Ok(())
}

/// LSTAR, CSTAR, and the bases of FS, GS and the kernel's GS take canonical addresses only.
pub(super) fn canonical() -> Verdict {
    for number in [0xc000_0082, 0xc000_0083, 0xc000_0100, 0xc000_0101, 0xc000_0102] {
        let before = rdmsr(number).unwrap_or_default();
        for (value, is_canonical) in [
            (0x7fff_ffff_f000, true),
            (0xffff_8000_0000_0000, true),
            (0x8000_0000_0000, false),
            (0xffff_7fff_ffff_ffff, false),
            (1 << 63, false),
        ] {
            // SAFETY: neither SYSCALL nor the segments are used, and the value is put back.
            let written = unsafe { wrmsr(number, value) };
            let read = rdmsr(number);
            // SAFETY: its own value.
            let _ = unsafe { wrmsr(number, before) };
            if is_canonical {
                ensure!(written.is_ok() && read == Ok(value), "{number:#x} is {read:x?}, {written:?}");
            } else {
                let expected = Err(Fault::PROTECTION);
                ensure!(written == expected, "WRMSR of {value:#x} to {number:#x}: {written:x?}");
                ensure!(read == Ok(before), "{number:#x} is {read:x?} after a refused write");
            }
        }
    }
    Ok(())
}
