//! What the distribution's backports have: newer kernels and a newer emulator; and kernels of
//! other releases.

use super::debian::sources;
use super::{Apt, KEYRING, MIRROR, New, NotToBeHad, find, kept, kernel_packages, unpack_to};
use crate::arch::Arch;
use anyhow::{Context, Result, ensure};
use std::fs;
use std::path::{Path, PathBuf};

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct OtherKernel {
    pub(crate) kernel: PathBuf,
    /// Its package and version.
    pub(crate) version: String,
}

impl OtherKernel {
    fn cached(place: &Path) -> Option<Self> {
        let kernel = place.join("vmlinuz");
        let version = fs::read_to_string(place.join("version")).ok()?;
        kernel.is_file().then_some(Self { kernel, version })
    }

    fn fetch(apt: &Apt, package: &str, new: &New) -> Result<()> {
        let image = apt.kernel_behind(package, new.work.path());
        let image = image.ok_or_else(|| NotToBeHad(format!("there is no kernel behind {package}")))?;
        eprintln!("quell: fetching {image}");
        Ok(fs::write(new.kept.join("version"), apt.kernel(&image, &[], new)?)?)
    }
}

/// A kernel newer than the distribution's own, from its backports; fetches its package if it is
/// missing.
pub(crate) fn newer_kernel(arch: Arch) -> Result<OtherKernel> {
    let name = match arch {
        Arch::X86_64 => "guest-backports",
        Arch::Aarch64 => "guest-backports-aarch64",
    };
    kept(name, OtherKernel::cached, OtherKernel::cached, |new| {
        let (apt, _) = at_backports(arch, new)?;
        OtherKernel::fetch(&apt, kernel_packages(arch)[0], new)
    })
}

/// The kernel that `package` depends on in another release of Debian; fetches its package if it is
/// missing.
pub(crate) fn kernel_of(suite: &str, arch: Arch, package: &str) -> Result<OtherKernel> {
    kept(&format!("guest-{suite}-{package}"), OtherKernel::cached, OtherKernel::cached, |new| {
        let is_debian = Path::new(KEYRING).is_file();
        ensure!(is_debian, NotToBeHad(format!("{suite} is Debian's, and there is no {KEYRING}")));
        let apt = Apt::foreign(arch.debian(), &new.cache.join(format!("apt-{suite}-{}", arch.debian())))?;
        let apt = apt.with_sources(&sources(suite, Some(KEYRING)))?;
        if let Err(error) = apt.run("apt-get", &["update"], new.work.path()) {
            // What apt says of a release that was moved elsewhere.
            let is_gone = format!("{error:#}").contains("does not have a Release file");
            let lists = format!("there are no package lists of {suite}");
            return Err(if is_gone { error.context(NotToBeHad(lists)) } else { error.context(lists) });
        }
        OtherKernel::fetch(&apt, package, new)
    })
}

const EMULATOR_PACKAGES: [&str; 5] =
    ["qemu-system-x86", "qemu-system-arm", "qemu-system-common", "qemu-system-data", "seabios"];

/// An emulator newer than the distribution's own, from its backports: the directory into which its
/// packages are unpacked; fetches them if they are missing.
pub(crate) fn newer_emulator() -> Result<PathBuf> {
    // It is renamed only when it is complete.
    let unpacked = |place: &Path| place.is_dir().then(|| place.to_owned());
    kept("qemu-backports", unpacked, unpacked, |new| {
        let (apt, suite) = at_backports(Arch::X86_64, new)?;
        eprintln!("quell: fetching {}", EMULATOR_PACKAGES.join(", "));
        let wanted = EMULATOR_PACKAGES.map(|package| format!("{package}/{suite}"));
        let mut args = vec!["download"];
        args.extend(wanted.iter().map(String::as_str));
        apt.run("apt-get", &args, new.work.path()).context("the backports have no QEMU")?;
        for package in EMULATOR_PACKAGES {
            unpack_to(&find(new.work.path(), &format!("{package}_"))?, &new.kept)?;
        }
        Ok(())
    })
}

/// Apt for the backports of the distribution with up-to-date lists, and the suite's name.
fn at_backports(arch: Arch, new: &New) -> Result<(Apt, String)> {
    let release = fs::read_to_string("/etc/os-release").context("cannot tell the distribution")?;
    let (suite, sources) =
        backports(&release).ok_or_else(|| NotToBeHad("only Debian's backports are known".into()))?;
    let apt = match arch {
        Arch::X86_64 => Apt::private(&new.cache.join("apt-backports"))?,
        Arch::Aarch64 => Apt::foreign("arm64", &new.cache.join("apt-backports-arm64"))?,
    };
    let apt = apt.with_sources(&sources)?;
    apt.run("apt-get", &["update"], new.work.path()).context("apt-get update failed for the backports")?;
    Ok((apt, suite))
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
