//! `quell bench`: measurements that stand on their own.

pub(crate) mod boot;
pub(crate) mod counts;
mod running;
