//! Page-modification logging: the processor lists the pages whose dirty bits it sets in nested
//! tables (29.3.6).

use core::sync::atomic::Ordering;

use super::fields as f;
use super::vmcs::{NEW_LIST, Vmcs};

impl Vmcs {
    /// Takes the pages whose dirty bits the processor has set since this was called last: their
    /// guest physical addresses. Its VMCS is the current one.
    #[inline(never)] // Kept apart from the guests whose stores are not logged.
    pub(super) fn take_listed(&mut self, mut take: impl FnMut(u64)) {
        let Some(list) = &self.list else { return };
        // The entry that is written next. The list is filled downwards, and full below 0.
        let next = (self.vmread)(f::LIST_INDEX.raw()) as u16;
        for entry in list.words().iter().skip(next.wrapping_add(1).into()) {
            take(entry.load(Ordering::Relaxed));
            self.dirty_words |= NEW_LIST;
        }
    }

    /// The list has no more room: it begins anew at the next entry. What it has is taken, unless
    /// no stores are logged.
    pub(super) const fn begin_list(&mut self) {
        self.dirty_words |= NEW_LIST;
    }
}
