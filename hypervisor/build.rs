//! Passes the linker script to the linker for the bare-metal image, and for nothing else.

fn main() {
    let of_target = |name: &str| std::env::var(format!("CARGO_CFG_TARGET_{name}")).unwrap_or_default();
    let script = if of_target("ARCH") == "aarch64" { "image-aarch64.ld" } else { "image.ld" };
    println!("cargo::rerun-if-changed={script}");
    if of_target("OS") == "none" {
        let root = std::env::var("CARGO_MANIFEST_DIR").expect("cargo sets the manifest directory");
        println!("cargo::rustc-link-arg-bins=-T{root}/{script}");
    }
}
