//! The VMCS as a vCPU's [control block](ControlBlock).

use alloc::boxed::Box;
use coherence::asid::AsidSlot;
use migration::{Archive, Described, Flaw};
use stay::tagged::start_over;

use super::apic::ApicLocation;
use super::controls::{self, Word};
use super::copies::{self, BASE, Copied, FIELDS, LIMIT, RIGHTS, SELECTOR};
use super::soft_state::Register;
use super::vmcs::{BLOCKING_BY_NMI, BLOCKING_BY_STI, SHADOWS, TAKEN, Vmcs};
use crate::devices::pc::lapic::Lapic;
use crate::vm::defects::Defects;
use crate::x86::vcpu::block::{ControlBlock, Field, Inner, InterruptRequest, Offered, Segment, SegmentName};
use crate::x86::vcpu::event;
use crate::x86::vcpu::state::VcpuState;
use crate::x86::{CR0_PE, DR6_BREAKPOINTS, DR6_SINGLE_STEP, EFER_LMA};

/// A segment cannot be used (25.4.1).
const UNUSABLE: u32 = 1 << 16;
/// Present, in access rights and in attributes.
const PRESENT: u32 = 1 << 7;
/// Of the debug exceptions that pend: one of them is enabled (25.4.2).
const PENDING_ENABLED: u64 = 1 << 12;

/// The guest's CR0 and CR4: what they are, and what the guest reads where that differs.
const CR0: (Copied, Copied) = (Copied::Cr0, Copied::Cr0Shadow);
const CR4: (Copied, Copied) = (Copied::Cr4, Copied::Cr4Shadow);

/// Where a register is.
enum Place {
    Vmcs(Copied),
    Control((Copied, Copied)),
    Soft(Register),
}

#[inline(always)]
const fn place(field: Field) -> Place {
    match field {
        Field::Rip => Place::Vmcs(Copied::Rip),
        Field::Rsp => Place::Vmcs(Copied::Rsp),
        Field::Rflags => Place::Vmcs(Copied::Rflags),
        Field::Cr0 => Place::Control(CR0),
        Field::Cr3 => Place::Vmcs(Copied::Cr3),
        Field::Cr4 => Place::Control(CR4),
        Field::Dr7 => Place::Vmcs(Copied::Dr7),
        Field::Efer => Place::Vmcs(Copied::Efer),
        Field::Pat => Place::Vmcs(Copied::Pat),
        Field::TscOffset => Place::Vmcs(Copied::TscOffset),
        Field::SysenterCs => Place::Vmcs(Copied::SysenterCs),
        Field::SysenterEsp => Place::Vmcs(Copied::SysenterEsp),
        Field::SysenterEip => Place::Vmcs(Copied::SysenterEip),
        Field::Cr2 => Place::Soft(Register::Cr2),
        Field::Dr6 => Place::Soft(Register::Dr6),
        Field::Star => Place::Soft(Register::Star),
        Field::Lstar => Place::Soft(Register::Lstar),
        Field::Cstar => Place::Soft(Register::Cstar),
        Field::Sfmask => Place::Soft(Register::Sfmask),
        Field::KernelGs => Place::Soft(Register::KernelGs),
    }
}

impl Inner for AsidSlot {}

impl ControlBlock for Vmcs {
    /// The tag: VPID.
    type Own = AsidSlot;

    const EFER_OWN: u64 = 0;

    fn boxed() -> Box<Self> {
        Box::new(Self::new())
    }

    fn own(_: u32, _: bool) -> AsidSlot {
        AsidSlot::new()
    }

    #[inline(always)]
    fn read(&self, field: Field) -> u64 {
        match place(field) {
            Place::Vmcs(register) => self.copy(register),
            Place::Control(register) => self.control_register(register),
            Place::Soft(register) => self.soft.read(register),
        }
    }

