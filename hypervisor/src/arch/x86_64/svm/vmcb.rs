//! The virtual machine control block: layout and constants. APM volume 2, appendix B; exit codes: appendix C.

use core::mem::offset_of;

use stay::amd64::TranslationControls;

use crate::amd64::checks::Conditions;
pub(crate) use crate::amd64::event;
pub(crate) use crate::amd64::intercepts::misc1;
pub(crate) use crate::amd64::{CR0_PE, EFER_LMA, RFLAGS_RF};

/// A segment register as the save area holds it.
#[derive(Clone, Copy, Debug, Default)]
#[repr(C)]
pub(crate) struct Segment {
    /// Selector.
    pub(crate) selector: u16,
    /// Descriptor bits 55:52 and 47:40, packed into 12 bits.
    pub(crate) attributes: u16,
    /// Limit in bytes.
    pub(crate) limit: u32,
    /// Base address.
    pub(crate) base: u64,
}

impl Segment {
    /// The L bit of a code segment, in packed attributes.
    pub(crate) const LONG: u16 = 1 << 9;
    /// The D/B bit, in packed attributes.
    pub(crate) const DEFAULT_32: u16 = 1 << 10;
}

/// The control block.
#[repr(C, align(4096))]
pub(crate) struct Vmcb {
    // Control area.
    pub(crate) intercept_cr: u32,
    pub(crate) intercept_dr: u32,
    pub(crate) intercept_exceptions: u32,
    pub(crate) intercept_misc1: u32,
    pub(crate) intercept_misc2: u32,
    pub(crate) intercept_misc3: u32,
    reserved_18: [u8; 0x24],
    pub(crate) pause_filter_threshold: u16,
    pub(crate) pause_filter_count: u16,
    pub(crate) iopm_base: u64,
    pub(crate) msrpm_base: u64,
    pub(crate) tsc_offset: u64,
    pub(crate) asid: u32,
    pub(crate) tlb_control: u8,
    reserved_5d: [u8; 3],
    pub(crate) interrupt_control: u64,
    pub(crate) interrupt_shadow: u64,
    pub(crate) exit_code: u64,
    pub(crate) exit_info_1: u64,
    pub(crate) exit_info_2: u64,
    pub(crate) exit_interrupt_info: u64,
    pub(crate) nested_control: u64,
    reserved_98: [u8; 0x10],
    pub(crate) event_injection: u64,
    pub(crate) nested_cr3: u64,
    pub(crate) virtualization_control: u64,
    pub(crate) clean_bits: u32,
    reserved_c4: [u8; 4],
    pub(crate) next_rip: u64,
    pub(crate) fetched_count: u8,
    pub(crate) fetched_bytes: [u8; 15],
    reserved_e0: [u8; 0x320],
    // State save area, at 0x400.
    pub(crate) es: Segment,
    pub(crate) cs: Segment,
    pub(crate) ss: Segment,
    pub(crate) ds: Segment,
    pub(crate) fs: Segment,
    pub(crate) gs: Segment,
    pub(crate) gdtr: Segment,
    pub(crate) ldtr: Segment,
    pub(crate) idtr: Segment,
    pub(crate) tr: Segment,
    reserved_4a0: [u8; 0x2b],
    pub(crate) cpl: u8,
    reserved_4cc: [u8; 4],
    pub(crate) efer: u64,
    reserved_4d8: [u8; 0x70],
    pub(crate) cr4: u64,
    pub(crate) cr3: u64,
    pub(crate) cr0: u64,
    pub(crate) dr7: u64,
    pub(crate) dr6: u64,
    pub(crate) rflags: u64,
    pub(crate) rip: u64,
    reserved_580: [u8; 0x58],
    pub(crate) rsp: u64,
    reserved_5e0: [u8; 0x18],
    pub(crate) rax: u64,
    pub(crate) star: u64,
    pub(crate) lstar: u64,
    pub(crate) cstar: u64,
    pub(crate) sfmask: u64,
    pub(crate) kernel_gs_base: u64,
    pub(crate) sysenter_cs: u64,
    pub(crate) sysenter_esp: u64,
    pub(crate) sysenter_eip: u64,
    pub(crate) cr2: u64,
    reserved_648: [u8; 0x20],
    pub(crate) pat: u64,
    pub(crate) debug_ctl: u64,
    reserved_678: [u8; 0x988],
}

const _: () = {
    assert!(size_of::<Vmcb>() == 4096);
    assert!(offset_of!(Vmcb, iopm_base) == 0x40);
    assert!(offset_of!(Vmcb, asid) == 0x58);
    assert!(offset_of!(Vmcb, exit_code) == 0x70);
    assert!(offset_of!(Vmcb, nested_control) == 0x90);
    assert!(offset_of!(Vmcb, event_injection) == 0xa8);
    assert!(offset_of!(Vmcb, clean_bits) == 0xc0);
    assert!(offset_of!(Vmcb, next_rip) == 0xc8);
    assert!(offset_of!(Vmcb, es) == 0x400);
    assert!(offset_of!(Vmcb, cpl) == 0x4cb);
    assert!(offset_of!(Vmcb, efer) == 0x4d0);
    assert!(offset_of!(Vmcb, cr4) == 0x548);
    assert!(offset_of!(Vmcb, rsp) == 0x5d8);
    assert!(offset_of!(Vmcb, rax) == 0x5f8);
    assert!(offset_of!(Vmcb, cr2) == 0x640);
    assert!(offset_of!(Vmcb, pat) == 0x668);
};

