//! A bare guest that accesses memory on command, has a disk do it, and misuses its devices. The
//! kernel command line has commands (see [`load::command`]), which are executed one after another;
//! then more are read from the serial port, line by line. Each prints a line when it is done.
#![cfg_attr(target_os = "none", no_std, no_main)]

#[cfg(target_os = "none")]
mod guest;
#[cfg(target_os = "none")]
mod machine;
#[cfg(all(target_os = "none", target_arch = "x86_64"))]
mod misuse;
#[cfg(target_os = "none")]
mod nvme;
#[cfg(target_os = "none")]
mod virtio;
#[cfg(target_os = "none")]
mod watching;

/// Does nothing on an operating system.
#[cfg(not(target_os = "none"))]
fn main() {
    eprintln!(
        "quell-load is a program for bare machines; build it for aarch64-unknown-none-softfloat or x86_64-unknown-none"
    );
    std::process::exit(2);
}
