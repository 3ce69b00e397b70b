//! What the machines are made from, for each architecture, and its versions.

use super::record::{Facts, owned};
use super::way::Way;
use crate::arch::{Arch, Platform};
use crate::guest::peer::arm::Kernel;
use crate::guest::{cache, peer};
use crate::results;
use crate::vm::{Hypervisor, StockGuest};
use anyhow::{Context, Result};
use sha2::{Digest, Sha256};
use std::cell::OnceCell;
use std::fs;

/// The digits of a hash that are kept to tell images apart.
const HASH_DIGITS: usize = 16;

/// The parts of one architecture.
pub(crate) struct Parts {
    pub(crate) stock: StockGuest,
    pub(crate) hypervisor: Hypervisor,
}

impl Parts {
    fn prepare(arch: Arch) -> Result<Self> {
        Ok(Self { stock: StockGuest::prepare(arch)?, hypervisor: Hypervisor::build(arch)? })
    }

    /// The first digits of the hashes of the hypervisor and of the guest's initial RAM disk.
    fn hashes(&self) -> Result<[(&'static str, String); 2]> {
        let hypervisor = fs::read(self.hypervisor.image()).context("cannot read the hypervisor")?;
        let initrd = self.stock.initrd(None);
        Ok([("hypervisor_sha256", digest(&hypervisor)), ("initrd_sha256", digest(&initrd))])
    }
}

/// The parts of both architectures. Each is prepared when it is needed.
#[derive(Default)]
pub(crate) struct Kit {
    amd64: OnceCell<Parts>,
    arm: OnceCell<Parts>,
}

impl Kit {
    /// The parts for a platform.
    pub(crate) fn of(&self, platform: Platform) -> Result<&Parts> {
        let arch = platform.arch();
        let cell = match arch {
            Arch::X86_64 => &self.amd64,
            Arch::Aarch64 => &self.arm,
        };
        if let Some(parts) = cell.get() {
            return Ok(parts);
        }
        let parts = Parts::prepare(arch)?;
        Ok(cell.get_or_init(|| parts))
    }

    /// The versions of everything that runs in these ways.
    pub(crate) fn versions(&self, ways: &[Way]) -> Result<Facts> {
        let has_amd64 = ways.iter().any(|way| way.platform() == Platform::X86_64);
        let mut versions = if has_amd64 { self.amd64_versions()? } else { owned(results::versions(None)) };
        for (name, version) in self.arm_versions(ways)? {
            versions.insert(format!("{name}_aarch64"), version);
        }
        Ok(versions)
    }

    fn amd64_versions(&self) -> Result<Facts> {
        let parts = self.of(Platform::X86_64)?;
        let mut versions = owned(results::versions(Some(parts.stock.versions())));
        versions.extend(parts.hashes()?.map(|(name, hash)| (name.to_owned(), hash)));
        versions.insert("peer_kernel".to_owned(), parts.stock.versions().kernel.clone());
        versions.insert("peer_qemu".to_owned(), peer::qemu_version()?);
        Ok(versions)
    }

    fn arm_versions(&self, ways: &[Way]) -> Result<Vec<(&'static str, String)>> {
        let Some(way) = ways.iter().find(|way| way.platform() != Platform::X86_64) else {
            return Ok(Vec::new());
        };
        let parts = self.of(way.platform())?;
        let packages = parts.stock.versions();
        let mut versions =
            vec![("guest_kernel", packages.kernel.clone()), ("guest_busybox", packages.busybox.clone())];
        versions.extend(parts.hashes()?);
        for kernel in [Kernel::Stock, Kernel::Newer] {
            if ways.contains(&Way::KvmOnArm(kernel)) {
                versions.push((kernel.version_name(), kernel.file(&parts.stock)?.1));
                versions.push(("peer_qemu", cache::foreign_qemu()?.version));
            }
        }
        Ok(versions)
    }
}

/// The beginning of the SHA-256 of an image.
fn digest(bytes: &[u8]) -> String {
    let digits = Sha256::digest(bytes).iter().map(|byte| format!("{byte:02x}")).collect::<String>();
    digits.chars().take(HASH_DIGITS).collect()
}
