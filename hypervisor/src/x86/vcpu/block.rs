//! What a vCPU's control block offers, whatever its format: the VMCB of SVM, the VMCS of VMX.

use alloc::boxed::Box;
use migration::{Archive, Flaw};
use paging::Gpa;
use paging::guest::{ControlRegisters, PageFault};
use stay::tagged::TranslationControls;

use super::checks::Conditions;
use super::state::VcpuState;
use crate::devices::GeneralProtection;
use crate::devices::pc::inbox::Signals;
use crate::devices::pc::lapic::Lapic;
use crate::vm::arch::Cpus;
use crate::x86::{EFER_LMA, RFLAGS_IF};

/// A register of the guest that the block holds while the guest does not run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[allow(missing_docs, reason = "the names are the manual's")]
pub enum Field {
    Rip,
    Rsp,
    Rflags,
    Cr0,
    Cr2,
    Cr3,
    Cr4,
    Dr6,
    Dr7,
    /// With the bits that are [the hypervisor's](ControlBlock::EFER_OWN).
    Efer,
    Pat,
    /// The guest's TSC minus the machine's.
    TscOffset,
    Star,
    Lstar,
    Cstar,
    Sfmask,
    KernelGs,
    SysenterCs,
    SysenterEsp,
    SysenterEip,
}

/// A segment register, or a descriptor table, which has a limit and a base only.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[allow(missing_docs, reason = "the names are the manual's")]
pub enum SegmentName {
    Es,
    Cs,
    Ss,
    Ds,
    Fs,
    Gs,
    Gdtr,
    Ldtr,
    Idtr,
    Tr,
}

/// A segment register's contents.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(C)]
pub struct Segment {
    /// Selector.
    pub selector: u16,
    /// Descriptor bits 55:52 and 47:40, packed into 12 bits.
    pub attributes: u16,
    /// Limit in bytes.
    pub limit: u32,
    /// Base address.
    pub base: u64,
}

impl Segment {
    /// The L bit of a code segment, in packed attributes.
    pub const LONG: u16 = 1 << 9;
    /// The D/B bit, in packed attributes.
    pub const DEFAULT_32: u16 = 1 << 10;
    /// The G bit, in packed attributes.
    pub const GRANULAR: u16 = 1 << 11;

    /// What a register has after a load of this descriptor.
    pub const fn loaded(selector: u16, descriptor: u64) -> Self {
        let attributes = (descriptor >> 40 & 0xff | descriptor >> 44 & 0xf00) as u16;
        let limit = (descriptor & 0xffff | descriptor >> 32 & 0xf_0000) as u32;
        let limit = if attributes & Self::GRANULAR != 0 { limit << 12 | 0xfff } else { limit };
        let base = descriptor >> 16 & 0xff_ffff | descriptor >> 32 & 0xff00_0000;
        Self { selector, attributes, limit, base }
    }
}

/// How the guest is to be told of interrupts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct InterruptRequest {
    /// The guest's task priority: the upper half of TPR, which it sees as CR8.
    pub priority: u8,
    /// The guest takes this interrupt before its next instruction.
    pub offered: Option<u8>,
    /// Exit as soon as the guest can take an interrupt or an NMI.
    pub window: bool,
    /// Exit when the guest changes its task priority.
    pub priority_exits: bool,
}

/// What became of an offered interrupt.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Offered {
    /// None was.
    Nothing,
    /// The guest has taken it.
    Taken,
    /// It has not.
    Left(u8),
}

/// What a vCPU has for guests of its guest: nothing, unless a kind of processor says otherwise.
pub trait Inner {
    /// Whether such a guest is what runs: the control block is its block.
    #[inline(always)]
    fn is_inside(&self) -> bool {
        false
    }

    /// Whether the guest runs, and its flags decide which events it takes.
    #[inline(always)]
    fn is_plain(&self) -> bool {
        true
    }

    /// Whether neither interrupts nor NMIs are taken, whatever the flags say.
    #[inline(always)]
    fn holds_events(&self) -> bool {
        false
    }

    /// Whether INIT would be [held](Self::hold).
    fn holds_init(&self) -> bool {
        false
    }

    /// INIT, and what comes after it, waits here. Returns what does not.
    fn hold(&mut self, signals: Signals) -> Signals {
        signals
    }

    /// What was held, if it acts now.
    fn release_init(&mut self) -> Option<Signals> {
        None
    }

    /// Whether INIT acts at the next entry, or is an exit to the guest.
    fn is_init_due(&self) -> bool {
        false
    }

    /// Whether the guest's interrupts are taken, with these flags in the control block.
    #[inline(always)]
    fn takes_interrupts(&self, flags: u64) -> bool {
        flags & RFLAGS_IF != 0
    }

    /// Whether what runs has a task priority of its own, which is not the local APIC's.
    fn has_priority(&self) -> bool {
        false
    }

