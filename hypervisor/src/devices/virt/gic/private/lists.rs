//! List registers: filled before an entry, read back after an exit.
//!
//! An active interrupt need not be in a list register. If the guest ends an interrupt that is in
//! none, EOIcount increases and a maintenance interrupt follows. Because handlers nest, the
//! interrupt was the active one of highest priority (IHI 0069H section 6.2). With the guest's
//! EOImode = 1 they need not nest, so then ICC_DIR_EL1 traps. Thus pending interrupts always get at
//! least one register, however many interrupts are active.
//!
//! A level-sensitive interrupt is never both pending and active in a register. Its line is checked
//! again when the guest deactivates it, for which it requests a maintenance interrupt.

use super::progress::Standing;
use super::{Bits, Deactivate, LIST_MAX, ListRegister, Private, View};
use crate::devices::virt::gic::{Groups, ListRegisters, Maintenance};

impl Private {
    /// Whether there is nothing to [`fill`](Self::fill) in. This is usual, and quicker to see than
    /// which interrupts are waiting. `false` is possible in other cases, too.
    #[inline]
    pub const fn has_none(&self) -> bool {
        self.latch.or(self.line).or(self.active).is_empty()
    }

    /// Fills the list registers. The result must be written to ICH_HCR_EL2 with EOIcount = 0.
    /// [`sync`](Self::sync) must follow, with only the guest in between.
    #[inline(never)] // Apart from the usual case.
    pub fn fill(&mut self, registers: &mut impl ListRegisters, view: &View) -> Maintenance {
        let waiting = self.waiting();
        if waiting.is_empty() && self.active.is_empty() {
            return Maintenance::empty();
        }
        let count = registers.count().min(LIST_MAX);
        let reserved = usize::from(!waiting.is_empty());
        let is_crowded = waiting.count() + self.active.count() > count;
        let mut left_active = self.active;
        while self.loaded_count < count.saturating_sub(reserved) {
            let Some(intid) = self.highest(left_active) else { break };
            left_active.remove(intid);
            self.load(intid, is_crowded);
        }
        // Interrupts of groups that the guest does not admit are last: they must not displace those
        // that it does admit.
        let open = view.groups().members(self.setup.group1);
        let mut left_waiting = waiting;
        while self.loaded_count < count {
            let next = self.highest(left_waiting.and(open)).or_else(|| self.highest(left_waiting));
            let Some(intid) = next else { break };
            left_waiting.remove(intid);
            self.load(intid, is_crowded);
        }
        for (index, register) in self.loaded().iter().enumerate() {
            registers.write(index, register.into_bits());
        }
        let maintenance = self.maintenance(left_active, left_waiting, view);
        if maintenance.is_empty() {
            maintenance
        } else {
            self.progress.bounded(maintenance, &self.standing(view))
        }
    }

    /// A maintenance interrupt ended this stay in the guest. To be called after
    /// [`sync`](Self::sync).
    pub fn note_maintenance(&mut self, view: &View) {
        let standing = self.standing(view);
        self.progress.note(standing);
    }

    fn standing(&self, view: &View) -> Standing {
        Standing { view: *view, changes: self.changes, wanted: self.wanted(), active: self.active }
    }

    /// The list registers in use, in their order. The others are 0.
    #[inline]
    pub fn loaded(&self) -> &[ListRegister] {
        self.loaded.get(..self.loaded_count).unwrap_or(&self.loaded)
    }

    fn load(&mut self, intid: u8, is_crowded: bool) {
        let active = self.active.has(intid);
        let linked = self.linked.has(intid);
        let is_level = !self.setup.edge.has(intid);
        // Active and wanted again: the guest may have both states at once only if that hides
        // nothing. If others wait outside the registers, this one could be taken before one of
        // higher priority. If it is level-sensitive, its line may fall meanwhile. If it is now
        // routed elsewhere, it belongs to another vCPU. If it is linked, the architecture has no
        // such state. Such interrupts are checked when they end.
        let is_again = active && self.wanted().has(intid);
        let is_elsewhere = self.elsewhere.has(intid);
        let pending = !active || is_again && !(linked || is_level || is_crowded || is_elsewhere);
        let is_hardware = linked && !(active && self.latch.has(intid));
        let register = ListRegister::new()
            .with_intid(u32::from(intid))
            .with_priority(self.setup.priority[usize::from(intid)])
            .with_group1(self.setup.group1.has(intid))
            .with_pending(pending)
            .with_active(active);
        self.loaded[self.loaded_count] = if is_hardware {
            register.with_hardware(true).with_physical(u16::from(intid))
        } else if is_level || linked || is_again && !pending {
            register.with_eoi()
        } else {
            register
        };
        self.loaded_count += 1;
    }

