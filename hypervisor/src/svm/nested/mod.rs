//! Guests of a guest: the guest (L1) is a hypervisor by SVM, and runs guests (L2) of its own.
//!
//! A vCPU has one more control block. While L1 runs, its block is the vCPU's, and the other one
//! lies aside; VMRUN fills the other one from L1's (VMCB12) and exchanges both, and #VMEXIT
//! exchanges them again. So L1's state waits in its own block, and the handlers of exits serve
//! whichever runs.
//!
//! | module | contents |
//! |---|---|
//! | `block` | VMCB12: read once, whole, and checked; what an exit writes back |
//! | `direct` | L2's flushes that L1 leaves to us |
//! | `enter` | VMRUN: the block that the processor gets |
//! | `exit` | which exits are L1's, and #VMEXIT |
//! | `events` | what ends a stay in L2 before it begins: interrupts, NMIs, exceptions |
//! | `instructions` | VMLOAD, VMSAVE, STGI, CLGI, INVLPGA, and SVM's MSRs |
//! | `maps` | L1's maps of ports and MSRs |
//! | `shadows` | nested paging: L2's nested page faults |
//! | `saved_state` | L2 is left before L1 is saved or moved |
//!
//! Where L1 uses no nested paging, L2's page tables are in L1's physical addresses, and L2 runs by
//! the same nested table as L1.

mod block;
mod direct;
mod enter;
mod events;
mod exit;
mod instructions;
mod maps;
mod saved_state;
mod shadows;
#[cfg(test)]
mod tests;

pub(super) use events::enter_inner;
pub(super) use instructions::on_instruction;
pub(super) use saved_state::leave_to_move;

use alloc::boxed::Box;
use bitflags::bitflags;
use coherence::asid::AsidSlot;
use core::mem;
use memslots::Gpa;
use memslots::space::Shadow;
use migration::{Archive, Flaw};
use paging::Amd64Nested;
use paging::guest::PageFault;
use stay::tagged::Contexts;

use self::block::Vmcb12;
use super::audit::auditor::Auditor;
use super::block::Own;
use super::intercepts::{MSR_MAP_PAGES, misc1};
use super::vmcb::{EFER_SVME, Vmcb, vintr};
use crate::devices::GeneralProtection;
use crate::devices::pc::inbox::Signals;
use crate::pages::Pages;
use crate::vm::memory::NestedTables;
use crate::x86::RFLAGS_IF;
use crate::x86::vcpu::block::{ControlBlock, Inner};
use crate::x86::vcpu::code_path::CodePaths;

bitflags! {
    /// What a vCPU's entries and exits look at.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub(super) struct Now: u8 {
        /// L2 runs.
        const INSIDE = 1 << 0;
        /// L1's global interrupt flag is 0: neither interrupts nor NMIs are taken.
        const HELD = 1 << 1;
        /// INIT waits: while events are held, or for an exit of L2. Else it acts at the next entry.
        const INIT = 1 << 2;
    }
}

/// What a vCPU has for guests of its guest.
pub(super) struct Nested {
    /// L1's EFER.SVME.
    svme: bool,
    vm_cr: u64,
    host_save: u64,
    /// L2's block while L1 runs, L1's while L2 runs.
    other: Box<Vmcb>,
    /// L2 while it runs.
    inside: Option<Inside>,
    /// INIT if it waits, and what came after it.
    held: Signals,
    /// VMCB12 as VMRUN has read it.
    vmcb12: Vmcb12,
    /// The MSRs that cause exits of L2.
    msr_map: Pages,
    /// The block that they were made for last, and its map.
    msr_map_of: Option<(Gpa, Option<u64>)>,
    contexts: Contexts,
    /// By number.
    shadows: [Option<Shadow<Amd64Nested, NestedTables>>; Contexts::PLACES],
    /// Shadows that were emptied, and not counted yet.
    emptied: u64,
    /// L2's walks to its code while L1 runs, L1's while L2 runs.
    code: CodePaths,
    auditors: [Auditor; Contexts::PLACES],
}

/// What a guest of the guest has of its own: its map of MSRs, and the root of its shadow, if it has
/// nested paging.
pub(super) type InnerMaps = (u64, Option<u64>);

