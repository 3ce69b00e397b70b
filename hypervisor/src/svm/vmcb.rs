//! The virtual machine control block: layout and constants. APM volume 2, appendix B.
#![allow(missing_docs, reason = "the names are the manual's")]

use core::mem::offset_of;

use super::features::Features;
use crate::x86::vcpu::block::Segment;
use crate::x86::vcpu::state::Permissions;

/// Number of consecutive PAUSEs that make the processor exit, where it counts them; and the maximum
/// distance between them.
const PAUSE_COUNT: u16 = 3000;
const PAUSE_THRESHOLD: u16 = 128;

/// The control block.
#[cfg_attr(test, derive(Debug))]
#[repr(C, align(4096))]
pub struct Vmcb {
    // Control area.
    pub intercept_cr: u32,
    pub intercept_dr: u32,
    pub intercept_exceptions: u32,
    pub intercept_misc1: u32,
    pub intercept_misc2: u32,
    pub intercept_misc3: u32,
    reserved_18: [u8; 0x24],
    pub pause_filter_threshold: u16,
    pub pause_filter_count: u16,
    pub iopm_base: u64,
    pub msrpm_base: u64,
    pub tsc_offset: u64,
    pub asid: u32,
    pub tlb_control: u8,
    reserved_5d: [u8; 3],
    pub interrupt_control: u64,
    pub interrupt_shadow: u64,
    pub exit_code: u64,
    pub exit_info_1: u64,
    pub exit_info_2: u64,
    pub exit_interrupt_info: u64,
    pub nested_control: u64,
    reserved_98: [u8; 0x10],
    pub event_injection: u64,
    pub nested_cr3: u64,
    pub virtualization_control: u64,
    pub clean_bits: u32,
    reserved_c4: [u8; 4],
    pub next_rip: u64,
    pub fetched_count: u8,
    pub fetched_bytes: [u8; 15],
    reserved_e0: [u8; 0x300],
    // Reserved for the hypervisor: if a guest of the guest has nested tables of the guest's, the
    // CR0, root, CR4 and EFER by which they are walked. CR0 is 0 without.
    pub inner: [u64; 4],
    // State save area, at 0x400.
    pub es: Segment,
    pub cs: Segment,
    pub ss: Segment,
    pub ds: Segment,
    pub fs: Segment,
    pub gs: Segment,
    pub gdtr: Segment,
    pub ldtr: Segment,
    pub idtr: Segment,
    pub tr: Segment,
    reserved_4a0: [u8; 0x2b],
    pub cpl: u8,
    reserved_4cc: [u8; 4],
    pub efer: u64,
    reserved_4d8: [u8; 0x70],
    pub cr4: u64,
    pub cr3: u64,
    pub cr0: u64,
    pub dr7: u64,
    pub dr6: u64,
    pub rflags: u64,
    pub rip: u64,
    reserved_580: [u8; 0x58],
    pub rsp: u64,
    reserved_5e0: [u8; 0x18],
    pub rax: u64,
    pub star: u64,
    pub lstar: u64,
    pub cstar: u64,
    pub sfmask: u64,
    pub kernel_gs_base: u64,
    pub sysenter_cs: u64,
    pub sysenter_esp: u64,
    pub sysenter_eip: u64,
    pub cr2: u64,
    reserved_648: [u8; 0x20],
    pub pat: u64,
    pub debug_ctl: u64,
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
    assert!(offset_of!(Vmcb, inner) == 0x3e0);
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
    pub(super) fn set_up(&mut self, permissions: &Permissions, features: Features) {
        self.iopm_base = permissions.io;
        self.msrpm_base = permissions.msr;
        // Each entry sets its own. This one is for a test that leaves that out: 0 is the host's.
        self.asid = 1;
        self.nested_control = 1;
        self.nested_cr3 = permissions.nested_root;
        if features.pause_filter() {
            self.pause_filter_count = PAUSE_COUNT;
            self.pause_filter_threshold = PAUSE_THRESHOLD;
        }
    }

    /// Its bytes.
    pub(super) fn bytes(&self) -> &[u8; 4096] {
        // SAFETY: all fields are integers without gaps, and any bytes are one.
        unsafe { &*core::ptr::from_ref(self).cast() }
    }

    /// The same, to change them.
    pub(super) fn bytes_mut(&mut self) -> &mut [u8; 4096] {
        // SAFETY: as above.
        unsafe { &mut *core::ptr::from_mut(self).cast() }
    }

    /// Clears clean bits: the processor reads that part of the block again at the next entry.
    pub fn mark_dirty(&mut self, bits: u32) {
        self.clean_bits &= !bits;
    }
}

/// EFER.SVME, which is the hypervisor's.
pub const EFER_SVME: u64 = 1 << 12;

/// Clean bits, offset 0xc0.
pub mod clean {
    pub const INTERCEPTS: u32 = 1 << 0;
    pub const TPR: u32 = 1 << 3;
    pub const NESTED: u32 = 1 << 4;
    pub const CRX: u32 = 1 << 5;
    pub const DRX: u32 = 1 << 6;
    pub const TABLES: u32 = 1 << 7;
    pub const SEGMENTS: u32 = 1 << 8;
    pub const CR2: u32 = 1 << 9;
    pub const ALL: u32 = 0xfff;
}

/// Bits of `interrupt_control`.
pub mod vintr {
    pub const TPR_MASK: u64 = 0xf;
    pub const IRQ: u64 = 1 << 8;
    pub const PRIORITY_SHIFT: u32 = 16;
    pub const IGNORE_TPR: u64 = 1 << 20;
    pub const MASKING: u64 = 1 << 24;
    /// Position of the vector.
    pub const VECTOR_SHIFT: u32 = 32;
}
