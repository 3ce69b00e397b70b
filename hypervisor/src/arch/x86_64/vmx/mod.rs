//! VMX's instructions: entering and leaving the guest, and turning it on.
//!
//! Source for all of it: Intel's SDM, volume 3 (325384), chapters 24 to 32.

mod entry;
pub(super) mod features;
pub(super) mod invalidate;
mod ops;
