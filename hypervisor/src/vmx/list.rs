//! Page-modification logging: the processor lists the pages whose dirty bits it sets in nested
//! tables (29.3.6).

use core::sync::atomic::Ordering;
use memslots::Memslots;

use super::fields as f;
use super::vmcs::{NEW_LIST, Vmcs};

impl Vmcs {
    /// Takes the pages whose dirty bits the processor has set since this was called last, and marks
    /// them in the logs. Its VMCS is the current one.
    #[inline(never)] // Kept apart from the guests whose stores are not logged.
    pub(super) fn mark_listed(&mut self, slots: &Memslots) {
        let Some(list) = &self.list else { return };
        // The entry that is written next. The list is filled downwards, and full below 0.
        let next = (self.vmread)(f::LIST_INDEX.raw()) as u16;
        let listed = list.words().get(next.wrapping_add(1).into()..).unwrap_or_default();
        if !listed.is_empty() {
            slots.memory().mark_listed(listed.iter().map(|entry| entry.load(Ordering::Relaxed)));
            self.dirty_words |= NEW_LIST;
        }
    }

    /// The list has no more room: it begins anew at the next entry. What it has is taken, unless
    /// no stores are logged.
    pub(super) const fn begin_list(&mut self) {
        self.dirty_words |= NEW_LIST;
    }
}
