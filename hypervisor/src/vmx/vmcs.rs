//! A vCPU's VMCS as software has it: copies of the registers that the processor keeps there, the
//! controls, and what an exit has said.
//!
//! An entry writes the copies that have changed. After an exit those are read that most exits need;
//! others are read where they are asked for, while the VMCS is the CPU's current one. CR2, DR6 and
//! the MSRs that a VMCS does not have stay in the processor while the vCPU is on the CPU.

use core::cell::Cell;
use core::sync::atomic::Ordering;
use paging::{Ept, PhysAddr};

use super::active::Active;
use super::apic::{ApicLocation, VirtualApic};
use super::capabilities::Capabilities;
use super::controls::{self, Controls, Word};
use super::copies::{ALL, CHANGED_BY_EXITS, COPIES, Copied, FIELDS, is_current};
use super::fields as f;
use super::soft_state::{Register, SoftState};
use crate::pages::Pages;
use crate::x86::vcpu::event;
use crate::x86::vcpu::state::Permissions;
use crate::x86::{DR6_SINGLE_STEP, RFLAGS_TF};

/// Reads a register of the processor.
pub(super) type Read<T> = fn(T) -> u64;

/// A vCPU's VMCS.
#[derive(Debug)]
pub struct Vmcs {
    pub(super) copies: [u64; COPIES],
    /// The copies that are newer than what the VMCS has.
    pub(super) dirty: u64,
    /// The copies that are older.
    pub(super) stale: u64,
    /// The copies that are older after each exit.
    pub(super) changed_by_exits: u64,
    pub(super) vmread: Read<u32>,
    pub(super) controls: Controls,
    /// Words of controls that the VMCS does not have yet, [`POINTERS`], [`NEW_LIST`],
    /// [`THRESHOLD`] and [`APIC_MODE`].
    pub(super) dirty_words: u8,
    /// The entries of the highest level of the guest's PAE tables, for the next entry.
    pub(super) pointers: [u64; 4],
    /// Of CR0 and CR4: the bits that must be set, and those whose change by the guest exits.
    pub(super) masks: [[u64; 2]; 2],
    /// CR2, and the MSRs that the VMCS does not have.
    pub(super) soft: SoftState,
    /// Bitmaps of ports and of MSRs, which never change.
    pub(super) maps: [u64; 2],
    region: Pages,
    pub(super) apic: VirtualApic,
    /// The pages whose dirty bits the processor has set, if it lists them (29.3.6).
    pub(super) list: Option<Pages>,
    /// Where the processor has it.
    pub(super) active: Active,
    /// What the CPU had when the vCPU arrived.
    #[cfg(any(test, feature = "audit"))]
    pub(super) host: super::switch::HostState,
    /// What its guest has, for the auditor.
    #[cfg(any(test, feature = "audit"))]
    pub(super) own: Option<Permissions>,
    /// VM-entry interruption information, with the error code in the upper half.
    pub(super) event: u64,
    /// The interrupt that the entry delivers if there is no event; [`TAKEN`] behind the entry.
    pub(super) offered: u64,
    /// See [`set_threshold`](Self::set_threshold).
    pub(super) threshold: u8,
    /// See [`TwoFlushes`](stay::tagged::two_flushes::TwoFlushes).
    pub(super) nested_debt: Cell<bool>,
    /// The stack to which its exits come: HOST_RSP.
    pub(super) host_stack: u64,
    /// It has never been active.
    pub(super) is_new: bool,
    /// The code of the exit, as the [table](super::table) has it.
    pub code: u64,
    /// Exit qualification (28.2.1).
    pub qualification: u64,
    /// Guest physical address of an EPT violation or misconfiguration.
    pub guest_physical: u64,
    /// Length of the instruction that caused the exit.
    pub length: u64,
    /// VM-exit interruption information, with the error code in the upper half: of an exception or
    /// NMI.
    pub interruption: u64,
    /// IDT-vectoring information, with the error code in the upper half.
    pub vectoring: u64,
}

/// Of the [words](Vmcs::dirty_words): the entries of PAE tables.
pub(super) const POINTERS: u8 = 1 << 7;
/// The same: the list of pages begins anew.
pub(super) const NEW_LIST: u8 = 1 << 6;
/// The same: the threshold of task priorities.
pub(super) const THRESHOLD: u8 = 1 << 5;
/// An entry has delivered the interrupt that was [offered](Vmcs::offered).
pub(super) const TAKEN: u64 = 1;
/// The same: the map of MSRs, and the vectors whose end of interrupt exits. In the place of the
/// controls of exits, which never change.
pub(super) const APIC_MODE: u8 = 1 << Word::Exit as u8;
/// Of CR0 PG, which switches long mode: no exit need read EFER. CD and NW: the machine's caches are
/// not the guest's to switch off.
const CR0_SWITCHES: u64 = 7 << 29;
/// CR4.MCE: without it a machine check would shut the processor down.
const CR4_MACHINE_CHECKS: u64 = 1 << 6;
/// STI, or a load of SS, holds interrupts off (25.4.2, interruptibility state).
pub(super) const SHADOWS: u32 = BLOCKING_BY_STI | 1 << 1;
/// STI alone.
pub(super) const BLOCKING_BY_STI: u32 = 1 << 0;
/// An NMI's handler holds NMIs off, with virtual NMIs.
pub const BLOCKING_BY_NMI: u32 = 1 << 3;

