//! A vCPU's state as it is saved and moved.
//!
//! What belongs to the machine is left out, and the receiver has its own: tags and what they owe
//! (nobody has used those of the receiver, so flushes that the source has put off are carried out),
//! remembered walks and pages without memory, the control block's clean bits, which exits are
//! requested, where timers are armed. The next entry, and the next arrival on a CPU, make them
//! anew.

use migration::{Archive, Described, Flaw, described};

use super::block::{ControlBlock, Field, Inner, Segment, SegmentName};
use super::event;
use super::msr::{canonical, kept_pat};
use super::nmi::Nmi;
use super::registers::Registers;
use super::state::{Activity, VcpuState};
use crate::devices::pc::inbox::Inbox;
use crate::x86::cpuid::kept::Hidden;
use crate::x86::cpuid::{guest_efer_mask, physical_address_bits};
use crate::x86::processor::X86;
use crate::x86::{CR0_DEFINED, CR0_PE, EFER_LMA};

/// The registers in the stream's order: all but the TSC's offset, which follows from the clock.
pub(crate) const REGISTERS: [(Field, &str); 19] = [
    (Field::Rip, "RIP"),
    (Field::Rsp, "RSP"),
    (Field::Rflags, "RFLAGS"),
    (Field::Cr0, "CR0"),
    (Field::Cr2, "CR2"),
    (Field::Cr3, "CR3"),
    (Field::Cr4, "CR4"),
    (Field::Dr6, "DR6"),
    (Field::Dr7, "DR7"),
    (Field::Efer, "EFER"),
    (Field::Pat, "PAT"),
    (Field::Star, "STAR"),
    (Field::Lstar, "LSTAR"),
    (Field::Cstar, "CSTAR"),
    (Field::Sfmask, "SFMASK"),
    (Field::KernelGs, "KERNEL_GS_BASE"),
    (Field::SysenterCs, "SYSENTER_CS"),
    (Field::SysenterEsp, "SYSENTER_ESP"),
    (Field::SysenterEip, "SYSENTER_EIP"),
];

const SEGMENTS: [SegmentName; 8] = {
    use SegmentName::{Cs, Ds, Es, Fs, Gs, Ldtr, Ss, Tr};
    [Es, Cs, Ss, Ds, Fs, Gs, Ldtr, Tr]
};

/// The value, if it is one that the processor takes: at an entry, or where the hypervisor loads it
/// by WRMSR or a move, which would fault. An entry refuses the rest. `cr4` has the bits that the
/// guest may set.
fn kept<A: X86>(field: Field, (cr4, hidden): (u64, &Hidden), value: u64) -> u64 {
    match field {
        Field::Cr0 => value & CR0_DEFINED,
        Field::Cr4 => value & cr4 & !hidden.cr4,
        Field::Efer => value & (guest_efer_mask::<A>() & !hidden.efer | EFER_LMA),
        Field::Dr6 | Field::Dr7 => value & 0xffff_ffff,
        Field::Sfmask if A::IS_INTEL => value & 0xffff_ffff,
        Field::Pat => kept_pat(value),
        Field::Lstar | Field::Cstar | Field::KernelGs => canonical(value),
        Field::Rip
        | Field::Rsp
        | Field::Rflags
        | Field::Cr2
        | Field::Cr3
        | Field::TscOffset
        | Field::Star
        | Field::Sfmask
        | Field::SysenterCs
        | Field::SysenterEsp
        | Field::SysenterEip => value,
    }
}

described!(Activity: [Self::Running, Self::Halted, Self::WaitForStartup]);

described!(Registers: 0);
described!(Segment: selector, attributes & 0xfff, limit, base);

/// All but a step over IRET, which is over between two stays.
impl Described for Nmi {
    fn describe(&mut self, archive: &mut Archive<'_>) -> Result<(), Flaw> {
        let all = Self::all().difference(Self::STEPPING).bits();
        archive.through(
            self,
            |nmi| nmi.bits(),
            |bits| Self::from_bits(bits & all).filter(|_| bits & !all == 0),
        )
    }
}

