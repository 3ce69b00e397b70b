//! The events that a guest exits on: bits of the VMCB's intercept vectors (appendix B), and the
//! ones that are always set.

use crate::pages::Pages;
use crate::x86::processor::X86;
use crate::x86::vcpu::{event, msr};

/// Bits of the word at offset 0x0c.
pub mod misc1 {
    #![allow(missing_docs, reason = "the names are the manual's")]
    pub const INTR: u32 = 1 << 0;
    pub const NMI: u32 = 1 << 1;
    pub const SMI: u32 = 1 << 2;
    pub const INIT: u32 = 1 << 3;
    pub const VINTR: u32 = 1 << 4;
    pub const RDPMC: u32 = 1 << 15;
    pub const CPUID: u32 = 1 << 18;
    pub const IRET: u32 = 1 << 20;
    pub const INVD: u32 = 1 << 22;
    pub const PAUSE: u32 = 1 << 23;
    pub const HLT: u32 = 1 << 24;
    pub const INVLPGA: u32 = 1 << 26;
    pub const IOIO: u32 = 1 << 27;
    pub const MSR: u32 = 1 << 28;
    pub const TASK_SWITCH: u32 = 1 << 29;
    pub const FERR_FREEZE: u32 = 1 << 30;
    pub const SHUTDOWN: u32 = 1 << 31;
}

/// Bits of the word at offset 0x10.
pub mod misc2 {
    #![allow(missing_docs, reason = "the names are the manual's")]
    pub const VMRUN: u32 = 1 << 0;
    pub const VMMCALL: u32 = 1 << 1;
    pub const VMLOAD: u32 = 1 << 2;
    pub const VMSAVE: u32 = 1 << 3;
    pub const STGI: u32 = 1 << 4;
    pub const CLGI: u32 = 1 << 5;
    pub const SKINIT: u32 = 1 << 6;
    pub const WBINVD: u32 = 1 << 9;
    pub const MONITOR: u32 = 1 << 10;
    pub const MWAIT: u32 = 1 << 11;
    pub const MWAIT_ARMED: u32 = 1 << 12;
    pub const XSETBV: u32 = 1 << 13;
    pub const RDPRU: u32 = 1 << 14;
}

/// Bits of the word at offset 0x14.
pub mod misc3 {
    #![allow(missing_docs, reason = "the names are the manual's")]
    pub const INVLPGB: u32 = 1 << 0;
    pub const INVLPGB_ILLEGAL: u32 = 1 << 1;
    pub const MCOMMIT: u32 = 1 << 3;
    pub const TLBSYNC: u32 = 1 << 4;
}

/// Interrupts and instructions that a guest always exits on. Task switches are not among them: the
/// processor performs them on the guest's own tables, and no state of the hypervisor depends on
/// which task runs.
pub const ALWAYS: [u32; 3] = [
    misc1::INTR
        | misc1::NMI
        | misc1::SMI
        | misc1::INIT
        | misc1::RDPMC
        | misc1::CPUID
        | misc1::INVD
        | misc1::HLT
        | misc1::INVLPGA
        | misc1::IOIO
        | misc1::MSR
        | misc1::FERR_FREEZE
        | misc1::SHUTDOWN,
    misc2::VMRUN
        | misc2::VMMCALL
        | misc2::VMLOAD
        | misc2::VMSAVE
        | misc2::STGI
        | misc2::CLGI
        | misc2::SKINIT
        | misc2::WBINVD
        | misc2::MONITOR
        | misc2::MWAIT
        | misc2::MWAIT_ARMED
        | misc2::XSETBV
        | misc2::RDPRU,
    misc3::INVLPGB | misc3::INVLPGB_ILLEGAL | misc3::MCOMMIT | misc3::TLBSYNC,
];

/// Exceptions that a guest always exits on, as on every processor.
pub const EXCEPTIONS: u32 = event::INTERCEPTED;

/// Accesses to debug registers while DR0 to DR3 are not in the processor: reads of those four in
/// the lower half, writes in the upper one; and writes of DR7, which may enable them. With CR4.DE =
/// 0 DR5 is another name of DR7 (section 13.1.1), and an intercept depends on the name in the
/// instruction.
pub const DEBUG: u32 = 0x000f | (0x000f | 1 << 5 | 1 << 7) << 16;

/// Exceptions besides #AC that an IRET can raise while it is [stepped over](super::step): #UD, #TS,
/// #NP, #SS, #GP, #PF.
pub const IRET_EXCEPTIONS: u32 = 1 << 6 | 1 << 10 | 1 << 11 | 1 << 12 | 1 << 13 | 1 << 14;

/// Moves to CR4, always.
pub const CR_WRITE_4: u32 = 1 << (16 + 4);
/// Moves to CR8, while its value decides whether an interrupt can be delivered.
pub const CR_WRITE_8: u32 = 1 << (16 + 8);

