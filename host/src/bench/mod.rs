//! `quell bench`: measurements that stand on their own.

pub(crate) mod boot;
pub(crate) mod counts;
pub(crate) mod memslot;
pub(crate) mod paging;
mod running;
pub(crate) mod shootdown;
