//! Disks, networks and other PCI functions: those of the machine, and those that a guest owns.

use super::kvm::{self, Vendor};
use crate::prelude::*;
use rustix::fs::FileType;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::os::unix::fs::MetadataExt;
use std::path;

#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub(crate) enum Network {
    /// QEMU's user network: the guest reaches what this user reaches, this computer's own services
    /// (127.0.0.1, as 10.0.2.2) among them, and is not reached
    User,
    /// The same without the outside: what is sent to port 9 of [`SINK`] is taken and forgotten, for
    /// measurements
    #[value(skip)]
    Sink,
}

pub(crate) const SINK: &str = "10.0.2.100";

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Devices {
    /// Images of NVMe disks, in the order in which the guest finds them.
    pub(crate) disks: Vec<PathBuf>,
    pub(crate) virtio_disks: Vec<PathBuf>,
    pub(crate) network: Option<Network>,
    /// Functions that the machine has anyway, by address or kind.
    pub(crate) functions: Vec<String>,
}

impl Devices {
    pub(crate) fn is_empty(&self) -> bool {
        *self == Self::default()
    }

    pub(crate) fn check(&self) -> Result<()> {
        if self.is_empty() {
            return Ok(());
        }
        for disk in self.disks.iter().chain(&self.virtio_disks) {
            driver(disk).with_context(|| {
                format!("there is no disk at {}: `./quell image-debian` makes one", disk.display())
            })?;
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

/// QEMU's arguments, and for each guest the names by which the hypervisor gives it its own.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Built {
    pub(crate) args: Vec<OsString>,
    pub(crate) names: Vec<String>,
}

const VIRTIO_DISK: &str = "virtio-blk-pci,disable-legacy=on,iommu_platform=on";

/// Places on the root bus for devices of guests: QEMU's own are below and above.
const PLACES: Range<u32> = 8..31;
/// On AMD64, the place among them whose id the interrupts of QEMU's I/O APIC have.
const IO_APIC: u32 = 0x14;

/// Builds the devices of guests, with an IOMMU unless software runs directly on the machine. All
/// are on the root bus: QEMU's IOMMU knows no functions behind ports (`docs/qemu.md`).
pub(crate) fn build<'d>(
    platform: Platform,
    guests: impl Iterator<Item = &'d Devices>,
    has_iommu: bool,
) -> Result<Built> {
    let guests: Vec<&Devices> = guests.collect();
    let owners = guests.iter().filter(|devices| !devices.is_empty()).count();
    let mut built = Built::default();
    if owners > 0 && has_iommu {
        let [name, iommu] = match platform {
            // From QEMU 10 on DMA of devices that nobody owns would pass by default.
            Platform::Bochs(_) => bail!("Bochs has no IOMMU, so guests have no devices there"),
            Platform::X86_64 | Platform::Kvm(Vendor::Amd) => ["-device", "amd-iommu,intremap=on,pt=off"],
            // Tables of four levels, as the processor's.
            Platform::Kvm(Vendor::Intel) => ["-device", "intel-iommu,intremap=on,aw-bits=48"],
            Platform::Aarch64(_) => ["-machine", "iommu=smmuv3"],
        };
        built.args = vec![name.into(), iommu.into()];
        if let Platform::Kvm(_) = platform {
            built.args.extend(kvm::WITH_IOMMU.map(OsString::from));
        }
    }
    let mut places = Places::new(platform, owners)?;
    for devices in guests {
        let mut names = devices.functions.clone();
        let mut add = |device: &dyn Fn(u32) -> Result<(String, &'static str, OsString)>| -> Result<()> {
            let place = places.next()?;
            let (device, way, backend) = device(place)?;
            let device = format!("{device},addr={place:#x}");
            built.args.extend(["-device".into(), device.into(), way.into(), backend]);
            names.push(format!("00:{place:02x}.0"));
            Ok(())
        };
        let nvme = devices.disks.iter().map(|disk| ("nvme", disk));
        let virtio = devices.virtio_disks.iter().map(|disk| (VIRTIO_DISK, disk));
        for (kind, disk) in nvme.chain(virtio) {
            add(&|place| {
                let device = format!("{kind},drive=disk{place},serial=disk{place}");
                Ok((device, "-drive", drive(&format!("if=none,id=disk{place}"), disk)?))
            })?;
        }
        if let Some(network) = devices.network {
            let settings = match network {
                Network::User => String::new(),
                Network::Sink => format!(",restrict=on,guestfwd=tcp:{SINK}:9-null"),
            };
            add(&|place| {
                let device = format!("virtio-net-pci,netdev=net{place},disable-legacy=on,iommu_platform=on");
                Ok((device, "-netdev", format!("user,id=net{place}{settings}").into()))
            })?;
        }
        if !devices.is_empty() {
            places.guest += 1;
        }
        built.names.push(names.join(" "));
    }
    Ok(built)
}

/// Places for the devices of one guest after the other. On Arm a place has one of four interrupt
/// lines, by its two lowest bits, and a line is one guest's.
struct Places {
    free: Vec<u32>,
    /// The interrupt lines of each guest; none where devices send messages.
    lines: Option<Vec<Vec<u32>>>,
    guest: usize,
}

impl Places {
    /// Lines for guests. The hypervisor's serial ports, which are device 1, have the other one.
    const LINES: [u32; 3] = [0, 2, 3];

