//! Disks, networks and other PCI functions: those of the machine, and those that a guest owns.

use std::path::PathBuf;

use crate::arch::Platform;
use anyhow::{Result, ensure};

/// A network that a guest is connected to.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub(crate) enum Network {
    /// QEMU's user network: the guest reaches the outside as this user does, and is not reached
    User,
}

/// The devices of one guest.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Devices {
    /// Images of disks, in the order in which the guest finds them.
    pub(crate) disks: Vec<PathBuf>,
    /// Its network.
    pub(crate) network: Option<Network>,
    /// Functions that the machine has anyway, by address or kind.
    pub(crate) functions: Vec<String>,
}

impl Devices {
    /// Whether there are none.
    pub(crate) fn is_empty(&self) -> bool {
        *self == Self::default()
    }

    /// Checks that the images are there.
    pub(crate) fn check(&self) -> Result<()> {
        if self.is_empty() {
            return Ok(());
        }
        for disk in &self.disks {
            ensure!(
                disk.is_file(),
                "there is no disk image at {}: `./quell image-debian` makes one",
                disk.display()
            );
        }
        for name in &self.functions {
            ensure!(
                !name.is_empty() && name.chars().all(|c| c.is_ascii_alphanumeric() || ":.-".contains(c)),
                "--device {name}: expected an address such as 00:04.0, or a kind such as nvme"
            );
        }
        Ok(())
    }

    /// The names by which the hypervisor gives them to the guest: addresses and kinds. The machine
    /// has no other functions of these kinds.
    pub(crate) fn names(&self) -> String {
        let disks = self.disks.iter().map(|_| "nvme");
        let network = self.network.map(|_| "virtio-net");
        let functions = self.functions.iter().map(String::as_str);
        disks.chain(network).chain(functions).collect::<Vec<_>>().join(" ")
    }

    /// QEMU's arguments. With an IOMMU unless software runs directly on the machine.
    pub(crate) fn arguments(&self, platform: Platform, has_iommu: bool) -> Vec<String> {
        let mut args = Vec::new();
        if self.is_empty() {
            return args;
        }
        let mut option = |name: &str, text: String| args.extend([name.to_owned(), text]);
        match (has_iommu, platform) {
            (false, _) => {}
            (true, Platform::X86_64) => option("-device", "amd-iommu,intremap=on".into()),
            (true, Platform::Aarch64(_)) => option("-machine", "iommu=smmuv3".into()),
        }
        // The hypervisor's serial ports are device 1 of an Arm machine, and every fourth device has
        // the same interrupt line.
        let mut places = (2..32).filter(|place| place % 4 != 1);
        let mut device = |mut text: String| {
            if let (Platform::Aarch64(_), Some(place)) = (platform, places.next()) {
                text += &format!(",addr={place:#x}");
            }
            option("-device", text);
        };
        for index in 0..self.disks.len() {
            device(format!("nvme,drive=disk{index},serial=quell{index}"));
        }
        if self.network.is_some() {
            // On the root bus: QEMU's IOMMU knows no functions behind ports (`docs/qemu.md`).
            device("virtio-net-pci,netdev=net0,disable-legacy=on,iommu_platform=on".into());
        }
        for (index, disk) in self.disks.iter().enumerate() {
            let file = disk.to_string_lossy().replace(',', ",,");
            args.extend(["-drive".into(), format!("if=none,id=disk{index},format=raw,file={file}")]);
        }
        match self.network {
            Some(Network::User) => args.extend(["-netdev".into(), "user,id=net0".into()]),
            None => {}
        }
        args
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_disk_and_network_is_a_function_that_is_named() {
        let devices = Devices {
            disks: vec!["/a,b".into(), "/c".into()],
            network: Some(Network::User),
            functions: vec!["00:05.0".into()],
        };
        assert_eq!(devices.names(), "nvme nvme virtio-net 00:05.0");
        let args = devices.arguments(Platform::X86_64, true).join(" ");
        assert!(args.starts_with("-device amd-iommu,intremap=on "));
        assert!(args.contains("id=disk0,format=raw,file=/a,,b"));
        assert!(args.contains("nvme,drive=disk1"));
        assert!(args.contains("virtio-net-pci,netdev=net0"));
        assert!(!devices.arguments(Platform::X86_64, false).join(" ").contains("iommu,"));
        assert!(
            Devices::default().arguments(Platform::X86_64, true).is_empty(),
            "no guest has devices: no IOMMU"
        );
    }

    #[test]
    fn a_disk_that_is_missing_is_named() {
        let devices = Devices { disks: vec!["/nowhere.img".into()], ..Devices::default() };
        let error = devices.check().unwrap_err().to_string();
        assert!(error.contains("/nowhere.img") && error.contains("image-debian"), "{error}");
    }
}