/// The guest of the guest that runs.
struct Inside {
    /// Where its VMCB12 is.
    at: Gpa,
    /// The number of its slot.
    context: usize,
    /// L1's RAX.
    rax: u64,
    /// The #DB that L1 gets after the exit: it steps.
    trap: Option<u64>,
    /// An exit was requested as soon as L2 takes interrupts: its own interrupt control.
    window: Option<u64>,
    /// A nested page fault that was found out of L2, for L1: where, why, and in a walk or not.
    fault: Option<(Gpa, PageFault, bool)>,
}

impl Nested {
    /// For a vCPU with this identity among those of all guests.
    pub(super) fn new(identity: u32) -> Box<Self> {
        // The auditor knows what runs by an identity: what is above those of vCPUs.
        let auditor = |place| Auditor::of_inner(identity | 1_u32 << (16 + place));
        Box::new(Self {
            svme: false,
            vm_cr: 0,
            host_save: 0,
            other: Vmcb::boxed(),
            inside: None,
            held: Signals::default(),
            vmcb12: Vmcb12::new(),
            msr_map: Pages::filled(MSR_MAP_PAGES, |map| map.fill(0xff)),
            msr_map_of: None,
            contexts: Contexts::default(),
            shadows: [const { None }; Contexts::PLACES],
            emptied: 0,
            code: CodePaths::default(),
            auditors: [0, 1, 2].map(auditor),
        })
    }

    /// Whether L1 has V_INTR_MASKING for L2: then L1's RFLAGS and TPR decide about L1's interrupts.
    fn masks(&self) -> bool {
        self.vmcb12.get().interrupt_control & vintr::MASKING != 0
    }

    /// Whether L1 asks for these exits of L2.
    fn wants(&self, bits: u32) -> bool {
        self.vmcb12.get().intercept_misc1 & bits != 0
    }

    /// Exchanges the block that runs and the other one. Nothing that the processor caches of either
    /// is used.
    fn exchange(&mut self, block: &mut Box<Vmcb>, code: &mut CodePaths) {
        mem::swap(block, &mut self.other);
        mem::swap(code, &mut self.code);
        block.clean_bits = 0;
    }
}

impl Own {
    /// The slot of L2 while it runs, its auditor, and what it has of its own.
    pub(super) fn inner(&mut self) -> Option<(&mut AsidSlot, &mut Auditor, InnerMaps)> {
        let nested = self.nested.as_deref_mut()?;
        let inside = nested.inside.as_ref()?;
        let shadow = nested.shadows.get(nested.contexts.shadow(inside.context))?.as_ref();
        let shadow = shadow.filter(|_| nested.vmcb12.has_tables());
        let maps = (nested.msr_map.start(), shadow.map(|shadow| shadow.root().0));
        Some((nested.contexts.slot(inside.context), nested.auditors.get_mut(inside.context)?, maps))
    }

    /// Whether entries are not the guest's own alone.
    #[inline(always)]
    pub(super) fn enters_inner(&self) -> bool {
        self.now.intersects(Now::INSIDE | Now::INIT)
    }

    #[cold]
    fn holds_init_now(&self) -> bool {
        self.now.intersects(Now::HELD | Now::INIT)
            || self.nested.as_ref().is_some_and(|nested| nested.wants(misc1::INIT))
    }

    /// The vCPU has taken a flush, whichever of its contexts was loaded.
    #[cold]
    pub(super) fn owe_inner(&mut self) {
        if let Some(nested) = self.nested.as_deref_mut() {
            nested.contexts.owe_all();
            if self.now.contains(Now::INSIDE) {
                // What was carried out page by page was by L2's registers.
                self.asid.owe_flush();
            }
        }
    }

    /// After INIT, or a reset of the machine: L1's block is the vCPU's again.
    #[cold]
    pub(super) fn leave_for_good(&mut self, block: &mut Box<Vmcb>, code: &mut CodePaths) {
        let Some(nested) = self.nested.as_deref_mut() else { return };
        if nested.inside.take().is_some() {
            nested.exchange(block, code);
        }
        nested.svme = false;
        nested.msr_map_of = None;
        nested.held = Signals::default();
        nested.contexts.forget();
        (self.now, self.tsc_shift) = (Now::empty(), 0);
    }
}

