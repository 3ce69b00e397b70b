//! Disks, networks and other PCI functions: those of the machine, and those that a guest owns.

use std::path::PathBuf;

use crate::arch::Platform;
use anyhow::{Result, bail, ensure};

/// A network that a guest is connected to.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub(crate) enum Network {
    /// QEMU's user network: the guest reaches the outside as this user does, and is not reached
    User,
    /// The same without the outside: what is sent to port 9 of [`SINK`] is taken and forgotten, for
    /// measurements
    #[value(skip)]
    Sink,
}

/// The address of the peer in [`Network::Sink`].
pub(crate) const SINK: &str = "10.0.2.100";

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

    /// Whether the stock kernel boots from a disk: it does not if an initial RAM disk is given, or
    /// a command, which is run in one.
    pub(crate) fn boot(&self, has_initrd: bool, has_command: bool) -> bool {
        !self.disks.is_empty() && !has_initrd && !has_command
    }

    /// Checks that the images are there, and that the platform has devices for guests.
    pub(crate) fn check(&self, platform: Platform) -> Result<()> {
        if self.is_empty() {
            return Ok(());
        }
        if platform != Platform::X86_64 {
            bail!("guests own devices on x86_64 only: leave out --disk, --net and --device for aarch64");
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
}

/// The devices of a machine: QEMU's arguments, and for each guest the names by which the hypervisor
/// gives it its own.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Built {
    pub(crate) args: Vec<String>,
    pub(crate) names: Vec<String>,
}

/// The first place on the bus for devices of guests: others find their own below.
const FIRST_PLACE: u32 = 8;

/// Builds the devices of guests, with an IOMMU unless software runs directly on the machine.
///
/// All are on the root bus: QEMU's IOMMU knows no functions behind ports (`docs/qemu.md`).
pub(crate) fn build<'d>(guests: impl Iterator<Item = &'d Devices>, has_iommu: bool) -> Built {
    let mut built = Built::default();
    let mut places = FIRST_PLACE..;
    let mut has_devices = false;
    for devices in guests {
        has_devices |= !devices.is_empty();
        let mut names = devices.functions.clone();
        let mut add = |device: &dyn Fn(u32) -> [String; 3]| {
            let place = places.next().unwrap_or_default();
            let [device, way, backend] = device(place);
            built.args.extend(["-device".to_owned(), format!("{device},addr={place:#x}"), way, backend]);
            names.push(format!("00:{place:02x}.0"));
        };
        for disk in &devices.disks {
            let file = disk.to_string_lossy().replace(',', ",,");
            add(&|place| {
                [
                    format!("nvme,drive=disk{place},serial=disk{place}"),
                    "-drive".to_owned(),
                    format!("if=none,id=disk{place},format=raw,file={file}"),
                ]
            });
        }
        if let Some(network) = devices.network {
            let settings = match network {
                Network::User => String::new(),
                Network::Sink => format!(",restrict=on,guestfwd=tcp:{SINK}:9-null"),
            };
            add(&|place| {
                [
                    format!("virtio-net-pci,netdev=net{place},disable-legacy=on,iommu_platform=on"),
                    "-netdev".to_owned(),
                    format!("user,id=net{place}{settings}"),
                ]
            });
        }
        built.names.push(names.join(" "));
    }
    if has_devices && has_iommu {
        // From QEMU 10 on DMA of devices that nobody owns would pass by default.
        built.args.splice(0..0, ["-device".to_owned(), "amd-iommu,intremap=on,pt=off".to_owned()]);
    }
    built
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_disk_and_network_is_a_function_that_one_guest_owns() {
        let web = Devices {
            disks: vec!["/a,b".into(), "/c".into()],
            network: Some(Network::User),
            functions: vec!["nvme".into()],
        };
        let db = Devices { network: Some(Network::Sink), ..Devices::default() };
        let built = build([&web, &Devices::default(), &db].into_iter(), true);
        assert_eq!(built.names, ["nvme 00:08.0 00:09.0 00:0a.0", "", "00:0b.0"]);
        let args = built.args.join(" ");
        assert!(args.starts_with("-device amd-iommu,intremap=on,pt=off "), "{args}");
        assert!(args.contains("format=raw,file=/a,,b"), "{args}");
        assert!(args.contains("virtio-net-pci,netdev=net10,disable-legacy=on,iommu_platform=on,addr=0xa"));
        assert!(args.contains("user,id=net11,restrict=on,guestfwd=tcp:10.0.2.100:9-null"), "{args}");
        assert!(args.contains("netdev=net11") && args.contains("addr=0xb"), "{args}");
        assert!(!build([&web].into_iter(), false).args.join(" ").contains("amd-iommu"));
        assert!(build([&Devices::default()].into_iter(), true).args.is_empty(), "no devices: no IOMMU");
    }

    #[test]
    fn a_disk_is_booted_unless_something_else_is_given() {
        let devices = Devices { disks: vec!["/disk.img".into()], ..Devices::default() };
        assert!(devices.boot(false, false));
        assert!(!devices.boot(true, false) && !devices.boot(false, true));
        assert!(!Devices::default().boot(false, false), "there is none");
    }

    #[test]
    fn a_disk_that_is_missing_is_named() {
        let devices = Devices { disks: vec!["/nowhere.img".into()], ..Devices::default() };
        let error = devices.check(Platform::X86_64).unwrap_err().to_string();
        assert!(error.contains("/nowhere.img") && error.contains("image-debian"), "{error}");
    }
}
