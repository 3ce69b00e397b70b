//! Passes a bare image's linker script to the linker, and nothing for other targets: the build
//! script of all images that start by `crates/baremetal`.

use std::path::Path;

fn main() {
    let variable = |name| std::env::var(name).unwrap_or_default();
    let script = match variable("CARGO_CFG_TARGET_ARCH").as_str() {
        "aarch64" => "image-aarch64.ld",
        _ => "image.ld",
    };
    // Packages are at different depths.
    let root = if Path::new("../Cargo.lock").exists() { ".." } else { "../.." };
    println!("cargo::rerun-if-changed={root}/crates/baremetal/{script}");
    if variable("CARGO_CFG_TARGET_OS") != "none" {
        return;
    }
    // Relative to the workspace, where cargo runs the compiler: a tree that was copied together
    // with its build output links with its own script.
    println!("cargo::rustc-link-arg-bins=-Tcrates/baremetal/{script}");
    if script == "image-aarch64.ld" {
        // Position-independent: the entry relocates the image.
        for argument in ["-pie", "-znotext", "--no-dynamic-linker", "--apply-dynamic-relocs"] {
            println!("cargo::rustc-link-arg-bins={argument}");
        }
    }
}