    /// A guest of the guest has a nested page fault here, for the guest: in a walk, or not.
    fn raise_nested(&mut self, _: Gpa, _: PageFault, _in_walk: bool) {}

    /// What the TSC of what runs has beyond the guest's.
    #[inline(always)]
    fn tsc_offset(&self) -> u64 {
        0
    }

    /// Bits of EFER that are the hypervisor's, and that the guest sees.
    #[inline(always)]
    fn efer(&self) -> u64 {
        0
    }

    /// The guest sets these bits of EFER.
    ///
    /// # Errors
    ///
    /// If it may not.
    fn set_efer(&mut self, bits: u64) -> Result<(), GeneralProtection> {
        if bits == 0 { Ok(()) } else { Err(GeneralProtection) }
    }

    /// Describes what the guest has for its guests; physical addresses have `width` bits.
    ///
    /// # Errors
    ///
    /// See [`Described::describe`](migration::Described::describe).
    fn describe(&mut self, _width: u32, _: &mut Archive<'_>) -> Result<(), Flaw> {
        Ok(())
    }

    /// An MSR.
    ///
    /// # Errors
    ///
    /// If there is none with this number.
    fn read_msr(&self, _number: u32) -> Result<u64, GeneralProtection> {
        Err(GeneralProtection)
    }

    /// Writes an MSR; physical addresses have `width` bits.
    ///
    /// # Errors
    ///
    /// If there is none with this number, or the value is wrong.
    fn write_msr(&mut self, _number: u32, _value: u64, _width: u32) -> Result<(), GeneralProtection> {
        Err(GeneralProtection)
    }
}

