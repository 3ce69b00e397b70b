//! L1's control block for L2 (VMCB12): it is in L1's memory, where L1's other vCPUs may change it
//! at any time.
//!
//! VMRUN reads it once, whole (N1). What is checked is what is used.

use alloc::boxed::Box;
use core::ops::Range;
use memslots::{Gpa, GuestMemory};

use super::super::intercepts::misc2;
use super::super::vmcb::{EFER_SVME, Vmcb};
use crate::x86::vcpu::block::{ControlBlock, Segment};
use crate::x86::vcpu::event;
use crate::x86::vcpu::msr::is_valid_pat;
use crate::x86::{CR0_PE, CR0_PG, CR4_PAE, EFER_LMA, EFER_LME};

/// CR0: not write-through, cache disable.
const CR0_NW: u64 = 1 << 29;
const CR0_CD: u64 = 1 << 30;

/// Bytes of the maps of ports and of MSRs.
const PORT_MAP: u64 = 3 << 12;
const MSR_MAP: u64 = 2 << 12;

/// Nested paging is used.
const NP_ENABLE: u64 = 1 << 0;

/// The words at 3E0h: what L1 makes use of (HV_SVM_ENLIGHTENED_VMCB_FIELDS); and the clean bit that
/// covers them and the map of MSRs.
const DIRECT_FLUSH: u64 = 1 << 0;
const TELLS_MSR_MAP: u64 = 1 << 1;
const TELLS_TABLES: u64 = 1 << 2;
const CLEAN: u32 = 1 << 31;

/// G_PAT, which is L2's PAT under nested paging alone (section 15.25.4).
const PAT: Range<usize> = 0x668..0x670;

/// L2's state that VMRUN loads and an exit writes back (section 15.6, appendix B), besides RAX: ES
/// to DS, GDTR and IDTR, CPL and EFER, CR4 to RIP, RSP, CR2.
pub(super) const STATE: [Range<usize>; 8] = [
    0x400..0x440,
    0x460..0x470,
    0x480..0x490,
    0x4cb..0x4cc,
    0x4d0..0x4d8,
    0x548..0x580,
    0x5d8..0x5e0,
    0x640..0x648,
];

/// What else an exit writes back: V_TPR and V_IRQ; the interrupt shadow, the exit; EVENTINJ, whose
/// valid bit is cleared; the next RIP and the bytes that were fetched; RAX.
const REPORT: [Range<usize>; 4] = [0x60..0x90, 0xa8..0xb0, 0xc8..0xe0, 0x5f8..0x600];

/// What VMLOAD and VMSAVE move, and VMRUN does not (section 15.5.2): FS and GS, LDTR, TR; STAR to
/// SYSENTER_EIP.
pub(super) const HIDDEN: [Range<usize>; 4] = [0x440..0x460, 0x470..0x480, 0x490..0x4a0, 0x600..0x640];

/// What the checks depend on.
#[derive(Clone, Copy, Debug)]
pub(super) struct Limits {
    /// Bits of a physical address.
    pub(super) width: u32,
    /// L1 itself uses paging.
    pub(super) has_paging: bool,
    /// Bits of CR4 and EFER that the guest may set.
    pub(super) cr4: u64,
    pub(super) efer: u64,
}

/// A copy of VMCB12.
pub(super) struct Vmcb12(Box<Vmcb>);

impl Vmcb12 {
    pub(super) fn new() -> Self {
        Self(Vmcb::boxed())
    }

    /// What was read last.
    pub(super) fn get(&self) -> &Vmcb {
        &self.0
    }

    /// What the next [`write_back`](Self::write_back) writes.
    pub(super) fn get_mut(&mut self) -> &mut Vmcb {
        &mut self.0
    }

    /// Reads it. False if there is no memory.
    pub(super) fn read(&mut self, memory: &GuestMemory<'_>, at: Gpa) -> bool {
        memory.read(at, self.0.bytes_mut()).is_ok()
    }

