//! Passes the linker script to the linker for the bare-metal image only.

fn main() {
    let of_target = |name: &str| std::env::var(format!("CARGO_CFG_TARGET_{name}")).unwrap_or_default();
    let script = if of_target("ARCH") == "aarch64" { "image-aarch64.ld" } else { "image.ld" };
    println!("cargo::rerun-if-changed={script}");
    if of_target("OS") == "none" {
        // Relative to the workspace, where cargo runs the compiler: a tree that was copied together
        // with its build output links with its own script.
        println!("cargo::rustc-link-arg-bins=-Thypervisor/{script}");
    }
}