impl Vmcb {
    /// A block of zeros.
    pub(crate) fn boxed() -> alloc::boxed::Box<Self> {
        // SAFETY: all fields are integers, for which zero is a value.
        unsafe { alloc::boxed::Box::new_zeroed().assume_init() }
    }

    /// Drops clean bits: the processor reads that part of the block again at the next entry.
    pub(crate) fn mark_dirty(&mut self, bits: u32) {
        self.clean_bits &= !bits;
    }

    /// What the checks of an instruction depend on.
    pub(crate) fn conditions(&self) -> Conditions {
        Conditions { cpl: self.cpl, cr4: self.cr4, rflags: self.rflags }
    }

    /// Whether the guest runs 64-bit code.
    pub(crate) fn is_64bit(&self) -> bool {
        self.efer & EFER_LMA != 0 && self.cs.attributes & Segment::LONG != 0
    }

    /// What translations depend on.
    #[inline(always)]
    pub(crate) const fn translation_controls(&self) -> TranslationControls {
        TranslationControls { cr3: self.cr3, cr4: self.cr4, efer: self.efer, pat: self.pat }
    }
}

pub(crate) const EFER_SCE: u64 = 1;
pub(crate) const EFER_LME: u64 = 1 << 8;
pub(crate) const EFER_NXE: u64 = 1 << 11;
pub(crate) const EFER_SVME: u64 = 1 << 12;
pub(crate) const EFER_FFXSR: u64 = 1 << 14;
pub(crate) const CR4_PAE: u64 = 1 << 5;
pub(crate) const CR4_PCIDE: u64 = 1 << 17;
/// Bits of CR3 that are the address of the tables.
pub(crate) const CR0_PG: u64 = 1 << 31;
pub(crate) const RFLAGS_TF: u64 = 1 << 8;
pub(crate) const RFLAGS_IF: u64 = 1 << 9;

/// DR6: a breakpoint of DR0 to DR3 was hit; and single step.
pub(crate) const DR6_BREAKPOINTS: u64 = 0xf;
pub(crate) const DR6_SINGLE_STEP: u64 = 1 << 14;

/// Intercepts of control register writes: bit 16 + number.
pub(crate) const CR_WRITE_4: u32 = 1 << (16 + 4);

/// Clean bits, offset 0xc0.
pub(crate) mod clean {
    pub(crate) const INTERCEPTS: u32 = 1 << 0;
    pub(crate) const TPR: u32 = 1 << 3;
    pub(crate) const NESTED: u32 = 1 << 4;
    pub(crate) const CRX: u32 = 1 << 5;
    pub(crate) const ALL: u32 = 0xfff;
}

/// Bits of `interrupt_control`.
pub(crate) mod vintr {
    pub(crate) const TPR_MASK: u64 = 0xf;
    pub(crate) const IRQ: u64 = 1 << 8;
    pub(crate) const PRIORITY_SHIFT: u32 = 16;
    pub(crate) const IGNORE_TPR: u64 = 1 << 20;
    pub(crate) const MASKING: u64 = 1 << 24;
}

/// Exit codes.
pub(crate) mod exit {
    pub(crate) const CR_WRITE_0: u64 = 0x10;
    pub(crate) const CR_WRITE_15: u64 = 0x1f;
    pub(crate) const DR_READ_0: u64 = 0x20;
    pub(crate) const DR_WRITE_15: u64 = 0x3f;
    pub(crate) const EXCEPTION_0: u64 = 0x40;
    pub(crate) const EXCEPTION_DB: u64 = 0x41;
    pub(crate) const EXCEPTION_31: u64 = 0x5f;
    pub(crate) const EXCEPTION_MC: u64 = 0x52;
    pub(crate) const INTR: u64 = 0x60;
    pub(crate) const NMI: u64 = 0x61;
    pub(crate) const SMI: u64 = 0x62;
    pub(crate) const INIT: u64 = 0x63;
    pub(crate) const VINTR: u64 = 0x64;
    pub(crate) const RDPMC: u64 = 0x6f;
    pub(crate) const IRET: u64 = 0x74;
    pub(crate) const CPUID: u64 = 0x72;
    pub(crate) const INVD: u64 = 0x76;
    pub(crate) const PAUSE: u64 = 0x77;
    pub(crate) const HLT: u64 = 0x78;
    pub(crate) const INVLPGA: u64 = 0x7a;
    pub(crate) const IOIO: u64 = 0x7b;
    pub(crate) const MSR: u64 = 0x7c;
    pub(crate) const FERR_FREEZE: u64 = 0x7e;
    pub(crate) const SHUTDOWN: u64 = 0x7f;
    pub(crate) const VMRUN: u64 = 0x80;
    pub(crate) const VMMCALL: u64 = 0x81;
    pub(crate) const SKINIT: u64 = 0x86;
    pub(crate) const WBINVD: u64 = 0x89;
    pub(crate) const MONITOR: u64 = 0x8a;
    pub(crate) const MWAIT_ARMED: u64 = 0x8c;
    pub(crate) const XSETBV: u64 = 0x8d;
    pub(crate) const RDPRU: u64 = 0x8e;
    pub(crate) const INVLPGB: u64 = 0xa0;
    pub(crate) const TLBSYNC: u64 = 0xa4;
    pub(crate) const NESTED_FAULT: u64 = 0x400;
    /// VMRUN has refused the state. QEMU 7.2 writes the lower half of it.
    pub(crate) const INVALID: u64 = u64::MAX;
    pub(crate) const INVALID_LOW: u64 = 0xffff_ffff;
}
