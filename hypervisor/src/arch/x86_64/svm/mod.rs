//! SVM's instructions: entering and leaving the guest, and turning it on.
//!
//! Source for all of it: AMD64 APM volume 2 (24593, rev. 3.42), chapter 15 and appendices B and C.

pub(super) mod entry;
pub(super) mod features;
pub(super) mod invalidate;
mod ops;
