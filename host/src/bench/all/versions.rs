//! The versions of what the machines are made from.

use super::way::Way;
use crate::arch::{Arch, Platform};
use crate::bench::lab::Lab;
use crate::guest::peer::arm::Kernel;
use crate::guest::{cache, peer};
use crate::results::{self, Facts};
use anyhow::{Context, Result};
use sha2::{Digest, Sha256};
use std::fs;

/// The digits of a hash that are kept to tell images apart.
const HASH_DIGITS: usize = 16;

impl Lab<'_> {
    /// The first digits of the hashes of the hypervisor and of the guest's initial RAM disk.
    fn hashes(&self, arch: Arch) -> Result<[(&'static str, String); 2]> {
        let hypervisor = fs::read(self.hypervisor(arch)?.image()).context("cannot read the hypervisor")?;
        let initrd = self.stock(arch)?.initrd(None);
        Ok([("hypervisor_sha256", digest(&hypervisor)), ("initrd_sha256", digest(&initrd))])
    }

    /// The versions of everything that runs in these ways.
    pub(crate) fn versions(&self, ways: &[Way]) -> Result<Facts> {
        let has_amd64 = ways.iter().any(|way| way.platform() == Platform::X86_64);
        let mut versions = if has_amd64 { self.amd64_versions()? } else { results::versions(None) };
        for (name, version) in self.arm_versions(ways)? {
            versions.insert(format!("{name}_aarch64"), version);
        }
        Ok(versions)
    }

    fn amd64_versions(&self) -> Result<Facts> {
        let packages = self.stock(Arch::X86_64)?.versions();
        let mut versions = results::versions(Some(packages));
        versions.extend(self.hashes(Arch::X86_64)?.map(|(name, hash)| (name.to_owned(), hash)));
        versions.insert("peer_kernel".to_owned(), packages.kernel.clone());
        versions.insert("peer_qemu".to_owned(), peer::qemu_version()?);
        Ok(versions)
    }

    fn arm_versions(&self, ways: &[Way]) -> Result<Vec<(&'static str, String)>> {
        if ways.iter().all(|way| way.platform() == Platform::X86_64) {
            return Ok(Vec::new());
        }
        let stock = self.stock(Arch::Aarch64)?;
        let packages = stock.versions();
        let mut versions =
            vec![("guest_kernel", packages.kernel.clone()), ("guest_busybox", packages.busybox.clone())];
        versions.extend(self.hashes(Arch::Aarch64)?);
        for kernel in [Kernel::Stock, Kernel::Newer] {
            if ways.contains(&Way::KvmOnArm(kernel)) {
                versions.push((kernel.version_name(), kernel.file(stock)?.1));
                versions.push(("peer_qemu", cache::foreign_qemu()?.version));
            }
        }
        Ok(versions)
    }
}

fn digest(bytes: &[u8]) -> String {
    let digits = Sha256::digest(bytes).iter().map(|byte| format!("{byte:02x}")).collect::<String>();
    digits.chars().take(HASH_DIGITS).collect()
}
