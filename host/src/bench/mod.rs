//! `quell bench`: measurements that stand on their own.

pub(crate) mod boot;
pub(crate) mod counts;
pub(crate) mod memslot;
pub(crate) mod migrate;
pub(crate) mod paging;
pub(crate) mod phases;
mod running;
pub(crate) mod shootdown;
pub(crate) mod unmap;
