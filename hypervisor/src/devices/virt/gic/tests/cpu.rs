//! A virtual CPU interface with list registers, as the architecture has it (IHI 0069H chapter 6).

use crate::devices::virt::gic::{ListRegister, ListRegisters, Maintenance, View, running_priority};

/// One CPU's virtual interface, with the physical interrupts that its list registers deactivate.
#[derive(Debug)]
pub(super) struct Cpu {
    pub(super) lists: [u64; 16],
    pub(super) list_count: usize,
    pub(super) pmr: u8,
    pub(super) groups: u8,
    pub(super) splits_eoi: bool,
    pub(super) active_priorities: u32,
    pub(super) eoi_count: u32,
    pub(super) maintenance: Maintenance,
    /// Physical PPIs that are active.
    pub(super) physical: u32,
    /// Accesses to list registers.
    pub(super) accesses: usize,
    /// As in QEMU: the enable bit of group 1 determines whether group 0 has been closed.
    pub(super) confuses_groups: bool,
    /// Any requested maintenance is due at once.
    pub(super) always_due: bool,
}

impl ListRegisters for Cpu {
    fn count(&self) -> usize {
        self.list_count
    }

    fn read(&self, index: usize) -> u64 {
        assert!(index < self.list_count);
        self.lists[index]
    }

    fn write(&mut self, index: usize, value: u64) {
        assert!(index < self.list_count);
        self.accesses += 1;
        self.lists[index] = value;
        let list = ListRegister::from_bits(value);
        assert!(!(list.hardware() && list.pending() && list.active()), "not allowed with HW = 1");
        let valid = |other: &&u64| **other != 0;
        let same = self
            .lists
            .iter()
            .filter(valid)
            .filter(|&&other| ListRegister::from_bits(other).intid() == list.intid());
        assert!(value == 0 || same.count() == 1, "one INTID in two list registers");
    }
}

impl Cpu {
    pub(super) fn new(list_count: usize) -> Self {
        Self {
            lists: [0; 16],
            list_count,
            pmr: 0xff,
            groups: 3,
            splits_eoi: false,
            active_priorities: 0,
            eoi_count: 0,
            maintenance: Maintenance::empty(),
            physical: 0,
            accesses: 0,
            confuses_groups: false,
            always_due: false,
        }
    }

    pub(super) fn vmcr(&self) -> u64 {
        u64::from(self.pmr) << 24 | u64::from(self.splits_eoi) << 9 | u64::from(self.groups)
    }

    pub(super) fn view(&self) -> View {
        View::new(self.vmcr(), running_priority(&[self.active_priorities], 5))
    }

    fn list(&self, index: usize) -> ListRegister {
        ListRegister::from_bits(self.lists[index])
    }

    /// The list register whose interrupt is signalled.
    fn signalled_index(&self) -> Option<usize> {
        let open = |list: &ListRegister| self.groups >> u8::from(list.group1()) & 1 != 0;
        let pending = |list: &ListRegister| list.pending() && !list.active();
        let candidates = (0..self.list_count).filter(|&index| {
            let list = self.list(index);
            pending(&list) && open(&list)
        });
        let index = candidates.min_by_key(|&index| self.list(index).priority())?;
        let list = self.list(index);
        self.view().admits(list.priority(), list.group1()).then_some(index)
    }

    pub(super) fn signalled(&self) -> Option<(u8, u8)> {
        let list = self.list(self.signalled_index()?);
        Some((list.intid() as u8, list.priority()))
    }

    /// ICC_IAR.
    pub(super) fn acknowledge(&mut self) -> Option<u8> {
        let index = self.signalled_index()?;
        let list = self.list(index);
        self.lists[index] = list.with_pending(false).with_active(true).into_bits();
        self.active_priorities |= 1 << (list.priority() >> 3);
        Some(list.intid() as u8)
    }

    /// ICC_EOIR.
    pub(super) fn end(&mut self, intid: u8) {
        self.active_priorities &= self.active_priorities.wrapping_sub(1);
        if !self.splits_eoi {
            self.deactivate(intid);
        }
    }

    /// ICC_DIR, if it does not trap.
    pub(super) fn deactivate(&mut self, intid: u8) {
        let found = (0..self.list_count).find(|&index| {
            let list = self.list(index);
            list.active() && list.intid() == u32::from(intid)
        });
        let Some(index) = found else {
            self.eoi_count += 1;
            return;
        };
        let list = self.list(index);
        self.lists[index] = list.with_active(false).into_bits();
        if list.hardware() {
            assert_ne!(self.physical & 1 << list.physical(), 0, "deactivated twice");
            self.physical &= !(1 << list.physical());
        }
    }

    /// Whether the maintenance interrupt is asserted (ICH_MISR_EL2 is not 0).
    pub(super) fn is_maintenance_due(&self) -> bool {
        let has = |bit| self.maintenance.contains(bit);
        let lists = || (0..self.list_count).map(|index| self.list(index));
        let ended = |list: ListRegister| list.eoi() && !list.pending() && !list.active();
        let interrupts = self.maintenance.difference(Maintenance::TRAP_DEACTIVATION);
        let group0_switch = if self.confuses_groups { 2 } else { 1 };
        lists().any(ended)
            || self.always_due && !interrupts.is_empty()
            || has(Maintenance::NOT_PRESENT) && self.eoi_count != 0
            || has(Maintenance::NO_PENDING) && !lists().any(|list| list.pending() && !list.active())
            || has(Maintenance::GROUP0_ENABLED) && self.groups & 1 != 0
            || has(Maintenance::GROUP1_ENABLED) && self.groups & 2 != 0
            || has(Maintenance::GROUP0_DISABLED) && self.groups & group0_switch == 0
            || has(Maintenance::GROUP1_DISABLED) && self.groups & 2 == 0
    }
}
