//! The machine's own parts. An architecture brings its entry, its rows and its measurements, and runs the task that the
//! command line names; the report and its ways out are the same for all.

mod console;
mod rows;

#[cfg(target_arch = "aarch64")]
mod aarch64;
#[cfg(target_arch = "x86_64")]
mod x86_64;

#[cfg(target_arch = "aarch64")]
use aarch64 as this;
#[cfg(target_arch = "x86_64")]
use x86_64 as this;
