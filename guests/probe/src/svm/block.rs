//! The virtual machine control block, by offsets: APM volume 2, appendix B.

use core::sync::atomic::Ordering;

use crate::paging::Page;

pub(super) const INTERCEPT_CR: u64 = 0x00;
pub(super) const INTERCEPT_MISC: u64 = 0x0c;
pub(super) const IO_MAP: u64 = 0x40;
pub(super) const MSR_MAP: u64 = 0x48;
pub(super) const TSC_OFFSET: u64 = 0x50;
pub(super) const ASID: u64 = 0x58;
pub(super) const TLB_CONTROL: u64 = 0x5c;
pub(super) const INT_CTL: u64 = 0x60;
pub(super) const SHADOW: u64 = 0x68;
pub(super) const EXIT_CODE: u64 = 0x70;
pub(super) const INFO_1: u64 = 0x78;
pub(super) const INFO_2: u64 = 0x80;
pub(super) const EXIT_EVENT: u64 = 0x88;
pub(super) const NESTED: u64 = 0x90;
pub(super) const EVENT: u64 = 0xa8;
pub(super) const NESTED_CR3: u64 = 0xb0;
pub(super) const CLEAN: u64 = 0xc0;
pub(super) const NEXT_RIP: u64 = 0xc8;

pub(super) const ES: u64 = 0x400;
pub(super) const CS: u64 = 0x410;
pub(super) const SS: u64 = 0x420;
pub(super) const DS: u64 = 0x430;
pub(super) const FS: u64 = 0x440;
pub(super) const GS: u64 = 0x450;
pub(super) const GDTR: u64 = 0x460;
pub(super) const LDTR: u64 = 0x470;
pub(super) const IDTR: u64 = 0x480;
pub(super) const TR: u64 = 0x490;
pub(super) const CPL: u64 = 0x4cb;
pub(super) const EFER: u64 = 0x4d0;
pub(super) const CR4: u64 = 0x548;
pub(super) const CR3: u64 = 0x550;
pub(super) const CR0: u64 = 0x558;
pub(super) const DR7: u64 = 0x560;
pub(super) const DR6: u64 = 0x568;
pub(super) const RFLAGS: u64 = 0x570;
pub(super) const RIP: u64 = 0x578;
pub(super) const RSP: u64 = 0x5d8;
pub(super) const RAX: u64 = 0x5f8;
pub(super) const STAR: u64 = 0x600;
pub(super) const LSTAR: u64 = 0x608;
pub(super) const CSTAR: u64 = 0x610;
pub(super) const SFMASK: u64 = 0x618;
pub(super) const KERNEL_GS_BASE: u64 = 0x620;
pub(super) const SYSENTER_CS: u64 = 0x628;
pub(super) const SYSENTER_ESP: u64 = 0x630;
pub(super) const SYSENTER_EIP: u64 = 0x638;
pub(super) const CR2: u64 = 0x640;
pub(super) const PAT: u64 = 0x668;

/// Exit codes: each is also the number of its bit in the words of intercepts.
pub(super) mod exit {
    pub(crate) const EXCEPTION: u32 = 0x40;
    pub(crate) const INTR: u32 = 0x60;
    pub(crate) const NMI: u32 = 0x61;
    pub(crate) const INIT: u32 = 0x63;
    pub(crate) const VINTR: u32 = 0x64;
    pub(crate) const IDTR_READ: u32 = 0x66;
    pub(crate) const RDTSC: u32 = 0x6e;
    pub(crate) const PUSHF: u32 = 0x70;
    pub(crate) const CPUID: u32 = 0x72;
    pub(crate) const IRET: u32 = 0x74;
    pub(crate) const PAUSE: u32 = 0x77;
    pub(crate) const HLT: u32 = 0x78;
    pub(crate) const IO: u32 = 0x7b;
    pub(crate) const MSR: u32 = 0x7c;
    pub(crate) const SHUTDOWN: u32 = 0x7f;
    pub(crate) const VMRUN: u32 = 0x80;
    pub(crate) const VMMCALL: u32 = 0x81;
    pub(crate) const NESTED_FAULT: u32 = 0x400;
    pub(crate) const INVALID: u32 = 0xffff_ffff;
}

/// A control block.
#[derive(Clone, Copy)]
pub(super) struct Block(pub(super) &'static Page);

impl Block {
    pub(super) fn get(self, offset: u64) -> u64 {
        self.0.words()[offset as usize / 8].load(Ordering::Relaxed)
    }

    pub(super) fn set(self, offset: u64, value: u64) {
        self.0.words()[offset as usize / 8].store(value, Ordering::Relaxed);
    }

    /// The lowest `bits` bits at an offset, which no other word has a part of.
    pub(super) fn field(self, offset: u64, bits: u32) -> u64 {
        self.get(offset) >> (offset % 8 * 8) & (u64::MAX >> (64 - bits))
    }

    pub(super) fn set_field(self, offset: u64, bits: u32, value: u64) {
        let (shift, mask) = (offset % 8 * 8, u64::MAX >> (64 - bits));
        self.set(offset, self.get(offset) & !(mask << shift) | (value & mask) << shift);
    }

    /// Requests the exit with this code: of a control register's, a debug register's, an
    /// exception's, or another's intercept.
    pub(super) fn intercept(self, code: u32) {
        let (word, bit) = (INTERCEPT_CR + u64::from(code / 32) * 4, code % 32);
        self.set_field(word, 32, self.field(word, 32) | 1 << bit);
    }

    /// No longer requests it.
    pub(super) fn pass(self, code: u32) {
        let (word, bit) = (INTERCEPT_CR + u64::from(code / 32) * 4, code % 32);
        self.set_field(word, 32, self.field(word, 32) & !(1 << bit));
    }

    pub(super) fn set_segment(self, offset: u64, selector: u16, attributes: u16, limit: u32, base: u64) {
        self.set(offset, u64::from(limit) << 32 | u64::from(attributes) << 16 | u64::from(selector));
        self.set(offset + 8, base);
    }

    /// Bits 31:0; QEMU leaves out the others.
    pub(super) fn exit_code(self) -> u32 {
        self.get(EXIT_CODE) as u32
    }
}
