//! What the distribution's backports have: newer kernels and a newer emulator; and kernels of
//! other releases.

use super::debian::sources;
use super::{
    Apt, KEYRING, KVM_MODULES, MIRROR, New, NotToBeHad, OtherKernel, find, kept, kept_kernel,
    kernel_packages, unpack_to, with_lists,
};
use crate::prelude::*;

/// Fetches the kernel behind `package`, and these of its modules.
fn fetch(apt: &Apt, package: &str, modules: &[&str], new: &New) -> Result<String> {
    let image = apt.kernel_behind(package, new.work.path());
    let image = image.ok_or_else(|| NotToBeHad(format!("there is no kernel behind {package}")))?;
    eprintln!("quell: fetching {image}");
    apt.kernel(&image, modules, new)
}

/// A kernel newer than the distribution's own, from its backports; fetches its package if it is
/// missing.
pub(crate) fn newer_kernel(arch: Arch) -> Result<OtherKernel> {
    let name = match arch {
        Arch::X86_64 => "guest-backports",
        Arch::Aarch64 => "guest-backports-aarch64",
    };
    kept_kernel(name, &[], |new| fetch(&at_backports(arch, new)?.0, kernel_packages(arch)[0], &[], new))
}

/// The kernel that `package` depends on in another release of Debian; fetches its package if it is
/// missing.
pub(crate) fn kernel_of(suite: &str, arch: Arch, package: &str) -> Result<OtherKernel> {
    kept_kernel(&format!("guest-{suite}-{package}"), &[], |new| {
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
        fetch(&apt, package, &[], new)
    })
}

/// The modules of a kernel for devices of guests, in the order of loading: what its KVM needs in
/// addition, KVM, and what gives devices to guests.
fn owning_modules() -> Vec<&'static str> {
    const VFIO: [&str; 5] =
        ["vfio.ko", "vfio_iommu_type1.ko", "vfio_virqfd.ko", "vfio-pci-core.ko", "vfio-pci.ko"];
    [&["ccp.ko"], &KVM_MODULES[..], &VFIO].concat()
}

/// The kernel of a hypervisor whose guests own devices, with its modules: that of the stock guest
/// has no driver for AMD's IOMMUs. It is the distribution's usual one, for machines of all kinds.
pub(crate) fn owning_kernel() -> Result<OtherKernel> {
    let modules = owning_modules();
    kept_kernel("guest-owning", &modules, |new| {
        with_lists(new, |apt| fetch(apt, "linux-image-amd64", &modules, new))
    })
}

const EMULATOR_PACKAGES: [&str; 5] =
    ["qemu-system-x86", "qemu-system-arm", "qemu-system-common", "qemu-system-data", "seabios"];

/// An emulator newer than the distribution's own, from its backports: the directory into which its
/// packages are unpacked; fetches them if they are missing.
pub(crate) fn newer_emulator() -> Result<PathBuf> {
    kept("qemu-backports", &[], false, |new| {
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn modules_are_loaded_after_those_that_they_use() {
        let names = owning_modules();
        let at = |name: &str| names.iter().position(|other| *other == name).expect("is there");
        assert!(at("ccp.ko") < at("kvm-amd.ko") && at("irqbypass.ko") < at("vfio-pci-core.ko"));
        assert!(at("vfio.ko") < at("vfio_iommu_type1.ko") && at("vfio-pci-core.ko") < at("vfio-pci.ko"));
    }
}
