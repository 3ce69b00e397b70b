//! Passes the linker script to the linker.

fn main() {
    println!("cargo::rerun-if-changed=../../crates/baremetal/image.ld");
    if std::env::var("CARGO_CFG_TARGET_OS").as_deref() == Ok("none") {
        // Relative to the workspace, where cargo runs the compiler: a tree that was copied with what is built links by its own script.
        println!("cargo::rustc-link-arg-bins=-Tcrates/baremetal/image.ld");
    }
}