    fn new(platform: Platform, guests: usize) -> Result<Self> {
        let mut free: Vec<u32> = PLACES.collect();
        let lines = match platform {
            Platform::X86_64 | Platform::Kvm(_) | Platform::Bochs(_) => {
                free.retain(|place| *place != IO_APIC);
                None
            }
            Platform::Aarch64(_) => {
                ensure!(
                    guests <= Self::LINES.len(),
                    "{guests} guests have devices: there are interrupt lines for {} on aarch64",
                    Self::LINES.len()
                );
                let of = |guest| Self::LINES.into_iter().skip(guest).step_by(guests).collect();
                Some((0..guests).map(of).collect())
            }
        };
        Ok(Self { free, lines, guest: 0 })
    }

    fn next(&mut self) -> Result<u32> {
        let lines = self.lines.as_ref().and_then(|lines| lines.get(self.guest));
        let found = self.free.iter().position(|place| lines.is_none_or(|lines| lines.contains(&(place % 4))));
        let found = found.context("the machine's bus has no place left for another disk or network card")?;
        Ok(self.free.remove(found))
    }
}

/// A path as the value of an option: QEMU ends values at a comma that is not written twice.
pub(crate) fn value(path: &Path) -> OsString {
    let bytes = path.as_os_str().as_bytes().iter();
    let doubled = bytes.flat_map(|&byte| [byte, byte].into_iter().take(if byte == b',' { 2 } else { 1 }));
    OsString::from_vec(doubled.collect())
}

/// A value of `-drive`: these options, and this disk, a file or a block device. Its name is taken
/// for nothing else: not for a protocol's (`a:b.img`), nor for further options (`a,b.img`).
pub(crate) fn drive(options: &str, disk: &Path) -> Result<OsString> {
    let driver = driver(disk)?;
    let path = path::absolute(disk).with_context(|| format!("no {}", disk.display()))?;
    let options = format!("{options},format=raw,file.driver={driver},file.filename=");
    Ok([OsStr::new(&options), &value(&path)].into_iter().collect())
}

pub(crate) fn driver(disk: &Path) -> Result<&'static str> {
    let data = fs::metadata(disk).with_context(|| format!("cannot use {}", disk.display()))?;
    let kind = FileType::from_raw_mode(data.mode());
    let Some(driver) = driver_for(kind) else {
        bail!("{} is neither a file nor a block device", disk.display())
    };
    Ok(driver)
}