impl Vmcs {
    pub(super) fn new() -> Self {
        Self {
            copies: [0; COPIES],
            dirty: ALL,
            stale: 0,
            changed_by_exits: CHANGED_BY_EXITS,
            vmread: |encoding| unreachable!("{} is read of no processor", f::Named(encoding)),
            controls: Controls::default(),
            dirty_words: u8::MAX,
            pointers: [0; 4],
            masks: [[0; 2]; 2],
            soft: SoftState::new(),
            maps: [0; 2],
            region: Pages::new(1),
            apic: VirtualApic::new(),
            list: None,
            active: Active::default(),
            #[cfg(any(test, feature = "audit"))]
            host: super::switch::HostState::default(),
            #[cfg(any(test, feature = "audit"))]
            own: None,
            event: 0,
            offered: 0,
            threshold: 0,
            nested_debt: Cell::new(false),
            host_stack: 0,
            is_new: true,
            code: 0,
            qualification: 0,
            guest_physical: 0,
            length: 0,
            interruption: 0,
            vectoring: 0,
        }
    }

    /// What the block has for good: controls, the bits of CR4 that the guest may change without an
    /// exit, the maps of ports and MSRs, and how its processor reads a field and another register.
    pub(super) fn set_up(
        &mut self,
        (capabilities, controls): (&Capabilities, Controls),
        cr4: u64,
        permissions: &Permissions,
        (vmread, read_soft): (Read<u32>, Read<Register>),
    ) {
        let [cr0_fixed, cr4_fixed] = [capabilities.guest_cr0_fixed(), capabilities.guest_cr4_fixed()];
        let cr4_fixed = cr4_fixed | CR4_MACHINE_CHECKS;
        self.masks = [[cr0_fixed, cr0_fixed | CR0_SWITCHES], [cr4_fixed, cr4_fixed | !cr4]];
        (self.controls, self.vmread, self.soft.from_processor) = (controls, vmread, read_soft);
        self.maps = [permissions.io, permissions.msr];
        if self.controls.has(Word::Secondary, controls::VPID) {
            self.set_copy(Copied::Vpid, 1);
        } else {
            // There is no such field.
            self.dirty &= !(1 << Copied::Vpid as u8);
        }
        self.list = self.controls.has(Word::Secondary, controls::LISTS).then(|| Pages::new(1));
        if self.controls.apic && permissions.apic {
            self.apic.location = ApicLocation::Model;
        } else {
            self.dirty &= !(1 << Copied::InterruptStatus as u8);
            self.changed_by_exits &= !(1 << Copied::InterruptStatus as u8);
        }
        // `choose` has refused a processor that cannot walk them.
        let pointer = Ept::pointer(PhysAddr(permissions.nested_root), capabilities.ept_vpid());
        self.set_copy(Copied::EptPointer, pointer.unwrap_or(0));
        self.region.words()[0].store(capabilities.revision().into(), Ordering::Relaxed);
    }

    /// Address of the VMCS.
    #[inline(always)]
    pub const fn region(&self) -> u64 {
        self.region.start()
    }

    #[inline(always)]
    pub(super) fn copy_at(&self, place: usize) -> u64 {
        if !is_current(place) && self.stale >> place & 1 != 0 {
            self.read_late(place)
        } else {
            self.copies[place]
        }
    }

    /// VMREAD reads whatever VMCS is the current one.
    #[inline(never)]
    fn read_late(&self, place: usize) -> u64 {
        assert!(self.active.is_anywhere(), "{} of a vCPU that is on no CPU", f::Named(FIELDS[place]));
        (self.vmread)(FIELDS[place])
    }

    #[inline(always)]
    pub(super) const fn set_copy_at(&mut self, place: usize, value: u64) {
        self.copies[place] = value;
        self.dirty |= 1 << place;
        if !is_current(place) {
            self.stale &= !(1 << place);
        }
    }

    /// A register's value.
    #[inline(always)]
    pub(super) fn copy(&self, register: Copied) -> u64 {
        self.copy_at(register as usize)
    }

    /// Changes a register.
    #[inline(always)]
    pub(super) const fn set_copy(&mut self, register: Copied, value: u64) {
        self.set_copy_at(register as usize, value);
    }

