//! What the distribution's backports have: newer kernels and a newer emulator.

use super::{Apt, FETCHING, KEYRING, MIRROR, directory, find, kernel_packages, replace, unpack, unpack_to};
use crate::arch::Arch;
use anyhow::{Context, Result};
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::PoisonError;

/// A kernel newer than the distribution's own.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct NewerKernel {
    pub(crate) kernel: PathBuf,
    /// Its package and version.
    pub(crate) version: String,
}

impl NewerKernel {
    fn cached(place: &Path) -> Option<Self> {
        let kernel = place.join("vmlinuz");
        let version = fs::read_to_string(place.join("version")).ok()?;
        kernel.is_file().then_some(Self { kernel, version })
    }
}

/// A kernel newer than the distribution's own, from its backports; fetches its package if it is
/// missing.
pub(crate) fn newer_kernel(arch: Arch) -> Result<NewerKernel> {
    let _one_at_a_time = FETCHING.lock().unwrap_or_else(PoisonError::into_inner);
    let cache = directory();
    let place = cache.join(match arch {
        Arch::X86_64 => "guest-backports",
        Arch::Aarch64 => "guest-backports-aarch64",
    });
    if let Some(kernel) = NewerKernel::cached(&place) {
        return Ok(kernel);
    }
    let package = kernel_packages(arch)[0];
    let (apt, work, _) = at_backports(arch, &cache)?;
    let image = apt.kernel_behind(package, work.path()).context("the backports have no kernel")?;
    eprintln!("quell: fetching {image}");
    apt.run("apt-get", &["download", &image], work.path())?;
    let unpacked = unpack(work.path(), &image)?;
    fs::rename(find(&unpacked.root.join("boot"), "vmlinuz-")?, work.path().join("vmlinuz"))?;
    fs::write(work.path().join("version"), format!("{image} {}", unpacked.version))?;
    fs::remove_dir_all(&unpacked.root)?;
    fs::remove_file(&unpacked.archive)?;
    replace(&work.keep(), &place)?;
    NewerKernel::cached(&place).with_context(|| format!("{} is incomplete after fetching", place.display()))
}

/// The packages of a newer emulator.
const EMULATOR_PACKAGES: [&str; 5] =
    ["qemu-system-x86", "qemu-system-arm", "qemu-system-common", "qemu-system-data", "seabios"];

/// An emulator newer than the distribution's own, from its backports: the directory into which its
/// packages are unpacked; fetches them if they are missing.
pub(crate) fn newer_emulator() -> Result<PathBuf> {
    let _one_at_a_time = FETCHING.lock().unwrap_or_else(PoisonError::into_inner);
    let cache = directory();
    let place = cache.join("qemu-backports");
    // It is renamed only when it is complete.
    if place.is_dir() {
        return Ok(place);
    }
    let (apt, work, suite) = at_backports(Arch::X86_64, &cache)?;
    eprintln!("quell: fetching {}", EMULATOR_PACKAGES.join(", "));
    let wanted = EMULATOR_PACKAGES.map(|package| format!("{package}/{suite}"));
    let mut args = vec!["download"];
    args.extend(wanted.iter().map(String::as_str));
    apt.run("apt-get", &args, work.path()).context("the backports have no QEMU")?;
    let root = work.path().join("root");
    for package in EMULATOR_PACKAGES {
        unpack_to(&find(work.path(), &format!("{package}_"))?, &root)?;
    }
    replace(&root, &place)?;
    Ok(place)
}

/// Apt for the backports of the distribution with up-to-date lists, a directory to fetch into, and
/// the suite's name.
fn at_backports(arch: Arch, cache: &Path) -> Result<(Apt, tempfile::TempDir, String)> {
    fs::create_dir_all(cache)?;
    let work = tempfile::Builder::new().prefix("fetch-").tempdir_in(cache).context("cannot fetch")?;
    let release = fs::read_to_string("/etc/os-release").context("cannot tell the distribution")?;
    let (suite, sources) = backports(&release).context("only Debian's backports are known")?;
    let apt = match arch {
        Arch::X86_64 => Apt::private(&cache.join("apt-backports"))?,
        Arch::Aarch64 => Apt::foreign("arm64", &cache.join("apt-backports-arm64"))?,
    };
    let apt = apt.with_sources(&sources)?;
    apt.run("apt-get", &["update"], work.path()).context("apt-get update failed for the backports")?;
    Ok((apt, work, suite))
}

/// The backports of the distribution that `/etc/os-release` describes: their name, and a line for
/// apt's list of sources.
pub(super) fn backports(release: &str) -> Option<(String, String)> {
    let suite = format!("{}-backports", codename(release)?);
    let sources = format!("deb [signed-by={KEYRING}] {MIRROR}/debian {suite} main\n");
    Some((suite, sources))
}

/// The codename of the Debian that `/etc/os-release` describes.
pub(super) fn codename(release: &str) -> Option<&str> {
    let value = |key: &str| {
        let line = release.lines().find_map(|line| line.strip_prefix(key)?.strip_prefix('='));
        line.map(|value| value.trim_matches('"'))
    };
    let codename = value("VERSION_CODENAME").filter(|name| name.chars().all(|c| c.is_ascii_lowercase()))?;
    (value("ID") == Some("debian")).then_some(codename)
}