const fn driver_for(kind: FileType) -> Option<&'static str> {
    match kind {
        FileType::RegularFile => Some("file"),
        FileType::BlockDevice => Some("host_device"),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const THIS: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/Cargo.toml");

    fn text(built: &Built) -> String {
        built.args.join(" ".as_ref()).to_string_lossy().into_owned()
    }

    #[test]
    fn each_disk_and_network_is_a_function_that_one_guest_owns() {
        let web = Devices {
            disks: vec![THIS.into(), THIS.into()],
            network: Some(Network::User),
            functions: vec!["nvme".into()],
            ..Devices::default()
        };
        let db =
            Devices { virtio_disks: vec![THIS.into()], network: Some(Network::Sink), ..Devices::default() };
        let built = build(Platform::X86_64, [&web, &Devices::default(), &db].into_iter(), true).unwrap();
        assert_eq!(built.names, ["nvme 00:08.0 00:09.0 00:0a.0", "", "00:0b.0 00:0c.0"]);
        let args = text(&built);
        assert!(args.starts_with("-device amd-iommu,intremap=on,pt=off "), "{args}");
        assert!(args.contains("if=none,id=disk8,format=raw,file.driver=file,file.filename="), "{args}");
        assert!(args.contains("virtio-net-pci,netdev=net10,disable-legacy=on,iommu_platform=on,addr=0xa"));
        let disk = "virtio-blk-pci,disable-legacy=on,iommu_platform=on,drive=disk11,serial=disk11,addr=0xb";
        assert!(args.contains(disk), "{args}");
        assert!(args.contains("user,id=net12,restrict=on,guestfwd=tcp:10.0.2.100:9-null"), "{args}");
        assert!(args.contains("netdev=net12") && args.contains("addr=0xc"), "{args}");
        let bare = build(Platform::X86_64, [&web].into_iter(), false).unwrap();
        assert!(!text(&bare).contains("amd-iommu"));
        let none = build(Platform::X86_64, [&Devices::default()].into_iter(), true).unwrap();
        assert!(none.args.is_empty(), "no devices: no IOMMU");
        let by_kvm = |vendor| build(Platform::Kvm(vendor), [&web].into_iter(), true);
        for (vendor, iommu) in [
            (Vendor::Amd, "amd-iommu,intremap=on,pt=off"),
            (Vendor::Intel, "intel-iommu,intremap=on,aw-bits=48"),
        ] {
            let args = text(&by_kvm(vendor).unwrap());
            assert!(args.starts_with(&format!("-device {iommu} -machine kernel-irqchip=split ")), "{args}");
        }
    }

    fn disks(count: usize) -> Devices {
        Devices { disks: vec![THIS.into(); count], ..Devices::default() }
    }

    #[test]
    fn on_arm_no_two_guests_share_an_interrupt_line() {
        let arm = Platform::Aarch64(ArmCpu::Max);
        let names = |guests: &[Devices]| build(arm, guests.iter(), true).unwrap().names;
        assert_eq!(names(&[disks(4)]), ["00:08.0 00:0a.0 00:0b.0 00:0c.0"]);
        assert_eq!(
            names(&[disks(3), disks(0), disks(2)]),
            ["00:08.0 00:0b.0 00:0c.0", "", "00:0a.0 00:0e.0"]
        );
        assert_eq!(names(&[disks(2), disks(1), disks(1)]), ["00:08.0 00:0c.0", "00:0a.0", "00:0b.0"]);
        let args = text(&build(arm, [&disks(1)].into_iter(), true).unwrap());
        assert!(args.starts_with("-machine iommu=smmuv3 "), "{args}");
        let error = build(arm, [disks(1), disks(1), disks(1), disks(1)].iter(), true).unwrap_err();
        assert!(error.to_string().contains("interrupt lines for 3"), "{error}");
    }

    #[test]
    fn there_are_no_more_devices_than_places() {
        let built = build(Platform::X86_64, [&disks(22)].into_iter(), true).unwrap();
        assert!(built.names[0].contains("00:13.0 00:15.0"), "without the I/O APIC's: {:?}", built.names);
        let error = build(Platform::X86_64, [disks(12), disks(11)].iter(), true).unwrap_err();
        assert!(error.to_string().contains("no place left"), "{error}");
    }

    #[test]
    fn a_disk_that_is_missing_is_named() {
        let devices = Devices { disks: vec!["/nowhere.img".into()], ..Devices::default() };
        let error = format!("{:#}", devices.check().unwrap_err());
        assert!(error.contains("/nowhere.img") && error.contains("image-debian"), "{error}");
    }

    #[test]
    fn u52_whatever_a_disk_is_called_qemu_opens_that_file() {
        let directory = tempfile::tempdir().expect("makes");
        for name in [&b"a:b.img"[..], b"a,b=c,.img", b"file.driver=null-co", b"json:{}", b"\xff\xfe"] {
            let path = directory.path().join(OsStr::from_bytes(name));
            fs::write(&path, "").expect("writes");
            let given = drive("if=none,id=disk8", &path).expect("is a file").into_vec();
            let begin = b"if=none,id=disk8,format=raw,file.driver=file,file.filename=/";
            assert!(given.starts_with(begin), "{}", String::from_utf8_lossy(&given));
            // The way in which QEMU reads it.
            let text = given[begin.len() - 1..].to_vec();
            let mut read = Vec::new();
            let mut bytes = text.into_iter().peekable();
            while let Some(byte) = bytes.next() {
                assert!(byte != b',' || bytes.next() == Some(b','), "another option begins");
                read.push(byte);
            }
            assert_eq!(read, path.as_os_str().as_bytes());
        }
    }

    #[test]
    fn u52_relative_names_are_no_protocols() {
        let given = drive("if=none", Path::new("src/main.rs")).expect("cargo tests in host/");
        assert!(given.to_string_lossy().contains("file.filename=/"), "{given:?}");
        assert!(given.to_string_lossy().ends_with("/src/main.rs"), "{given:?}");
    }

    #[test]
    fn u52_a_disk_may_be_a_block_device_and_nothing_else() {
        assert_eq!(driver_for(FileType::BlockDevice), Some("host_device"));
        assert_eq!(driver_for(FileType::RegularFile), Some("file"));
        for path in ["/dev/null", "/"] {
            let why = driver(Path::new(path)).expect_err("is refused").to_string();
            assert!(why.contains("neither a file nor a block device"), "{why}");
        }
        assert!(driver(Path::new("/nowhere.img")).is_err());
    }
}