    /// Writes what an exit changes. False if that is not possible: it is not memory any more.
    pub(super) fn write_back(&self, memory: &GuestMemory<'_>, at: Gpa) -> bool {
        write(memory, at, &self.0, &REPORT)
            && write(memory, at, &self.0, &STATE)
            && (!self.has_tables() || write(memory, at, &self.0, &[PAT]))
    }

    /// Whether L1 uses nested paging.
    pub(super) fn has_tables(&self) -> bool {
        self.0.nested_control & NP_ENABLE != 0
    }

    const fn controls(&self) -> u64 {
        let [controls, ..] = self.0.inner;
        controls
    }

    /// Whether L1 says by hypercall what it changes in its nested tables.
    pub(super) fn tells_tables(&self) -> bool {
        self.controls() & TELLS_TABLES != 0
    }

    /// Whether L1 says that it has not changed the map of MSRs since it last ran this block.
    pub(super) fn keeps_msr_map(&self) -> bool {
        self.controls() & TELLS_MSR_MAP != 0 && self.0.clean_bits & CLEAN != 0
    }

    /// L1's page for all of its guest, if it leaves the guest's flushes to us.
    pub(super) fn assist_page(&self) -> Option<Gpa> {
        let [_, _, page, _] = self.0.inner;
        (self.controls() & DIRECT_FLUSH != 0 && page != 0).then_some(Gpa(page & !0xfff))
    }

    /// Whether VMRUN takes it (section 15.5.1). What is missing here, the processor checks itself
    /// at the entry into L2.
    pub(super) fn is_consistent(&self, limits: Limits) -> bool {
        let b = &*self.0;
        let addressable = 1 << limits.width;
        let has = |word: u64, bits: u64| word & bits == bits;
        let long = has(b.efer, EFER_LME) && has(b.cr0, CR0_PG);
        let paging_ok = !long || has(b.cr4, CR4_PAE) && has(b.cr0, CR0_PE);
        let code = b.cs.attributes & (Segment::LONG | Segment::DEFAULT_32);
        let code_ok = !long || code != Segment::LONG | Segment::DEFAULT_32;
        let map_ok = |base: u64, bytes: u64| (base & !0xfff).saturating_add(bytes) <= addressable;
        has(b.efer, EFER_SVME)
            && b.efer & !(limits.efer | EFER_LMA | EFER_SVME) == 0
            && (b.cr0 & CR0_NW == 0 || has(b.cr0, CR0_CD))
            && b.cr0 >> 32 == 0
            && (!long || b.cr3 < addressable)
            && b.cr4 & !limits.cr4 == 0
            && b.dr6 >> 32 == 0
            && b.dr7 >> 32 == 0
            && paging_ok
            && code_ok
            && b.intercept_misc2 & misc2::VMRUN != 0
            && map_ok(b.iopm_base, PORT_MAP)
            && map_ok(b.msrpm_base, MSR_MAP)
            && is_injectable(b.event_injection)
            && b.asid != 0
            && (!self.has_tables() || limits.has_paging && b.nested_cr3 < addressable && is_valid_pat(b.pat))
    }
}

/// Whether an entry takes this event (section 15.20).
const fn is_injectable(event: u64) -> bool {
    let vector = event & 0xff;
    event & event::VALID == 0
        || match event & event::TYPE_MASK {
            event::TYPE_INTERRUPT | event::TYPE_NMI | event::TYPE_SOFTWARE => true,
            event::TYPE_EXCEPTION => vector != 2 && vector < 32,
            _ => false,
        }
}

/// Writes parts of a block to L1's memory. False if it is not memory.
pub(super) fn write(memory: &GuestMemory<'_>, at: Gpa, block: &Vmcb, parts: &[Range<usize>]) -> bool {
    let bytes = block.bytes();
    parts.iter().all(|part| memory.write(Gpa(at.0 + part.start as u64), &bytes[part.clone()]).is_ok())
}

/// Copies parts of a block.
pub(super) fn copy(from: &Vmcb, to: &mut Vmcb, parts: &[Range<usize>]) {
    let (from, to) = (from.bytes(), to.bytes_mut());
    parts.iter().for_each(|part| to[part.clone()].copy_from_slice(&from[part.clone()]));
}
