//! The bootable image: checks and measures TLB flushing on the machine it runs on. The library has
//! the machine-independent parts, and `arch` the others.
#![cfg_attr(target_os = "none", no_std, no_main)]

#[cfg(target_os = "none")]
mod arch;

/// Does nothing on an operating system.
#[cfg(not(target_os = "none"))]
fn main() {
    eprintln!(
        "quell-tlbcheck is a program for bare machines; build it for x86_64-unknown-none \
               or aarch64-unknown-none-softfloat"
    );
    std::process::exit(2);
}
