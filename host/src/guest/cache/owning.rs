//! The kernel of a hypervisor whose guests own devices: that of the stock guest has no driver for
//! AMD's IOMMUs. It is the distribution's usual one, for machines of all kinds.

use super::{Apt, FETCHING, KVM_MODULES, directory, find, keep_modules, replace, unpack};
use anyhow::{Context, Result, ensure};
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::PoisonError;

/// Debian's package that depends on the newest one.
const PACKAGE: &str = "linux-image-amd64";
/// The modules that give devices to guests, in the order of loading.
const VFIO_MODULES: [&str; 5] =
    ["vfio.ko", "vfio_iommu_type1.ko", "vfio_virqfd.ko", "vfio-pci-core.ko", "vfio-pci.ko"];
/// What this kernel's KVM needs in addition.
const FURTHER_MODULE: &str = "ccp.ko";

/// The kernel.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct OwningKernel {
    pub(crate) kernel: PathBuf,
    /// Its modules for KVM and for devices of guests, in the order of loading.
    pub(crate) modules: Vec<PathBuf>,
    /// Its package and version.
    pub(crate) version: String,
}

/// The names of all modules, in the order of loading.
fn names() -> Vec<&'static str> {
    [&[FURTHER_MODULE], &KVM_MODULES[..], &VFIO_MODULES].concat()
}

impl OwningKernel {
    fn cached(place: &Path) -> Option<Self> {
        let kernel = place.join("vmlinuz");
        let version = fs::read_to_string(place.join("version")).ok()?;
        let modules: Vec<_> = names().into_iter().map(|name| place.join("modules").join(name)).collect();
        let is_whole = kernel.is_file() && modules.iter().all(|module| module.is_file());
        is_whole.then_some(Self { kernel, modules, version })
    }
}

/// The kernel; fetches its package if it is missing.
pub(crate) fn owning_kernel() -> Result<OwningKernel> {
    let _one_at_a_time = FETCHING.lock().unwrap_or_else(PoisonError::into_inner);
    let cache = directory();
    let place = cache.join("guest-owning");
    if let Some(kernel) = OwningKernel::cached(&place) {
        return Ok(kernel);
    }
    fs::create_dir_all(&cache)
        .with_context(|| format!("cannot make the cache directory {}", cache.display()))?;
    let work = tempfile::Builder::new().prefix("fetch-").tempdir_in(&cache).context("cannot fetch")?;
    if let Err(error) = fetch(&Apt::system(), work.path()) {
        eprintln!("quell: {error:#}");
        eprintln!("quell: trying again with package lists of our own");
        let private = Apt::private(&cache.join("apt"))?;
        private.run("apt-get", &["update"], work.path()).context("apt-get update failed")?;
        fetch(&private, work.path())?;
    }
    replace(&work.keep(), &place)?;
    OwningKernel::cached(&place).with_context(|| format!("{} is incomplete after fetching", place.display()))
}

/// Fetches and unpacks into `work`: `vmlinuz`, `modules/`, `version`.
fn fetch(apt: &Apt, work: &Path) -> Result<()> {
    let image = apt.kernel_behind(PACKAGE, work);
    let image = image.with_context(|| format!("apt does not know {PACKAGE}, which Debian has"))?;
    eprintln!("quell: fetching {image}");
    apt.run("apt-get", &["download", &image], work)?;
    let unpacked = unpack(work, &image)?;
    fs::rename(find(&unpacked.root.join("boot"), "vmlinuz-")?, work.join("vmlinuz"))?;
    let modules = work.join("modules");
    keep_modules(&unpacked.root, &names(), &modules)?;
    for name in names() {
        ensure!(modules.join(name).is_file(), "the package {image} has no {name}");
    }
    fs::write(work.join("version"), format!("{image} {}", unpacked.version))?;
    fs::remove_dir_all(&unpacked.root)?;
    fs::remove_file(&unpacked.archive)?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn modules_are_loaded_after_those_that_they_use() {
        let names = names();
        let at = |name: &str| names.iter().position(|other| *other == name).expect("is there");
        assert!(at("ccp.ko") < at("kvm-amd.ko") && at("irqbypass.ko") < at("vfio-pci-core.ko"));
        assert!(at("vfio.ko") < at("vfio_iommu_type1.ko") && at("vfio-pci-core.ko") < at("vfio-pci.ko"));
    }

    #[test]
    fn a_cache_without_a_module_is_not_used() {
        let directory = tempfile::tempdir().expect("makes");
        let place = directory.path();
        fs::create_dir(place.join("modules")).expect("makes");
        for name in ["vmlinuz", "version"]
            .map(str::to_owned)
            .into_iter()
            .chain(names().into_iter().map(|name| format!("modules/{name}")))
        {
            assert_eq!(OwningKernel::cached(place), None, "without {name}");
            fs::write(place.join(name), "x").expect("writes");
        }
        assert_eq!(OwningKernel::cached(place).expect("is whole").version, "x");
    }
}
