//! The source tree, and the images that are built from it.
//!
//! The images have targets of their own, so they are built by inner runs of cargo. Those use a target
//! directory of their own: the outer cargo may hold the lock of the usual one.

use anyhow::{Context, Result, ensure};
use std::env;
use std::fs;
use std::io::{self, IsTerminal};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

/// Target of everything that runs without an operating system.
const BARE_TARGET: &str = "x86_64-unknown-none";
/// Target of what runs inside Linux guests.
const LINUX_TARGET: &str = "x86_64-unknown-linux-musl";

/// One program that is built for a target other than the host.
#[derive(Clone, Copy)]
pub(crate) struct Image {
    package: &'static str,
    binary: &'static str,
    target: &'static str,
    features: &'static [&'static str],
    strip: bool,
    /// Distinguishes it from an image of the same binary with other features.
    variant: Option<&'static str>,
}

impl Image {
    /// A program for bare machines, in a package of the same name.
    const fn bare(name: &'static str) -> Self {
        Self { package: name, binary: name, target: BARE_TARGET, features: &[], strip: false, variant: None }
    }

    /// One of the workloads.
    const fn workload(binary: &'static str) -> Self {
        let package = "quell-workloads";
        Self { package, binary, target: LINUX_TARGET, features: &[], strip: true, variant: None }
    }
}

/// The hypervisor.
pub(crate) const HYPERVISOR: Image = Image { features: &["image"], ..Image::bare("quell-hypervisor") };

/// The hypervisor that can serve flush hypercalls wrongly.
pub(crate) const HYPERVISOR_WITH_DEFECTS: Image =
    Image { features: &["image", "defects"], variant: Some("defects"), ..HYPERVISOR };

/// The image that checks and measures TLB flushing.
pub(crate) const TLBCHECK: Image = Image::bare("quell-tlbcheck");

/// The bare guest that counts instructions and does wrong things.
pub(crate) const PROBE: Image = Image::bare("quell-probe");

/// The workload that does nothing but provoke TLB flushes.
pub(crate) const THRASH: Image = Image::workload("thrash");

/// The workload that looks for stale translations.
pub(crate) const STALE: Image = Image::workload("stale");

/// The workload that turns a PCI device's ROM on and off under memory load.
pub(crate) const MMTEST: Image = Image::workload("mmtest");

/// The root of the source tree that this tool was built from.
pub(crate) fn root() -> &'static Path {
    let host = Path::new(env!("CARGO_MANIFEST_DIR"));
    host.parent().unwrap_or(host)
}

/// Directory under cargo's target directory for what this tool makes.
pub(crate) fn target_dir(name: &str) -> PathBuf {
    let target = env::var_os("CARGO_TARGET_DIR").map_or_else(|| root().join("target"), PathBuf::from);
    root().join(target).join(name)
}

/// Cargo, as the outer cargo was called, in the source tree and without the outer one's flags:
/// `RUSTFLAGS` would replace the per-target flags of `.cargo/config.toml`.
pub(crate) fn cargo() -> Command {
    let mut command = Command::new(env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
    command.current_dir(root()).stdin(Stdio::null());
    command.env_remove("RUSTFLAGS").env_remove("CARGO_ENCODED_RUSTFLAGS");
    command
}

/// Builds `image` and returns the path of its ELF file.
pub(crate) fn build(image: Image) -> Result<PathBuf> {
    let directory = target_dir("images");
    let mut command = cargo();
    command.args(["build", "--release", "--package", image.package]);
    command.args(["--bin", image.binary, "--target", image.target]);
    command.arg("--target-dir").arg(&directory);
    if !image.features.is_empty() {
        command.arg("--features").arg(image.features.join(","));
    }
    if image.strip {
        command.env("CARGO_PROFILE_RELEASE_STRIP", "true");
    }
    if !io::stderr().is_terminal() {
        command.arg("--quiet");
    }
    let status = command.status().context("cannot start cargo")?;
    ensure!(status.success(), "building {} for {} failed ({status})", image.binary, image.target);
    let built = directory.join(image.target).join("release").join(image.binary);
    let Some(variant) = image.variant else { return Ok(built) };
    // The next build of the same binary replaces the file.
    let kept = built.with_added_extension(variant);
    fs::copy(&built, &kept).with_context(|| format!("cannot copy {}", built.display()))?;
    Ok(kept)
}