    #[inline(always)]
    fn write(&mut self, field: Field, value: u64) {
        match place(field) {
            Place::Vmcs(register) => self.set_copy(register, value),
            Place::Control(register) => self.set_control_register(register, value),
            Place::Soft(register) => self.soft.write(register, value),
        }
        if let Field::Efer = field {
            // The processor keeps the two in step while the guest runs (25.8.1).
            self.controls.set(Word::Entry, controls::LONG_MODE, value & EFER_LMA != 0);
            self.dirty_words |= 1 << Word::Entry as u8;
        }
    }

    fn segment(&self, name: SegmentName) -> Segment {
        let part = |part| self.copy_at(copies::place(name, part));
        Segment {
            selector: part(SELECTOR) as u16,
            attributes: self.attributes(name),
            limit: part(LIMIT) as u32,
            base: part(BASE),
        }
    }

    #[inline(always)]
    fn attributes(&self, name: SegmentName) -> u16 {
        let rights = self.copy_at(copies::place(name, RIGHTS)) as u32;
        let rights = if rights & UNUSABLE != 0 { rights & !PRESENT } else { rights };
        (rights & 0xff | rights >> 4 & 0xf00) as u16
    }

    /// One that is not present cannot be used.
    fn set_segment(&mut self, name: SegmentName, segment: Segment) {
        let Segment { selector, attributes, limit, base } = segment;
        let attributes = u32::from(attributes);
        let rights = attributes & 0xff | (attributes & 0xf00) << 4;
        let rights = if rights & PRESENT == 0 { rights | UNUSABLE } else { rights };
        let parts = [selector.into(), rights.into(), limit.into(), base];
        for (part, value) in parts.into_iter().enumerate() {
            let place = copies::place(name, part);
            if FIELDS[place] != 0 {
                self.set_copy_at(place, value);
            }
        }
    }

    /// That of SS's descriptor.
    #[inline(always)]
    fn cpl(&self) -> u8 {
        (self.attributes(SegmentName::Ss) >> 5 & 3) as u8
    }

    #[inline(always)]
    fn event(&self) -> u64 {
        self.event
    }

    /// An NMI is delivered where none is blocked.
    #[inline(always)]
    fn set_event(&mut self, event: u64) {
        self.event = event;
        if event & (event::VALID | event::TYPE_MASK) == event::VALID | event::TYPE_NMI {
            self.set_interruptibility(self.interruptibility() & !BLOCKING_BY_NMI);
            self.set_nmi_window(false);
        }
    }

    /// What an instruction raises is raised again, because the instruction is executed again:
    /// INT n, INT1, INT3, INTO.
    #[inline(always)]
    fn cut_short(&self) -> u64 {
        if self.vectoring & event::TYPE_SOFTWARE != 0 { 0 } else { self.vectoring }
    }

    #[inline(always)]
    fn has_shadow(&self) -> bool {
        self.interruptibility() & SHADOWS != 0
    }

    #[inline(always)]
    fn has_debug_pending(&self) -> bool {
        self.pending_debug() & (PENDING_ENABLED | DR6_SINGLE_STEP) != 0
    }

    #[inline(always)]
    fn end_shadow(&mut self) {
        if self.has_shadow() {
            self.set_interruptibility(self.interruptibility() & !SHADOWS);
        }
    }

    #[inline(always)]
    fn is_quiet(&self, priority: u8) -> bool {
        let asks = self.control(Word::Primary, controls::INTERRUPT_WINDOW) || self.threshold != 0;
        !asks && self.is_settled(priority)
    }

    #[inline(always)]
    fn offer(&mut self, vector: u8) {
        self.offered = event::VALID | event::TYPE_INTERRUPT | u64::from(vector);
    }

    /// Interrupt-window exiting, and a threshold of the task priority: it matters when the guest
    /// lowers that.
    #[inline(always)]
    fn request(&mut self, request: InterruptRequest) {
        self.offered = 0;
        if let Some(vector) = request.offered {
            self.offer(vector);
        }
        self.apic.set_priority(request.priority);
        self.set_interrupt_window(request.window);
        self.set_threshold(if request.priority_exits { request.priority } else { 0 });
    }