impl Inner for Own {
    #[inline(always)]
    fn is_inside(&self) -> bool {
        self.now.contains(Now::INSIDE)
    }

    #[inline(always)]
    fn is_plain(&self) -> bool {
        self.now.is_empty()
    }

    #[inline(always)]
    fn holds_events(&self) -> bool {
        self.now.contains(Now::HELD)
    }

    #[inline(always)]
    fn holds_init(&self) -> bool {
        !self.now.is_empty() && self.holds_init_now()
    }

    #[cold]
    fn hold(&mut self, signals: Signals) -> Signals {
        let Some(nested) = self.nested.as_deref_mut() else { return signals };
        let held = &mut nested.held;
        if signals.init {
            *held = signals;
        } else if held.init {
            held.startup = held.startup.or(signals.startup);
            held.nmis = (held.nmis + signals.nmis).min(2);
        } else {
            return signals;
        }
        self.now.insert(Now::INIT);
        Signals::default()
    }

    fn release_init(&mut self) -> Option<Signals> {
        let nested = self.nested.as_deref_mut().filter(|_| self.now.contains(Now::INIT))?;
        let waits = match self.now.contains(Now::INSIDE) {
            true => nested.wants(misc1::INIT),
            false => self.now.contains(Now::HELD),
        };
        if waits {
            return None;
        }
        self.now.remove(Now::INIT);
        Some(mem::take(&mut nested.held))
    }

    fn is_init_due(&self) -> bool {
        self.now.contains(Now::INIT) && !self.now.contains(Now::HELD)
    }

    fn takes_interrupts(&self, flags: u64) -> bool {
        let decides = match self.nested.as_deref() {
            _ if self.now.contains(Now::HELD) => 0,
            Some(nested) if self.now.contains(Now::INSIDE) && nested.masks() => nested.other.rflags,
            _ => flags,
        };
        decides & RFLAGS_IF != 0
    }

    fn has_priority(&self) -> bool {
        self.is_inside() && self.nested.as_ref().is_some_and(|nested| nested.masks())
    }

    fn raise_nested(&mut self, gpa: Gpa, code: PageFault, in_walk: bool) {
        let inside = self.nested.as_deref_mut().and_then(|nested| nested.inside.as_mut());
        if let Some(inside) = inside {
            inside.fault = Some((gpa, code, in_walk));
        }
    }

    #[inline(always)]
    fn tsc_offset(&self) -> u64 {
        self.tsc_shift
    }

    #[inline(always)]
    fn efer(&self) -> u64 {
        if self.nested.as_ref().is_some_and(|nested| nested.svme) { EFER_SVME } else { 0 }
    }

    fn set_efer(&mut self, bits: u64) -> Result<(), GeneralProtection> {
        match self.nested.as_deref_mut() {
            Some(nested) => {
                nested.set_svme(bits & EFER_SVME != 0)?;
                if bits == 0 {
                    self.now &= Now::INIT;
                }
                Ok(())
            }
            None if bits == 0 => Ok(()),
            None => Err(GeneralProtection),
        }
    }

    fn describe(&mut self, width: u32, archive: &mut Archive<'_>) -> Result<(), Flaw> {
        let Some(nested) = self.nested.as_deref_mut() else { return Ok(()) };
        let mut holds = self.now.contains(Now::HELD);
        nested.describe(&mut holds, width, archive)?;
        self.now.set(Now::HELD, holds);
        self.now.set(Now::INIT, nested.held.init);
        Ok(())
    }

    fn read_msr(&self, number: u32) -> Result<u64, GeneralProtection> {
        self.nested.as_ref().ok_or(GeneralProtection)?.read_msr(number)
    }

    fn write_msr(&mut self, number: u32, value: u64, width: u32) -> Result<(), GeneralProtection> {
        self.nested.as_deref_mut().ok_or(GeneralProtection)?.write_msr(number, value, width)
    }
}
