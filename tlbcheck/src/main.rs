//! The bootable image: checks and measures TLB flushing on whatever it runs on. See the library for
//! the parts that need no machine, and `arch` for those that do.
#![cfg_attr(target_os = "none", no_std, no_main)]

#[cfg(target_os = "none")]
mod arch;

/// There is nothing to do on an operating system.
#[cfg(not(target_os = "none"))]
fn main() {
    eprintln!(
        "quell-tlbcheck is a program for bare machines; build it for x86_64-unknown-none \
               or aarch64-unknown-none-softfloat"
    );
    std::process::exit(2);
}
