//! The kernel of a hypervisor whose guests own devices: that of the stock guest has no driver for
//! AMD's IOMMUs. It is the distribution's usual one, for machines of all kinds.

use super::{KVM_MODULES, kept, with_lists};
use anyhow::{Context, Result, ensure};
use std::fs;
use std::path::{Path, PathBuf};

/// Debian's package that depends on the newest one.
const PACKAGE: &str = "linux-image-amd64";
/// The modules that give devices to guests, in the order of loading.
const VFIO_MODULES: [&str; 5] =
    ["vfio.ko", "vfio_iommu_type1.ko", "vfio_virqfd.ko", "vfio-pci-core.ko", "vfio-pci.ko"];
/// What this kernel's KVM needs in addition.
const FURTHER_MODULE: &str = "ccp.ko";

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct OwningKernel {
    pub(crate) kernel: PathBuf,
    /// Its modules for KVM and for devices of guests, in the order of loading.
    pub(crate) modules: Vec<PathBuf>,
    /// Its package and version.
    pub(crate) version: String,
}

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
    kept("guest-owning", OwningKernel::cached, OwningKernel::cached, |new| {
        with_lists(new, |apt| {
            let image = apt.kernel_behind(PACKAGE, new.work.path());
            let image = image.with_context(|| format!("apt does not know {PACKAGE}, which Debian has"))?;
            eprintln!("quell: fetching {image}");
            let version = apt.kernel(&image, &names(), new)?;
            for name in names() {
                let module = new.kept.join("modules").join(name);
                ensure!(module.is_file(), "the package {image} has no {name}");
            }
            Ok(fs::write(new.kept.join("version"), version)?)
        })
    })
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