impl<B: ControlBlock> VcpuState<B> {
    /// Describes the vCPU, which is on no CPU, and what is posted to it. The guest's clock is by
    /// `ahead` ahead of the machine's, and `cr4` has the bits that the guest may set.
    ///
    /// # Errors
    ///
    /// See [`Described::describe`].
    pub fn describe<A: X86<Block = B>>(
        &mut self,
        inbox: &Inbox,
        (ahead, cr4): (u64, u64),
        archive: &mut Archive<'_>,
    ) -> Result<(), Flaw> {
        self.settle(inbox);
        let Self {
            block,
            registers,
            lapic,
            hyperv,
            own,
            code: _, // The walks and pages that it remembers are made anew.
            mmio: _,
            signature: _, // What CPUID shows is the same.
            view: _,
            hidden,
            activity,
            alarm,
            exception,
            nmi,
            tsc_adjust,
            fpu,
            debug,
            tsc_aux,
        } = self;
        own.describe(physical_address_bits::<A>(), archive)?;
        describe_block::<A>(block, (cr4, hidden), archive)?;
        registers.describe(archive)?;
        lapic.describe(archive)?;
        hyperv.describe(archive)?;
        activity.describe(archive).map_err(|flaw| flaw.named("the activity"))?;
        nmi.describe(archive).map_err(|flaw| flaw.named("NMIs"))?;
        let mut event = exception.unwrap_or(0);
        let is_protected = block.read(Field::Cr0) & CR0_PE != 0;
        let kept = |event| event::kept(event, is_protected);
        archive.fixed(&mut event, kept).map_err(|flaw| flaw.named("an exception"))?;
        *exception = (event != 0).then_some(event);
        tsc_adjust.describe(archive)?;
        // Whoever has an alarm looks at the clock at once.
        let asks = |alarm: &u64| *alarm != u64::MAX;
        archive.through(alarm, asks, |asks| Some(if asks { 0 } else { u64::MAX }))?;
        fpu.describe::<A>(hidden, archive)?;
        debug.describe(archive)?;
        archive.within(tsc_aux, 0xffff_ffff).map_err(|flaw| flaw.named("TSC_AUX"))?;
        if archive.is_reading() {
            self.follow(inbox, ahead);
        }
        Ok(())
    }

    /// What is posted, or under way, becomes state of the vCPU.
    fn settle(&mut self, inbox: &Inbox) {
        B::end_step(self);
        self.take_apic_back();
        if let Some(drained) = inbox.take_vectors(&mut self.lapic, true) {
            let _readdressed = self.take_signals(inbox, drained);
        }
    }

    /// What follows from a state that has been read.
    fn follow(&mut self, inbox: &Inbox, ahead: u64) {
        B::begin_elsewhere(&mut self.own);
        self.block.write(Field::TscOffset, ahead.wrapping_add(self.tsc_adjust));
        self.block.set_priority(self.lapic.tpr() >> 4);
        self.hyperv.set_ahead(ahead);
        inbox.set_address(&self.lapic);
        inbox.set_levels(&self.lapic);
        if self.nmi.contains(Nmi::BLOCKED) && !self.nmi.contains(Nmi::AT_IRET) {
            B::begin_nmi(self);
        }
    }
}

fn describe_block<A: X86>(
    block: &mut A::Block,
    may: (u64, &Hidden),
    archive: &mut Archive<'_>,
) -> Result<(), Flaw> {
    if archive.is_reading() {
        block.hide_cr4(may.1.cr4);
    }
    for (field, name) in REGISTERS {
        let mut value = block.read(field);
        if field == Field::Efer {
            value &= !A::Block::EFER_OWN;
        }
        archive.fixed(&mut value, |value| kept::<A>(field, may, value)).map_err(|flaw| flaw.named(name))?;
        if archive.is_reading() {
            block.write(field, value);
        }
    }
    for name in SEGMENTS {
        let mut segment = block.segment(name);
        segment.describe(archive)?;
        if archive.is_reading() {
            block.set_segment(name, segment);
        }
    }
    for name in [SegmentName::Gdtr, SegmentName::Idtr] {
        let mut table = block.segment(name);
        table.limit.describe(archive)?;
        table.base.describe(archive)?;
        if archive.is_reading() {
            block.set_segment(name, table);
        }
    }
    block.describe(archive).map_err(|flaw| flaw.named("the control block"))
}
