//! Changes of a guest's page tables.

use paging::Level;

use super::guest::Step;
use super::processor::Guest;
use super::vm::{Architecture, Vm, Window};
use crate::layout::{PAGES, table, va, window};

impl<F: Architecture> Guest<'_, '_, F> {
    /// Writes an entry of the guest's tables; returns `then` if that succeeds.
    pub(super) fn write_entry(&mut self, gpa: u64, entry: u64, then: impl FnOnce()) -> Step {
        let step = self.store_direct(gpa, entry);
        if matches!(step, Step::Next) {
            then();
        }
        step
    }

    pub(super) fn write_window(&mut self, (space, at): (usize, usize), entry: u64, what: Window) -> Step {
        let middle = self.vm.tables.borrow().middle[space];
        let gpa = table::middle(space, middle) + Level::Page2M.index(window(at)) as u64 * 8;
        self.write_entry(gpa, entry, || {
            self.vm.tables.borrow_mut().windows[space][middle][at] = what;
        })
    }
}

/// Address of the last-level entry of a page, according to the guest's knowledge of its tables.
pub(super) fn last_entry<F: Architecture>(vm: &Vm<'_, F>, space: usize, page: usize) -> Option<u64> {
    let tables = vm.tables.borrow();
    match tables.windows[space][tables.middle[space]][page / PAGES.len()] {
        Window::Table(last) => Some(table::last(last) + Level::Page4K.index(va(page)) as u64 * 8),
        Window::Large | Window::Nothing => None,
    }
}
