//! From the copies to the VMCS before an entry, and back after an exit.

use super::controls::{DELIVERY, Word};
use super::copies::{Copied, FIELDS, READ_AT_HALTS, READ_AT_ONCE};
use super::fields::{self as f, Encoding, Width, Write};
use super::intercepts::APIC_MAP;
use super::soft_state::Register;
use super::table::{ENTRY_FAILURE, EXCEPTION, INTERRUPT};
use super::vmcs::{APIC_MODE, NEW_LIST, POINTERS, THRESHOLD, Vmcs};
use crate::x86::vcpu::event;
use crate::x86::vectors::POSTED;
use crate::x86::{CR0_PG, CR4_PAE, DR6_BREAKPOINTS, EFER_LMA};

/// Bits of interruption information that an entry takes.
pub(super) const DELIVERABLE: u64 = 0x8000_0fff;

/// What the processor has at an exit: a CPU's own.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct HostState {
    /// CR0.
    pub cr0: u64,
    /// CR3.
    pub cr3: u64,
    /// CR4.
    pub cr4: u64,
    /// Code segment.
    pub code: u16,
    /// Stack and data segments.
    pub data: u16,
    /// Task register, and its base.
    pub task: (u16, u64),
    /// Base of the GDT.
    pub gdt: u64,
    /// Base of the IDT.
    pub idt: u64,
    /// PAT.
    pub pat: u64,
    /// EFER.
    pub efer: u64,
    /// Where the exit goes on.
    pub rip: u64,
}

/// PAUSE-loop exiting: the largest distance of two PAUSEs of a loop, and how long a loop lasts
/// before it exits, in ticks of the TSC.
const PAUSE_GAP: u32 = 128;
const PAUSE_WINDOW: u32 = 4096;

/// The index of the entry that is written first: a list has 512.
const LAST_OF_LIST: u64 = 511;

impl Vmcs {
    /// Fills in what no entry changes, after the first VMPTRLD on this CPU.
    #[inline(never)]
    pub fn begin(&mut self, host: &HostState, mut vmwrite: impl FnMut(u32, u64)) {
        fn set<W: Width>(
            vmwrite: &mut impl FnMut(u32, u64),
            field: Encoding<W, Write>,
            value: impl Into<W::Value>,
        ) {
            vmwrite(field.writable(), value.into().into());
        }
        let w = &mut vmwrite;
        #[cfg(any(test, feature = "audit"))]
        {
            self.host = *host;
        }
        let HostState { cr0, cr3, cr4, code, data, task, gdt, idt, pat, efer, rip } = *host;
        set(w, f::HOST_CR0, cr0);
        set(w, f::HOST_CR3, cr3);
        set(w, f::HOST_CR4, cr4);
        set(w, f::HOST_CS, code);
        set(w, f::HOST_SS, data);
        set(w, f::HOST_DS, data);
        set(w, f::HOST_ES, data);
        set(w, f::HOST_FS, 0u16);
        set(w, f::HOST_GS, 0u16);
        set(w, f::HOST_TR, task.0);
        set(w, f::HOST_TR_BASE, task.1);
        set(w, f::HOST_FS_BASE, 0u64);
        set(w, f::HOST_GS_BASE, 0u64);
        set(w, f::HOST_GDTR_BASE, gdt);
        set(w, f::HOST_IDTR_BASE, idt);
        set(w, f::HOST_SYSENTER_CS, 0u32);
        set(w, f::HOST_SYSENTER_ESP, 0u64);
        set(w, f::HOST_SYSENTER_EIP, 0u64);
        set(w, f::HOST_PAT, pat);
        set(w, f::HOST_EFER, efer);
        set(w, f::HOST_RIP, rip);
        if self.is_new {
            self.is_new = false;
            let [io, msr] = self.maps;
            let [[_, cr0], [_, cr4]] = self.masks;
            set(w, f::IO_BITMAP_A, io);
            set(w, f::IO_BITMAP_B, io + 0x1000);
            set(w, f::MSR_BITMAPS, msr);
            set(w, f::VIRTUAL_APIC, self.apic.address());
            set(w, f::LINK_POINTER, u64::MAX);
            set(w, f::GUEST_DEBUGCTL, 0u64);
            set(w, f::PIN_CONTROLS, self.controls.word(Word::Pin));
            set(w, f::EXIT_CONTROLS, self.controls.word(Word::Exit));
            set(w, f::EXCEPTIONS, event::INTERCEPTED);
            set(w, f::PAGE_FAULT_MASK, 0u32);
            set(w, f::PAGE_FAULT_MATCH, 0u32);
            set(w, f::CR3_TARGETS, 0u32);
            set(w, f::EXIT_MSR_STORES, 0u32);
            set(w, f::EXIT_MSR_LOADS, 0u32);
            set(w, f::ENTRY_MSR_LOADS, 0u32);
            set(w, f::ENTRY_EVENT, 0u32);
            set(w, f::TPR_THRESHOLD, 0u32);
            set(w, f::CR0_MASK, cr0);
            set(w, f::CR4_MASK, cr4);
            if self.controls.posted {
                set(w, f::POSTED_VECTOR, u16::from(POSTED));
                set(w, f::POSTED, self.apic.posted);
            }
            if let Some(list) = &self.list {
                set(w, f::LIST, list.start());
            }
            if self.controls.pause_loop {
                set(w, f::PAUSE_GAP, PAUSE_GAP);
                set(w, f::PAUSE_WINDOW, PAUSE_WINDOW);
            }
        }
    }

