//! How a vCPU's last walks to its code went, so that the next look at an opcode need not walk.
//!
//! A walk of the guest's page tables is a function of the registers that govern it, of the address, and of the
//! entries on its way. A [`CodePath`] remembers all of these with the result. Before it is used again the registers
//! are compared and **the entries are read again from guest memory**: if all are equal, a new walk would end at the
//! same place. It does not hold a translation beyond a change of the tables, so it is not a TLB: no flush has to reach it,
//! and there is nothing to invalidate. Like the walk that it stands for it belongs into a translation section. Host
//! addresses are valid for one version of the memory slots, which [`GuestMemory`] checks.

use memslots::{GuestMemory, Located, Pattern, Record};

use super::instruction::{linear_rip, walk_to_code};
use super::vmcb::Vmcb;

const PAGE_SIZE: usize = 4096;
/// Levels of the longest walk.
const LEVELS_MAX: usize = 4;
/// Pages that are remembered, by the low bits of their number. A guest's exits come from few places.
const WAYS: usize = 16;

/// What a walk depends on besides the tables.
#[derive(Clone, Copy, PartialEq, Eq)]
struct Regime {
    /// Linear address of the page.
    page: u64,
    cr0: u64,
    cr3: u64,
    cr4: u64,
    efer: u64,
    cpl: u8,
}

impl Regime {
    fn of(vmcb: &Vmcb, linear: u64, cpl: u8) -> Self {
        let page = linear & !(PAGE_SIZE as u64 - 1);
        let Vmcb { cr0, cr3, cr4, efer, .. } = *vmcb;
        Self { page, cr0, cr3, cr4, efer, cpl }
    }
}

/// One walk: what it began with, what it read and where it ended.
struct CodePath {
    regime: Regime,
    entries: Record<LEVELS_MAX>,
    page: Located,
}

impl CodePath {
    /// Walks to the page and remembers how. `None` for every kind of failure: the caller's own walk tells them apart.
    #[cold]
    #[inline(never)]
    fn walk(regime: Regime, vmcb: &Vmcb, memory: &GuestMemory<'_>) -> Option<Self> {
        let mut entries = memory.record();
        let gpa = walk_to_code(vmcb, regime.page, |gpa| memory.read_recorded(gpa, &mut entries)).ok()?;
        let page = memory.locate(gpa, PAGE_SIZE).ok()?;
        Some(Self { regime, entries, page })
    }

    /// Whether a walk would go the same way now.
    fn is_current(&self, regime: &Regime, memory: &GuestMemory<'_>) -> bool {
        self.regime == *regime && memory.is_unchanged(&self.entries)
    }
}

/// The walks that a vCPU remembers.
#[derive(Default)]
pub(crate) struct CodePaths([Option<CodePath>; WAYS]);

impl CodePaths {
    /// Whether the bytes at RIP are `usual`. False also if that is not known: the code cannot be read, or crosses a
    /// page. Call in a translation section, with the memory of that section, and with the VMCB's privilege level, which
    /// most callers know.
    #[inline(always)] // Two callers, of which one is seldom and the other on the way of most exits.
    pub(crate) fn is_at_rip(
        &mut self,
        vmcb: &Vmcb,
        memory: &GuestMemory<'_>,
        usual: &Pattern,
        cpl: u8,
    ) -> bool {
        let linear = linear_rip(vmcb, 0);
        let regime = Regime::of(vmcb, linear, cpl);
        let way = &mut self.0[linear as usize / PAGE_SIZE % WAYS];
        if !way.as_ref().is_some_and(|path| path.is_current(&regime, memory)) {
            *way = CodePath::walk(regime, vmcb, memory);
        }
        let offset = linear as usize % PAGE_SIZE;
        way.as_ref().is_some_and(|path| memory.has_at(&path.page, offset, usual))
    }
}
