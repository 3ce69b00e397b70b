//! Remembers a vCPU's last walks to its code ([`Walks`]), so that the next look at an opcode need
//! not walk.

use memslots::{GuestMemory, Pattern};
use stay::amd64::Walks;

use super::instruction::{linear_rip, walk_to_code};
use crate::svm::processor::Amd64;
use crate::svm::vmcb::Vmcb;
use crate::vm::files::Defects;

/// The state that a walk depends on besides address and tables.
#[derive(Clone, Copy, PartialEq, Eq)]
struct Regime {
    cr0: u64,
    cr3: u64,
    cr4: u64,
    efer: u64,
    cpl: u8,
}

impl Regime {
    #[inline(always)]
    fn of(vmcb: &Vmcb, cpl: u8) -> Self {
        let Vmcb { cr0, cr3, cr4, efer, .. } = *vmcb;
        Self { cr0, cr3, cr4, efer, cpl }
    }
}

/// The walks that a vCPU remembers.
#[derive(Default)]
pub struct CodePaths(Walks<Regime>);

impl CodePaths {
    /// Whether the bytes at RIP are `usual`. False also if that is unknown: the code cannot be
    /// read, or crosses a page. Call in a section, with the memory of that section, and with the
    /// VMCB's privilege level, which most callers know.
    #[inline(always)] // Two callers: one is rare, the other is on the path of most exits.
    pub fn is_at_rip<A: Amd64>(
        &mut self,
        vmcb: &Vmcb,
        memory: &GuestMemory<'_>,
        usual: &Pattern,
        cpl: u8,
    ) -> bool {
        let walk = |page, read: &mut dyn FnMut(_) -> _| walk_to_code::<A, _>(vmcb, page, read).ok();
        self.0.has_at(linear_rip(vmcb, 0), Regime::of(vmcb, cpl), memory, usual, &Defects, walk)
    }
}