    #[inline(always)]
    fn close_window(&mut self) {
        self.set_interrupt_window(false);
        self.set_nmi_window(false);
    }

    #[inline(always)]
    fn is_settled(&self, priority: u8) -> bool {
        self.offered == 0 && self.apic.priority() == priority
    }

    /// An entry delivers what it is given: if that was cut short, the exit says so. An entry that
    /// is called off delivers nothing.
    #[inline(always)]
    fn settle(&mut self) -> (u8, Offered) {
        let offered = match core::mem::take(&mut self.offered) {
            0 => Offered::Nothing,
            TAKEN => Offered::Taken,
            interrupt => Offered::Left(interrupt as u8),
        };
        (self.apic.priority(), offered)
    }

    fn set_priority(&mut self, priority: u8) {
        self.apic.set_priority(priority);
    }

    #[inline(always)]
    fn hand_over(&mut self, lapic: &mut Lapic) -> bool {
        match self.apic.location {
            ApicLocation::Never => false,
            ApicLocation::Page if !lapic.has_requests() => false,
            _ => self.keep(lapic),
        }
    }

    fn take_back(&mut self, lapic: &mut Lapic) {
        self.take_apic_back(lapic);
    }

    /// By loops where the processor finds them.
    #[inline]
    fn intercept_pause(&mut self, wanted: bool) {
        if self.controls.pause_loop {
            self.set_control(Word::Secondary, controls::PAUSE_LOOP, wanted);
        } else {
            self.set_control(Word::Primary, controls::PAUSE, wanted);
        }
    }

    #[inline(always)]
    fn intercept_debug(&mut self, wanted: bool) {
        self.set_control(Word::Primary, controls::MOV_DR, wanted);
    }

    fn hide_cr4(&mut self, bits: u64) {
        let [_, [_, mask]] = &mut self.masks;
        *mask |= bits;
    }

    fn init(state: &mut VcpuState<Self>) {
        let vmcs = &mut *state.block;
        vmcs.request(InterruptRequest { priority: 0, offered: None, window: false, priority_exits: false });
        vmcs.set_nmi_window(false);
        vmcs.event = 0;
        vmcs.set_interruptibility(0);
        vmcs.set_activity(0);
        vmcs.set_pending_debug(0);
        vmcs.forget_apic();
        start_over(&mut state.own, &Defects);
    }

    #[inline(always)]
    fn owe_flush(own: &mut AsidSlot) {
        own.owe_flush();
    }

    /// By NMI-window exiting. A processor may exit at once where STI alone holds the NMI off
    /// (26.2): the other window is asked for, too, and opens behind the next instruction.
    fn await_nmi(&mut self) -> bool {
        let is_after_sti = self.interruptibility() & (BLOCKING_BY_STI | BLOCKING_BY_NMI) == BLOCKING_BY_STI;
        self.set_nmi_window(!is_after_sti);
        true
    }

    fn describe(&mut self, archive: &mut Archive<'_>) -> Result<(), Flaw> {
        // The activity state stays 0.
        let mut state = (self.interruptibility(), self.activity(), self.pending_debug());
        archive.within(&mut state.0, SHADOWS | BLOCKING_BY_NMI)?;
        archive.within(&mut state.1, 0)?;
        archive.within(&mut state.2, DR6_BREAKPOINTS | PENDING_ENABLED | DR6_SINGLE_STEP)?;
        let is_protected = self.read(Field::Cr0) & CR0_PE != 0;
        archive.fixed(&mut self.event, |event| event::kept(event, is_protected))?;
        self.pointers.describe(archive)?;
        if archive.is_reading() {
            self.set_interruptibility(state.0);
            self.set_pending_debug(state.2);
            self.set_pointers(self.pointers);
        }
        Ok(())
    }
}