/// Everything that is ever intercepted: control registers, debug registers, exceptions, and the
/// three words above.
pub const EVER: [u32; 6] = [
    CR_WRITE_4 | CR_WRITE_8,
    DEBUG,
    EXCEPTIONS | IRET_EXCEPTIONS,
    ALWAYS[0] | misc1::VINTR | misc1::IRET | misc1::PAUSE,
    ALWAYS[1],
    ALWAYS[2],
];

/// Pages of the map of ports, one bit each, all of which cause exits (section 15.10.1).
const PORT_MAP_PAGES: usize = 3;
/// Pages of the map of MSRs: two bits each for three ranges of 8192 MSRs (section 15.11).
pub(super) const MSR_MAP_PAGES: usize = 2;
/// A register's bits in that map.
const READ: u8 = 1 << 0;
const WRITE: u8 = 1 << 1;

/// Where that map has an MSR's two bits: the byte, and the bit of reads in it.
pub(super) const fn map_place(number: u32) -> Option<(usize, u32)> {
    let range = match number >> 13 {
        0 => 0,
        0x6_0000 => 1,
        0x6_0008 => 2,
        _ => return None,
    };
    let index = number & 0x1fff;
    Some((range * 0x800 + index as usize / 4, index % 4 * 2))
}

/// The bits of an MSR that passes, in that map.
pub(super) const fn passing(is_checked: bool) -> u8 {
    if is_checked { READ } else { READ | WRITE }
}

pub(super) fn permission_maps<A: X86>() -> [Pages; 2] {
    [Pages::filled(PORT_MAP_PAGES, |map| map.fill(0xff)), Pages::filled(MSR_MAP_PAGES, fill_msr_map::<A>)]
}

/// Fills in a map of zeros: exits for all MSRs except those that [pass](msr::passing).
pub(super) fn fill_msr_map<A: X86>(map: &mut [u8]) {
    map.fill(0xff);
    for (number, is_checked) in msr::passing::<A>() {
        if let Some((byte, bit)) = map_place(number) {
            map[byte] &= !(passing(is_checked) << bit);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::svm::tests::processor::MockSvm;
    use alloc::vec::Vec;
    use core::sync::atomic::Ordering;

    /// Every way to a breakpoint that could be hit with another vCPU's addresses.
    #[test]
    fn u12_no_name_of_a_debug_register_passes_the_lazy_ones() {
        let (reads, writes) = (DEBUG & 0xffff, DEBUG >> 16);
        for register in 0..4 {
            assert!(reads & writes & 1 << register != 0, "DR{register}");
        }
        for name in [5, 7] {
            assert!(writes & 1 << name != 0, "DR7 by the name of DR{name}");
        }
        // DR6 by either name, and reads of DR7: the VMCB has them.
        assert_eq!((reads & 0xf0, writes & (1 << 4 | 1 << 6)), (0, 0));
    }

    #[test]
    fn u3_exceptions_that_deliver_themselves_are_intercepted() {
        for (vector, name) in [(1, "#DB"), (17, "#AC")] {
            assert!(EXCEPTIONS & 1 << vector != 0, "{name}");
        }
        // Exceptions that guests raise all the time, and whose delivery does not raise them again
        // endlessly: that leads to a double fault and a shutdown.
        assert_eq!(EXCEPTIONS & (1 << 13 | 1 << 14 | 1 << 3), 0);
    }

    /// APM volume 2, 15.10.1 and 15.11: a bit for each port, and two for each MSR, reads first.
    #[test]
    fn all_ports_exit_and_all_msrs_but_those_that_pass() {
        let [ports, msrs] = permission_maps::<MockSvm>().map(|pages| {
            let words = pages.words().iter().map(|word| word.load(Ordering::Relaxed).to_le_bytes());
            words.flatten().collect::<Vec<u8>>()
        });
        assert_eq!(ports, [0xff; 3 * 4096]);
        let exits = |base: usize, index: usize| msrs[base + index / 4] >> (index % 4 * 2) & 3;
        let sysenter = [0x173, 0x174, 0x175, 0x176, 0x177].map(|number| exits(0, number));
        assert_eq!(sysenter, [3, 0, 0, 0, 3], "by MSRs 0 to 0x1fff");
        let syscall = [0x80, 0x81, 0x82, 0x83, 0x84].map(|number| exits(0x800, number));
        assert_eq!(syscall, [3, 0, 2, 2, 0], "EFER, STAR, and addresses, whose writes exit; by 0xc0000000");
        assert_eq!(msrs[0x1000..], [0xff; 0x1000], "none of 0xc0010000");
    }

    #[test]
    fn u22_task_switches_are_left_to_the_processor() {
        assert_eq!(ALWAYS[0] & misc1::TASK_SWITCH, 0);
    }

    /// Instructions that would otherwise affect the machine, or bypass the hypervisor.
    #[test]
    fn u22_what_must_never_run_in_the_guest_is_intercepted() {
        let first = misc1::INTR | misc1::NMI | misc1::INIT | misc1::SHUTDOWN | misc1::MSR | misc1::IOIO;
        assert_eq!(ALWAYS[0] & first, first);
        assert_eq!(ALWAYS[1] & 0x7f, 0x7f, "all of SVM's instructions");
    }
}