/// A vCPU's control block.
///
/// Whatever is written takes effect at the next entry, also if the processor caches the block.
/// Events have the format of [`event`](super::event).
pub trait ControlBlock: Sized + Send + 'static {
    /// What else this kind of processor needs of a vCPU, besides the block.
    type Own: Send + Inner;
    /// Bits of EFER that are the hypervisor's: always set, and not seen by the guest.
    const EFER_OWN: u64;
    /// A block of zeros.
    fn boxed() -> Box<Self>;
    /// For a vCPU of this identity among those of all guests, whose guest may have guests or not.
    fn own(identity: u32, may_nest: bool) -> Self::Own;
    /// A register of the guest.
    fn read(&self, field: Field) -> u64;
    /// Changes a register of the guest.
    fn write(&mut self, field: Field, value: u64);
    /// A segment register.
    fn segment(&self, name: SegmentName) -> Segment;
    /// A segment register's attributes.
    #[inline(always)]
    fn attributes(&self, name: SegmentName) -> u16 {
        self.segment(name).attributes
    }

    /// Changes a segment register.
    fn set_segment(&mut self, name: SegmentName, segment: Segment);
    /// The privilege level. Real mode has 0, virtual-8086 mode 3.
    fn cpl(&self) -> u8;
    /// The event that the next entry delivers, [valid](super::event::VALID) or not.
    fn event(&self) -> u64;
    /// Has the next entry deliver this event.
    fn set_event(&mut self, event: u64);
    /// The event whose delivery the last exit cut short.
    fn cut_short(&self) -> u64;
    /// Whether the last instruction holds interrupts off: STI, or a load of SS.
    fn has_shadow(&self) -> bool;
    /// Whether debug exceptions pend, which the guest takes before any other event. An event that
    /// an entry delivers would take their place.
    #[inline(always)]
    fn has_debug_pending(&self) -> bool {
        false
    }

    /// An instruction has been completed: what holds interrupts off is over.
    fn end_shadow(&mut self);
    /// Whether no interrupt is offered and no exit requested, and the guest has this priority.
    fn is_quiet(&self, priority: u8) -> bool;

    /// Has the guest take an interrupt before its next instruction; the block is
    /// [quiet](Self::is_quiet).
    fn offer(&mut self, vector: u8);

    /// Replaces all requests.
    fn request(&mut self, request: InterruptRequest);
    /// The guest can take an interrupt: the request for this exit is done.
    fn close_window(&mut self);
    /// Whether no interrupt was offered, and the guest has this priority.
    fn is_settled(&self, priority: u8) -> bool;
    /// Ends the offer of an interrupt; also returns the guest's priority.
    fn settle(&mut self) -> (u8, Offered);
    /// Changes the guest's priority.
    fn set_priority(&mut self, priority: u8);
    /// Before an entry: the processor gets the requests of a local APIC that is its own. Returns
    /// whether there were any.
    #[inline(always)]
    fn hand_over(&mut self, _: &mut Lapic) -> bool {
        false
    }

    /// Gives the local APIC back what the processor has of it, until the next entry.
    #[inline(always)]
    fn take_back(&mut self, _: &mut Lapic) {}

    /// The registers that determine the meaning of the guest's nested tables, if a guest of the
    /// guest with such is what runs. CR3 is their root.
    fn inner_paging(&self) -> Option<ControlRegisters> {
        None
    }

    /// Whether the processor has an interrupt for a guest of the guest, and that takes it.
    fn takes_virtual(&self) -> bool {
        false
    }

    /// Whether PAUSE causes exits.
    fn intercept_pause(&mut self, wanted: bool);
    /// Whether the guest's first access to a debug register, and each write of DR7, causes an exit.
    fn intercept_debug(&mut self, wanted: bool);
    /// The guest may not set these bits of CR4. The vCPU has not run here.
    fn hide_cr4(&mut self, _: u64) {}
    /// Sets the vCPU's controls as after INIT: nothing is offered or requested. Registers follow.
    fn init(state: &mut VcpuState<Self>);
    /// The vCPU's next entry drops all of its translations.
    fn owe_flush(own: &mut Self::Own);
    /// The vCPU has taken a flush of everything.
    fn note_flush(_: &mut Self::Own) {}
    /// The vCPU is reset: what it has of its own, too.
    fn reset(_: &mut Self::Own) {}
    /// The vCPU's state comes from another machine. It has not run here.
    fn begin_elsewhere(_: &mut Self::Own) {}
    /// The guest takes an NMI: the next waits for the end of its handler, which a processor with
    /// virtual NMIs knows.
    fn begin_nmi(_: &mut VcpuState<Self>) {}

    /// An NMI waits: has the guest exit as soon as it can take one. False if no block can do that.
    #[inline(always)]
    fn await_nmi(&mut self) -> bool {
        false
    }

    /// The guest is at the instruction that may end an NMI's handler: it executes it, unless an
    /// event comes first.
    fn prepare_iret<A: Cpus>(_: &mut VcpuState<Self>, _is_interrupted: bool) {}

    /// Describes what else the block has of a vCPU that is on no CPU: besides [`Field`]s and
    /// segments, and what the next entry arranges by the state of the vCPU. What is read makes the
    /// processor refuse the entry at worst.
    ///
    /// # Errors
    ///
    /// See [`Described::describe`](migration::Described::describe).
    fn describe(&mut self, archive: &mut Archive<'_>) -> Result<(), Flaw>;

    /// Ends what [`prepare_iret`](Self::prepare_iret) began, if anything. To be called after each
    /// exit, before other code looks at RFLAGS and DR6.
    #[inline(always)]
    fn end_step(_: &mut VcpuState<Self>) {}

    /// Whether the guest runs 64-bit code.
    #[inline(always)]
    fn is_64bit(&self) -> bool {
        self.read(Field::Efer) & EFER_LMA != 0 && self.attributes(SegmentName::Cs) & Segment::LONG != 0
    }

    /// The state that the checks of an instruction depend on.
    #[inline(always)]
    fn conditions(&self) -> Conditions {
        Conditions { cpl: self.cpl(), cr4: self.read(Field::Cr4), rflags: self.read(Field::Rflags) }
    }

    /// The registers that translations depend on.
    #[inline(always)]
    fn translation_controls(&self) -> TranslationControls {
        let read = |field| self.read(field);
        TranslationControls {
            cr3: read(Field::Cr3),
            cr4: read(Field::Cr4),
            efer: read(Field::Efer),
            pat: read(Field::Pat),
        }
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;
    use crate::loader::{CODE, DATA, TASK};

    /// All kinds of them.
    pub(crate) fn requests() -> impl Iterator<Item = InterruptRequest> + Clone {
        (0..16).map(|bits| InterruptRequest {
            priority: if bits & 1 != 0 { 9 } else { 0 },
            offered: (bits & 2 != 0).then_some(0x51),
            window: bits & 4 != 0,
            priority_exits: bits & 8 != 0,
        })
    }

    #[test]
    fn loaded_segments_are_what_the_descriptors_say() {
        let loaded = |from: crate::loader::Segment| Segment::loaded(from.selector, from.descriptor);
        let flat = |selector, attributes| Segment { selector, attributes, limit: u32::MAX, base: 0 };
        assert_eq!((loaded(CODE), loaded(DATA)), (flat(0x10, 0xc9b), flat(0x18, 0xc93)));
        assert_eq!(loaded(TASK), Segment { selector: 0x20, attributes: 0x08b, limit: 0x67, base: 0 });
        let other = Segment { selector: 8, attributes: 0x49a, limit: 0xf_ffff, base: 0x1234_5678 };
        assert_eq!(Segment::loaded(8, 0x124f_9a34_5678_ffff), other);
        let odd = Segment { selector: 8, attributes: 0x493, limit: 0x2345, base: 0xabcd_ef00 };
        assert_eq!(Segment::loaded(8, 0xab40_93cd_ef00_2345), odd);
    }
}
