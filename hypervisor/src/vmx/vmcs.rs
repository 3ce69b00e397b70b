//! A vCPU's part of the VMCS: what an entry writes there and an exit reads from there. CR2 and the
//! MSRs that the VMCS does not have are switched with it.

use alloc::boxed::Box;
use coherence::asid::AsidSlot;
use stay::tagged::start_over;

use crate::vm::arch::Cpus;
use crate::vm::files::Defects;
use crate::x86::vcpu::block::{ControlBlock, Field, InterruptRequest, Offered, Segment, SegmentName};
use crate::x86::vcpu::event;
use crate::x86::vcpu::nmi::Nmi;
use crate::x86::vcpu::state::VcpuState;

const FIELDS: usize = Field::SysenterEip as usize + 1;
const SEGMENTS: usize = SegmentName::Tr as usize + 1;

/// STI and MOV SS hold interrupts off (25.4.2, interruptibility state).
const SHADOWS: u32 = 3;

/// A vCPU's part of the VMCS.
#[derive(Clone, Debug)]
pub struct Vmcs {
    fields: [u64; FIELDS],
    segments: [Segment; SEGMENTS],
    /// Root of the nested tables, as in the EPT pointer.
    pub nested_root: u64,
    /// VPID.
    pub vpid: u16,
    /// VM-entry interruption information, with the error code in the upper half.
    event: u64,
    requested: InterruptRequest,
    /// Interruptibility state.
    pub interruptibility: u32,
    /// Whether PAUSE, and accesses to debug registers, cause exits.
    pause_exits: bool,
    debug_exits: bool,
    /// Basic exit reason (appendix C).
    pub reason: u16,
    /// Exit qualification (28.2.1).
    pub qualification: u64,
    /// Guest physical address of an EPT violation.
    pub guest_physical: u64,
    /// Length of the instruction that caused the exit.
    pub length: u64,
    /// IDT-vectoring information, with the error code in the upper half.
    pub vectoring: u64,
}

impl Vmcs {
    /// What the entry delivers: an event, or else the offered interrupt.
    pub const fn delivered(&self) -> u64 {
        match self.requested.offered {
            Some(vector) if self.event & event::VALID == 0 => {
                event::VALID | event::TYPE_INTERRUPT | vector as u64
            }
            _ => self.event,
        }
    }

    /// The address behind the instruction that caused the exit.
    pub const fn next_rip(&self) -> u64 {
        self.fields[Field::Rip as usize].wrapping_add(self.length)
    }

    /// An exit has ended the stay: the event has been delivered.
    pub const fn leave(&mut self) {
        self.event = 0;
    }
}

/// Nothing is offered or requested.
const fn quiet(priority: u8) -> InterruptRequest {
    InterruptRequest { priority, offered: None, window: false, priority_exits: false }
}

impl ControlBlock for Vmcs {
    /// The tag: VPID.
    type Own = AsidSlot;

    const EFER_OWN: u64 = 0;

    fn boxed() -> Box<Self> {
        Box::new(Self {
            fields: [0; FIELDS],
            segments: [Segment::default(); SEGMENTS],
            nested_root: 0,
            vpid: 0,
            event: 0,
            requested: quiet(0),
            interruptibility: 0,
            pause_exits: false,
            debug_exits: false,
            reason: 0,
            qualification: 0,
            guest_physical: 0,
            length: 0,
            vectoring: 0,
        })
    }

    fn own(_: u32) -> AsidSlot {
        AsidSlot::new()
    }

    fn read(&self, field: Field) -> u64 {
        self.fields[field as usize]
    }

    fn write(&mut self, field: Field, value: u64) {
        self.fields[field as usize] = value;
    }

    fn segment(&self, name: SegmentName) -> Segment {
        self.segments[name as usize]
    }

    fn set_segment(&mut self, name: SegmentName, segment: Segment) {
        self.segments[name as usize] = segment;
    }

    /// That of SS's descriptor.
    fn cpl(&self) -> u8 {
        (self.segment(SegmentName::Ss).attributes >> 5 & 3) as u8
    }

    fn event(&self) -> u64 {
        self.event
    }

    fn set_event(&mut self, event: u64) {
        self.event = event;
    }

    fn cut_short(&self) -> u64 {
        self.vectoring
    }

    fn has_shadow(&self) -> bool {
        self.interruptibility & SHADOWS != 0
    }

    fn end_shadow(&mut self) {
        self.interruptibility &= !SHADOWS;
    }

    fn is_quiet(&self, priority: u8) -> bool {
        self.requested == quiet(priority)
    }

    fn offer(&mut self, vector: u8) {
        self.requested.offered = Some(vector);
    }

    /// Interrupt-window exiting, and exits of CR8.
    fn request(&mut self, request: InterruptRequest) {
        self.requested = request;
    }

    fn close_window(&mut self) {
        self.requested.window = false;
    }

    fn is_settled(&self, priority: u8) -> bool {
        (self.requested.priority, self.requested.offered) == (priority, None)
    }

    /// An entry delivers what it is given: if that was cut short, the exit says so.
    fn settle(&mut self) -> (u8, Offered) {
        let InterruptRequest { priority, offered, .. } = self.requested;
        self.requested.offered = None;
        (priority, if offered.is_some() { Offered::Taken } else { Offered::Nothing })
    }

    fn set_priority(&mut self, priority: u8) {
        self.requested.priority = priority;
    }

    fn intercept_pause(&mut self, wanted: bool) {
        self.pause_exits = wanted;
    }

    fn intercept_debug(&mut self, wanted: bool) {
        self.debug_exits = wanted;
    }

    fn arrive(&mut self) {}

    fn init(state: &mut VcpuState<Self>) {
        state.block.requested = quiet(0);
        (state.block.event, state.block.interruptibility) = (0, 0);
        start_over(&mut state.own, &Defects);
    }

    fn owe_flush(own: &mut AsidSlot) {
        own.owe_flush();
    }

    fn note_flush(_: &mut AsidSlot) {}

    fn reset(_: &mut AsidSlot) {}

    /// Virtual NMIs: the processor knows when the handler ends.
    fn begin_nmi(state: &mut VcpuState<Self>) {
        state.nmi.remove(Nmi::BLOCKED);
    }

    fn prepare_iret<A: Cpus>(_: &mut VcpuState<Self>, _: bool) {}

    fn end_step(_: &mut VcpuState<Self>) -> bool {
        false
    }
}
