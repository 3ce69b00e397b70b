//! Remembers a vCPU's last walks to its code ([`Walks`]), so that the next look at an opcode need
//! not walk.

use memslots::{GuestMemory, Pattern};
use stay::tagged::Walks;

use super::block::ControlBlock;
use super::block::Field::{Cr0, Cr3, Cr4, Efer};
use super::instruction::{linear_rip, walk_to_code};
use crate::vm::defects::Defects;
use crate::x86::processor::X86;

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
    fn of(block: &impl ControlBlock, cpl: u8) -> Self {
        let read = |field| block.read(field);
        Self { cr0: read(Cr0), cr3: read(Cr3), cr4: read(Cr4), efer: read(Efer), cpl }
    }
}

/// The walks that a vCPU remembers.
#[derive(Default)]
pub struct CodePaths(Walks<Regime>);

impl CodePaths {
    /// What they take of the heap, in bytes.
    pub const BYTES: usize = Walks::<Regime>::BYTES;

    /// Whether the bytes at RIP are `usual`. False also if that is unknown: the code cannot be
    /// read, or crosses a page. Call in a section, with the memory of that section, and with the
    /// block's privilege level, which most callers know.
    #[inline(always)] // Two callers: one is rare, the other is on the path of most exits.
    pub fn is_at_rip<A: X86>(
        &mut self,
        block: &A::Block,
        memory: &GuestMemory<'_>,
        usual: &Pattern,
        cpl: u8,
    ) -> bool {
        let walk = |page, read: &mut dyn FnMut(_) -> _| walk_to_code::<A, _>(block, page, read);
        self.0.has_at(linear_rip(block, 0), Regime::of(block, cpl), memory, usual, &Defects, walk)
    }
}