    fn maintenance(&self, left_active: Bits, left_waiting: Bits, view: &View) -> Maintenance {
        let mut maintenance = Maintenance::empty();
        if !left_active.is_empty() {
            maintenance |= Maintenance::NOT_PRESENT | Maintenance::TRAP_DEACTIVATION;
        }
        if !left_waiting.is_empty() {
            maintenance |= Maintenance::NO_PENDING;
            let group1 = !left_waiting.and(self.setup.group1).is_empty();
            let group0 = !left_waiting.without(self.setup.group1).is_empty();
            maintenance |= group_changes(group0, group1, view.groups());
        }
        maintenance
    }

    /// Takes the list registers back, and sets them to 0. `eoi_count` is [`Maintenance::eoi_count`]
    /// of ICH_HCR_EL2; it may be given as 0 if the last [`fill`](Self::fill) did not request
    /// [`Maintenance::NOT_PRESENT`]. Returns the interrupts that the hardware could not deactivate.
    #[inline]
    pub fn sync(&mut self, registers: &mut impl ListRegisters, eoi_count: u32) -> Deactivate {
        if self.loaded_count == 0 && eoi_count == 0 {
            return Deactivate::default();
        }
        self.take_back(registers, eoi_count)
    }

    fn take_back(&mut self, registers: &mut impl ListRegisters, eoi_count: u32) -> Deactivate {
        let mut outside = self.active;
        let mut deactivate = 0;
        for index in 0..core::mem::take(&mut self.loaded_count) {
            let before = self.loaded[index];
            let after = ListRegister::from_bits(registers.read(index));
            registers.write(index, 0);
            let intid = before.intid() as u8;
            outside.remove(intid);
            if (before.pending(), before.active()) != (after.pending(), after.active()) {
                self.changes = self.changes.wrapping_add(1);
                deactivate |= self.changed(intid, before, after).0;
            }
        }
        for _ in 0..eoi_count.min(32) {
            let Some(intid) = self.highest(outside) else { break };
            outside.remove(intid);
            self.changes = self.changes.wrapping_add(1);
            deactivate |= self.deactivate_one(intid).0;
        }
        Deactivate(deactivate)
    }

    fn changed(&mut self, intid: u8, before: ListRegister, after: ListRegister) -> Deactivate {
        if before.pending() && !after.pending() {
            // Acknowledged: the edge, or the write that made it pending, is used up.
            self.latch.remove(intid);
        }
        self.active.set(intid, after.active());
        if self.held.has(intid) {
            self.unsettled.insert(intid);
        }
        if after.active() || after.pending() {
            return Deactivate::default();
        }
        let ended = self.unlink(self.linked.and(Bits::one(intid)));
        // For a linked register the hardware has deactivated the physical interrupt already.
        if before.hardware() { Deactivate::default() } else { ended }
    }
}

/// Maintenance for interrupts of these groups that wait outside the registers. They are loaded when
/// the guest enables their group, or disables the other one, whose interrupts may be in all
/// registers. The latter matters only while both are enabled: otherwise the interrupts are loaded
/// when their own group is enabled. Some emulators (QEMU) also check group 1's enable bit to see
/// whether group 0 has been disabled: with group 1 disabled the request would be met at once,
/// forever.
fn group_changes(group0: bool, group1: bool, open: Groups) -> Maintenance {
    let is_open = |group: u8| open.bits() >> group & 1 != 0;
    let mut changes = Maintenance::empty();
    if group0 && !is_open(0) {
        changes = changes.union(Maintenance::GROUP0_ENABLED);
    }
    if group1 && !is_open(1) {
        changes = changes.union(Maintenance::GROUP1_ENABLED);
    }
    if open == Groups::BOTH && group1 {
        changes = changes.union(Maintenance::GROUP0_DISABLED);
    }
    if open == Groups::BOTH && group0 {
        changes = changes.union(Maintenance::GROUP1_DISABLED);
    }
    changes
}
