//! QEMU defines the functions that the plugin calls: they are resolved when it is loaded.

fn main() {
    println!("cargo::rerun-if-changed=build.rs");
    println!("cargo::rustc-cdylib-link-arg=-Wl,-z,undefs");
}
