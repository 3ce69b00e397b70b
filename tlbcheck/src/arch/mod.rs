//! The machine's own parts. An architecture brings its entry and runs the task that the command line names.

#[cfg(target_arch = "x86_64")]
mod x86_64;
