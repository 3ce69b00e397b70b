//! The emulated machine: its command line, its process, its memory, and its output.

pub(crate) mod bochs;
pub(crate) mod bundle;
mod console;
pub(crate) mod control;
pub(crate) mod counters;
pub(crate) mod devices;
pub(crate) mod emulator;
pub(crate) mod flat;
pub(crate) mod guests;
pub(crate) mod kvm;
pub(crate) mod log_file;
pub(crate) mod own_time;
pub(crate) mod payload;
pub(crate) mod process;
pub(crate) mod ram;
pub(crate) mod reports;
pub(crate) mod signals;
pub(crate) mod spec;
pub(crate) mod terminal;