    /// Writes what has changed since the last entry.
    #[inline(always)]
    pub fn write_changes(&mut self, mut vmwrite: impl FnMut(u32, u64)) {
        let delivered = self.delivered();
        if delivered & event::VALID != 0 {
            self.write_event(delivered, &mut vmwrite);
        }
        let mut dirty = core::mem::take(&mut self.dirty);
        while dirty != 0 {
            let place = dirty.trailing_zeros() as usize;
            vmwrite(FIELDS[place], self.copies[place]);
            dirty &= dirty - 1;
        }
        if self.dirty_words != 0 {
            self.write_controls(&mut vmwrite);
        }
    }

    #[inline(always)]
    fn write_event(&mut self, event: u64, vmwrite: &mut impl FnMut(u32, u64)) {
        vmwrite(f::ENTRY_EVENT.writable(), event & DELIVERABLE);
        if event & (event::TYPE_MASK | event::ERROR_VALID) != event::TYPE_INTERRUPT {
            self.write_details(event, vmwrite);
        }
    }

    /// Breakpoints that pend are part of a #DB that is delivered.
    #[inline(never)]
    fn write_details(&mut self, event: u64, vmwrite: &mut impl FnMut(u32, u64)) {
        if event & 0xffff_ffff == event::exception(event::VECTOR_DB) {
            let breakpoints = self.pending_debug() & DR6_BREAKPOINTS;
            self.soft.write(Register::Dr6, self.soft.read(Register::Dr6) | breakpoints);
        }
        if event & event::ERROR_VALID != 0 {
            vmwrite(f::ENTRY_ERROR_CODE.writable(), event >> 32);
        }
    }

    #[inline(never)]
    fn write_controls(&mut self, vmwrite: &mut impl FnMut(u32, u64)) {
        let dirty = core::mem::take(&mut self.dirty_words);
        if dirty & POINTERS != 0 {
            f::POINTERS
                .into_iter()
                .zip(self.pointers)
                .for_each(|(field, entry)| vmwrite(field.writable(), entry));
        }
        if dirty & NEW_LIST != 0 && self.list.is_some() {
            vmwrite(f::LIST_INDEX.writable(), LAST_OF_LIST);
        }
        if dirty & APIC_MODE != 0 && self.controls.apic {
            let ([_, map], is_processors) = (self.maps, self.controls.has(Word::Secondary, DELIVERY));
            vmwrite(f::MSR_BITMAPS.writable(), map + if is_processors { APIC_MAP } else { 0 });
            let fields = [f::EOI_EXITS_0, f::EOI_EXITS_1, f::EOI_EXITS_2, f::EOI_EXITS_3];
            for (index, field) in fields.into_iter().enumerate() {
                vmwrite(field.writable(), self.apic.exits.word(index));
            }
        }
        let mut write = |word, field: Encoding<f::Double, Write>| {
            if dirty >> word as u8 & 1 != 0 {
                vmwrite(field.writable(), self.controls.word(word).into());
            }
        };
        write(Word::Pin, f::PIN_CONTROLS);
        write(Word::Primary, f::PRIMARY_CONTROLS);
        write(Word::Secondary, f::SECONDARY_CONTROLS);
        write(Word::Entry, f::ENTRY_CONTROLS);
        if dirty & THRESHOLD != 0 {
            vmwrite(f::TPR_THRESHOLD.writable(), self.threshold.into());
        }
    }