    /// CR0 or CR4 as the guest sees it.
    #[inline(always)]
    pub(super) fn control_register(&self, (real, shadow): (Copied, Copied)) -> u64 {
        let [_, mask] = self.masks[usize::from(real as u8 == Copied::Cr4 as u8)];
        self.copy(real) & !mask | self.copy(shadow) & mask
    }

    /// Changes CR0 or CR4 as the guest sees it.
    #[inline(always)]
    pub(super) const fn set_control_register(&mut self, (real, shadow): (Copied, Copied), value: u64) {
        let [fixed, _] = self.masks[(real as u8 == Copied::Cr4 as u8) as usize];
        self.set_copy(real, value | fixed);
        self.set_copy(shadow, value);
    }

    /// The tag.
    #[inline(always)]
    pub const fn vpid(&self) -> u16 {
        self.copies[Copied::Vpid as usize] as u16
    }

    #[inline(always)]
    pub(super) const fn set_vpid(&mut self, vpid: u16) {
        if self.vpid() != vpid && self.controls.has(Word::Secondary, controls::VPID) {
            self.set_copy(Copied::Vpid, vpid as u64);
        }
    }

    /// An exit has ended the stay: the event has been delivered, unless there was no entry.
    #[inline(always)]
    pub(super) const fn leave(&mut self, has_run: bool) {
        if has_run && self.offered != 0 {
            self.offered = TAKEN;
        }
        self.event = 0;
    }

    /// What the entry delivers: an event, or else the offered interrupt.
    #[inline(always)]
    pub const fn delivered(&self) -> u64 {
        if self.event & event::VALID != 0 { self.event } else { self.offered }
    }

    /// Has the next entry load the highest level of the guest's PAE tables.
    pub const fn set_pointers(&mut self, pointers: [u64; 4]) {
        self.pointers = pointers;
        self.dirty_words |= POINTERS;
    }

    /// An entry follows: where a shadow holds debug exceptions off, a step pends if and only if the
    /// trap flag is set, or the processor refuses the entry (27.3.1.5).
    #[inline(always)]
    pub(super) fn settle_step(&mut self) {
        if self.interruptibility() & SHADOWS != 0 {
            let step = if self.copy(Copied::Rflags) & RFLAGS_TF != 0 { DR6_SINGLE_STEP } else { 0 };
            self.set_pending_debug(self.pending_debug() & !DR6_SINGLE_STEP | step);
        }
    }

    /// The address behind the instruction that caused the exit.
    #[inline(always)]
    pub fn next_rip(&self) -> u64 {
        self.copy(Copied::Rip).wrapping_add(self.length)
    }

    /// Interruptibility state (25.4.2).
    #[inline(always)]
    pub fn interruptibility(&self) -> u32 {
        self.copy(Copied::Interruptibility) as u32
    }

    /// Changes the interruptibility state.
    pub const fn set_interruptibility(&mut self, state: u32) {
        self.set_copy(Copied::Interruptibility, state as u64);
    }

    /// Activity state (25.4.2): 0, unless the guest halts or has shut down.
    pub fn activity(&self) -> u32 {
        self.copy(Copied::Activity) as u32
    }

    /// Changes the activity state.
    pub const fn set_activity(&mut self, state: u32) {
        self.set_copy(Copied::Activity, state as u64);
    }

    /// Debug exceptions that the guest takes at the next entry (25.4.2).
    pub fn pending_debug(&self) -> u64 {
        self.copy(Copied::PendingDebug)
    }

    /// Changes the pending debug exceptions.
    pub const fn set_pending_debug(&mut self, pending: u64) {
        self.set_copy(Copied::PendingDebug, pending);
    }

    #[inline(always)]
    pub(super) const fn set_control(&mut self, word: Word, bit: u32, wanted: bool) {
        if self.controls.set(word, bit, wanted) {
            self.dirty_words |= 1 << word as u8;
        }
    }

    /// Whether a control is set.
    pub const fn control(&self, word: Word, bit: u32) -> bool {
        self.controls.has(word, bit)
    }

    /// Whether the guest exits as soon as it can take an interrupt.
    pub const fn set_interrupt_window(&mut self, wanted: bool) {
        self.set_control(Word::Primary, controls::INTERRUPT_WINDOW, wanted);
    }

    /// Whether the guest exits as soon as it can take an NMI.
    pub const fn set_nmi_window(&mut self, wanted: bool) {
        self.set_control(Word::Primary, controls::NMI_WINDOW, wanted);
    }

    /// The guest exits when its task priority falls below this one, which is not above the present.
    pub const fn set_threshold(&mut self, priority: u8) {
        if self.threshold != priority {
            self.threshold = priority;
            self.dirty_words |= THRESHOLD;
        }
    }
}
