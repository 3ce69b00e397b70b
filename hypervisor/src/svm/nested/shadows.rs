//! Nested paging: L2's physical addresses become L1's by L1's nested tables, and L1's become the
//! machine's by the slots (section 15.25). The processor has both in one table, the
//! [shadow](Shadow).
//!
//! A nested page fault of L2 is L1's if L1's tables refuse the access as they are now. Else the
//! shadow is filled, and L2 goes on. When it must be emptied is in [`stay::tagged::Contexts`].

use hostlink::counters::Counter;
use hostlink::defect::Defect;
use hostlink::exit::ExitCode;
use memslots::Gpa;
use memslots::space::{Filled, GuestSpace, Shadow};
use paging::Amd64Nested;
use paging::guest::{Access, Translation};
use stay::in_section;

use super::Nested;
use super::exit::NESTED_FAULT;
use crate::svm::processor::Amd64;
use crate::svm::table::{Exit, FAULT_IN_ACCESS, FAULT_IN_WALK, INNER};
use crate::vm::defects::makes;
use crate::vm::memory::NestedTables;
use crate::vm::{self, Context};
use crate::x86::vcpu::instruction::nested_translate;

/// Whose an exit is.
pub(super) enum Served {
    /// L1's: its tables refuse the access.
    Theirs(Exit),
    /// This one is to be handled.
    Ours(Exit),
}

/// What a nested page fault of L2 ends in.
enum Outcome {
    Filled(Filled, Gpa),
    /// L1's tables refuse the access, with this error code.
    Refused(u64),
    /// L1 changed its tables meanwhile.
    Again,
}

/// Serves a nested page fault of L2, if that is what the exit is and L1 uses nested paging.
pub(super) fn serve<A: Amd64>(context: &mut Context<'_, A>, exit: Exit) -> Served {
    let has_tables = context.state.own.nested.as_deref().is_some_and(|nested| nested.vmcb12.has_tables());
    if exit.code != NESTED_FAULT || !has_tables {
        return Served::Ours(exit);
    }
    let fault = exit.nested_fault();
    let access = match fault.access {
        // A walk is a user's store, whatever it looks up (section 15.25.5).
        vm::Access::Walk => Access::WRITE,
        vm::Access::Fetch => Access::FETCH,
        vm::Access::Data if fault.is_store => Access::WRITE,
        vm::Access::Data => Access::empty(),
    };
    let is_store = access.contains(Access::WRITE);
    let limit = context.vm.guest.shadow_tables;
    let outcome = in_section(context, |state, vm| {
        let Some(nested) = state.own.nested.as_deref_mut() else { return Outcome::Again };
        let memory = vm.space.slots().memory();
        match nested_translate::<A>(&state.block, &memory, fault.gpa, access) {
            Ok(found) => {
                Outcome::Filled(nested.fill_in(&vm.space, fault.gpa, &found, is_store, limit), found.gpa)
            }
            Err(Some(code)) => Outcome::Refused(code.bits().into()),
            Err(None) => Outcome::Again,
        }
    });
    count_emptied(context);
    let served = Exit { code: INNER, ..exit };
    match outcome {
        Outcome::Again => Served::Ours(served),
        Outcome::Filled(Filled::Leaf, _) => {
            context.count(Counter::InnerFills);
            Served::Ours(served)
        }
        Outcome::Filled(Filled::Full, _) => {
            end_without_tables(context);
            Served::Ours(served)
        }
        // As if L1 had made the access.
        Outcome::Filled(Filled::NoMemory | Filled::ReadOnly, gpa) => {
            context.state.block.exit_info_2 = gpa.0;
            Served::Ours(Exit { info_2: gpa.0, ..exit })
        }
        Outcome::Refused(code) => {
            let where_from = exit.info_1 & (FAULT_IN_ACCESS | FAULT_IN_WALK);
            Served::Theirs(Exit { info_1: code | where_from, ..exit })
        }
    }
}

/// Counts shadows that were emptied.
pub(super) fn count_emptied<A: Amd64>(context: &mut Context<'_, A>) {
    if let Some(nested) = context.state.own.nested.as_deref_mut() {
        let emptied = core::mem::take(&mut nested.emptied);
        context.add(Counter::InnerEmptied, emptied);
    }
}

/// The guest ends: the pool has been given a table for each that its vCPUs may take, so this is
/// only with a pool that was configured small.
#[cold]
pub(super) fn end_without_tables<A: Amd64>(context: &Context<'_, A>) {
    log::error!("the guest ends: no page is left for a table of its own guests");
    context.vm.end(ExitCode::GuestOutOfTables);
}

impl Nested {
    /// The root of the shadow of the slot with this number. `None` if there is no table.
    pub(super) fn shadow(
        &mut self,
        context: usize,
        space: &GuestSpace<Amd64Nested, NestedTables>,
    ) -> Option<u64> {
        let place = self.shadows.get_mut(self.contexts.shadow(context))?;
        if place.is_none() {
            *place = Shadow::new(space).ok();
        }
        place.as_ref().map(|shadow| shadow.root().0)
    }

    /// Nested translations have changed.
    #[cold]
    pub(in crate::svm) fn void_shadows(&mut self) {
        self.contexts.void_all();
    }

    /// Empties the shadow with this number if it is void: before it is used in any way.
    pub(super) fn empty_void(&mut self, index: usize) {
        if self.contexts.take_void(index)
            && !makes(Defect::ShadowKept)
            && let Some(shadow) = self.shadows.get_mut(index).and_then(Option::as_mut)
        {
            self.emptied += 1;
            // SAFETY: its slots owe a flush: their tags are dropped before they are used.
            unsafe { shadow.empty() };
        }
    }

    /// Fills in a page of L2; the shadows may take `limit` tables. If there is no room all of them
    /// are emptied.
    fn fill_in(
        &mut self,
        space: &GuestSpace<Amd64Nested, NestedTables>,
        at: Gpa,
        theirs: &Translation,
        is_store: bool,
        limit: u32,
    ) -> Filled {
        let Some(inside) = &self.inside else { return Filled::Full };
        let index = self.contexts.shadow(inside.context);
        for _ in 0..2 {
            self.empty_void(index);
            let used: u32 = self.shadows.iter().flatten().map(Shadow::table_count).sum();
            let Some(shadow) = self.shadows.get_mut(index).and_then(Option::as_mut) else { break };
            match shadow.fill(space, at.0, theirs, is_store, limit.saturating_sub(used)) {
                Filled::Full => {
                    self.contexts.void_all();
                    (0..self.shadows.len()).for_each(|index| self.empty_void(index));
                }
                filled => return filled,
            }
        }
        Filled::Full
    }
}