    /// Reads all that the VMCS has of the guest, before the vCPU leaves its CPU and others look at
    /// it.
    #[cold]
    pub(super) fn read_all(&mut self) {
        for (place, (copy, field)) in self.copies.iter_mut().zip(FIELDS).enumerate() {
            if self.stale >> place & 1 != 0 {
                *copy = (self.vmread)(field);
            }
        }
        self.stale = 0;
        // The processor has loaded those itself, if the guest uses them.
        let is_pae = self.copy(Copied::Cr0) & CR0_PG != 0 && self.copy(Copied::Cr4) & CR4_PAE != 0;
        if is_pae && self.copy(Copied::Efer) & EFER_LMA == 0 && self.dirty_words & POINTERS == 0 {
            self.pointers = f::POINTERS.map(|field| (self.vmread)(field.raw()));
        }
    }

    /// Takes over what an exit says, and the registers that most exits need.
    #[inline(always)]
    pub fn take_exit(&mut self, vmread: impl Fn(u32) -> u64) {
        self.code = vmread(f::EXIT_REASON.raw()) & (ENTRY_FAILURE | 0xffff);
        self.stale = self.changed_by_exits;
        self.refresh(READ_AT_ONCE, &vmread);
        self.vectoring = 0;
        match self.code {
            INTERRUPT => {
                if self.controls.posted {
                    self.interruption = vmread(f::EXIT_INTERRUPTION.raw());
                }
            }
            // Windows for interrupts.
            7 | 8 => {}
            12 => {
                self.length = vmread(f::EXIT_LENGTH.raw());
                self.refresh(READ_AT_HALTS, &vmread);
            }
            // Other instructions that say it all by their registers.
            10 | 18 | 31 | 32 => self.length = vmread(f::EXIT_LENGTH.raw()),
            _ => self.describe_exit(&vmread),
        }
    }

    /// The machine's interrupt that the exit has taken, if it takes them: its handler has to run.
    #[inline(always)]
    pub(super) const fn take_acknowledged(&mut self) -> Option<u8> {
        if self.code != INTERRUPT || self.interruption & event::VALID == 0 {
            return None;
        }
        let vector = self.interruption as u8;
        self.interruption = 0;
        Some(vector)
    }

    /// Only exceptions, task switches, accesses to APIC or memory, and a full log of such, can come
    /// while an event is delivered: for all others there is no such information (28.2.4).
    #[inline(always)]
    fn describe_exit(&mut self, vmread: &impl Fn(u32) -> u64) {
        let event = |info: u32, code: u32| {
            let info = vmread(info);
            let wanted = event::VALID | event::ERROR_VALID;
            if info & wanted == wanted { info | vmread(code) << 32 } else { info }
        };
        self.qualification = vmread(f::QUALIFICATION.raw());
        self.length = vmread(f::EXIT_LENGTH.raw());
        if let 0 | 9 | 44 | 48 | 49 | 62 = self.code {
            self.vectoring = event(f::VECTORING.raw(), f::VECTORING_ERROR_CODE.raw());
            self.guest_physical = vmread(f::GUEST_PHYSICAL.raw());
        }
        if self.code == 0 {
            self.interruption = event(f::EXIT_INTERRUPTION.raw(), f::EXIT_ERROR_CODE.raw());
            self.code = EXCEPTION | self.interruption & 0xff;
        }
    }

    /// Reads these copies, which an exit has made older than the VMCS.
    #[inline(always)]
    fn refresh<const N: usize>(&mut self, places: [usize; N], vmread: &impl Fn(u32) -> u64) {
        for place in places {
            self.copies[place] = vmread(FIELDS[place]);
            self.stale &= !(1 << place);
        }
    }
}
