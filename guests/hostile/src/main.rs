//! A bare guest that tries everything, for both architectures.
//!
//! The kernel command line consists of words: `test=NAME` with a name from the tables in
//! [`tests`](mod@tests); `attack=NAME` with a name from `hostile::attacks`; `seed=N`, which
//! determines everything random; `count=N`, the number of operations of each processor; `rounds=N`,
//! the number of repetitions, each with the next seed; `rest`, to wait for a byte from the serial
//! port before the storm and before the last checks. Results are sent to the report channel in
//! lines of JSON (`{"test":NAME,"result":"pass"}`, or `"fail"` with `"why"`), and in words to the
//! console; then the machine is switched off.
#![cfg_attr(target_os = "none", no_std, no_main)]

#[cfg(target_os = "none")]
mod guest;
#[cfg(target_os = "none")]
mod machine;
#[cfg(target_os = "none")]
mod tests;

/// Does nothing on an operating system.
#[cfg(not(target_os = "none"))]
fn main() {
    eprintln!(
        "quell-hostile is a program for bare machines; build it for aarch64-unknown-none-softfloat or x86_64-unknown-none"
    );
    std::process::exit(2);
}
