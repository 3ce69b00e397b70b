//! The emulated machine: its command line, its process, its memory, and its output.

pub(crate) mod bundle;
pub(crate) mod child;
mod console;
pub(crate) mod control;
pub(crate) mod counters;
pub(crate) mod devices;
pub(crate) mod drive;
pub(crate) mod emulator;
pub(crate) mod flat;
pub(crate) mod guests;
mod kept;
pub(crate) mod log_file;
pub(crate) mod need;
pub(crate) mod outcome;
pub(crate) mod output;
pub(crate) mod own_time;
pub(crate) mod process;
pub(crate) mod ram;
pub(crate) mod reports;
pub(crate) mod signals;
pub(crate) mod spec;
pub(crate) mod symbols;
pub(crate) mod terminal;
