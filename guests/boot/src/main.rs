//! A bare guest that starts the kernel of its disk. It is given to a guest as its kernel, so it
//! runs after each reset, and finds what is on the disk then. The words of its own command line are
//! appended to those that the disk has for the kernel.
#![cfg_attr(all(target_os = "none", target_arch = "x86_64"), no_std, no_main)]

#[cfg(all(target_os = "none", target_arch = "x86_64"))]
extern crate alloc;
#[cfg(all(target_os = "none", target_arch = "x86_64"))]
mod guest;
#[cfg(all(target_os = "none", target_arch = "x86_64"))]
mod linux;
#[cfg(all(target_os = "none", target_arch = "x86_64"))]
mod nvme;

/// Does nothing elsewhere: on Arm64, U-Boot does all this.
#[cfg(not(all(target_os = "none", target_arch = "x86_64")))]
fn main() {
    eprintln!("quell-boot is a program for bare machines; build it for x86_64-unknown-none");
    std::process::exit(2);
}
