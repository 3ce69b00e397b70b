//! Passes the linker script to the linker.

fn main() {
    println!("cargo::rerun-if-changed=../../crates/baremetal/image.ld");
    if std::env::var("CARGO_CFG_TARGET_OS").as_deref() == Ok("none") {
        let root = std::env::var("CARGO_MANIFEST_DIR").expect("cargo sets the manifest directory");
        println!("cargo::rustc-link-arg-bins=-T{root}/../../crates/baremetal/image.ld");
    }
}
